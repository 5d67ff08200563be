"""What a night would be: plan, forecast, documents' lengths, and everything a person should know first. For
``plan`` and ``doctor``.

Works with whatever is there: without weights, without documents, without a tokenizer it says what it could
not look at.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.engine.interface import Backend
from pipeline.engine.model.demo_model import cache_folder
from pipeline.engine.registry import open_backend
from pipeline.errors import DoesNotFit, OvernightError
from pipeline.planner.forecast import Forecast
from pipeline.planner.report_lines import Quantity, quantities
from pipeline.planner.workload import Estimate, TaskLoad, histogram
from pipeline.prepare.dry_run import DocumentSampler, load_of, longest_row, rough_load, rough_longest_row
from pipeline.prepare.prepare import Ground, bind_tasks, ground_of, resolve, shared_identity
from pipeline.records import Document, Plan, Reject
from pipeline.sources import read_source
from pipeline.system.hardware import Hardware, existing_folder
from pipeline.system.hardware_rates import measured_rates, with_rates
from pipeline.system.machine_load import OthersLoad
from pipeline.tasks import Task

READ_SECONDS = 60.0
"""Longer than this no source is read only to be looked at."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reading of the source has met; not ``whole``: it was cut short."""

    sampler: DocumentSampler
    whole: bool


@dataclass
class Preview:
    """``plan`` is None where a run would be ``refused``; ``forecast`` where the model's memory is not known
    (``ground.cannot_plan``).
    """

    config: Config
    ground: Ground
    resolved: Mapping[str, Any]
    plan: Plan | None = None
    refused: str | None = None
    forecast: Forecast | None = None
    tasks: tuple[Task, ...] = ()
    fingerprints: dict[str, str] = field(default_factory=dict)
    loads: tuple[TaskLoad, ...] = ()
    documents: int = 0
    characters: int = 0
    remarks: list[str] = field(default_factory=list)

    @property
    def lengths(self) -> list[int]:
        """Tokens of the sampled documents."""
        return [asked.tokens for asked in self.loads[0].sample] if self.loads else []

    @property
    def tokens(self) -> Estimate | None:
        """Tokens of all documents."""
        return self.loads[0].tokens if self.loads else None

    @property
    def quantities(self) -> list[Quantity]:
        """The forecast's numbers."""
        if self.forecast is None:
            return []
        return quantities(self.forecast, self.ground.shape, str(self.resolved["dtype"]))

    def histogram(self) -> list[tuple[int, int, int]]:
        """(from, to, share of the sample in tokens)."""
        return histogram(self.lengths)


def look(
    config: Config,
    machine: Hardware | None = None,
    *,
    measure_machine: bool = True,
    kept: Mapping[str, Any] | None = None,
    reading: Reading | None = None,
) -> Preview:
    """Everything that can be said before the night. ``machine``: one that is not this one; ``kept``: what
    ``auto`` has meant before; ``reading``: what the source was found to hold, if it was read. Raises
    ConfigError.
    """
    others = OthersLoad()
    backend = open_backend(config)
    resolved = resolve(config, backend, kept or {})
    if machine is not None and config.model.dtype == "auto":
        resolved["dtype"] = (
            "bfloat16" if machine.gpu_bytes and config.model.device_map == "auto" else "float32"
        )
    ground = ground_of(config, backend, resolved, machine)
    if (
        machine is None
        and measure_machine
        and ground.cannot_plan is None
        and ground.machine.rates.memory_bytes_per_second is None
    ):
        ground = _measured(ground, str(resolved["dtype"]))
    found = Preview(config, ground, resolved)
    _bind(found, backend)
    reading = reading or _read(found)
    if reading is not None:
        _reckon(found, reading)
    try:
        found.plan = found.ground.plan(resolved)
    except DoesNotFit as error:
        found.refused = str(error)
    if ground.cannot_plan is None:
        found.forecast = found.ground.decide(found.loads)
    if machine is None and others.words:
        found.remarks.append(
            f"this plan was made {others.words}: the times hold where nothing else runs, and a run sets them "
            f"right by its first minutes"
        )
    return found


def _measured(ground: Ground, dtype: str) -> Ground:
    from pipeline.engine.model.nf4 import unpacking_rate  # with it comes torch

    scratch = existing_folder(Path(ground.config.run.directory))
    cards = ground.machine.gpu_names
    found = measured_rates(cache_folder(), scratch, dtype, cards, unpacking=unpacking_rate)
    kept = ground.machine.rates
    known = {
        name: getattr(kept, name)
        for name in kept.__dataclass_fields__
        if name != "origin" and getattr(kept, name) is not None
    }
    origin = kept.origin if ground.calibration.measured else found.origin
    return replace(ground, machine=with_rates(ground.machine, replace(found, **known, origin=origin)))


def _bind(found: Preview, backend: Backend) -> None:
    """The tasks over the model's tokenizer; their fingerprints too, if the weights are here."""
    identity: dict[str, Any] = {}
    context = found.ground.wish.context_tokens
    try:
        identity = shared_identity(found.config, backend.identity(), found.resolved, context)
    except OvernightError as error:
        found.remarks.append(f"the weights are not here, so this is from config.json alone: {error}")
    try:
        found.tasks = bind_tasks(found.config, backend, found.resolved, context, identity)
    except OvernightError as error:
        if identity:
            raise
        found.remarks.append(
            f"no tokenizer is here: documents are reckoned at four characters a token, which may be off "
            f"by a third ({error})"
        )
    if identity:
        found.fingerprints = {task.job.name: task.job.fingerprint for task in found.tasks}


def _read(found: Preview) -> Reading | None:
    """Read the source once, for its size and a sample; None where it cannot be read."""
    sampler = DocumentSampler()
    fields = sorted({name for task in found.tasks for name in task.job.fields})
    patience = _Patience(READ_SECONDS)
    try:
        for _ in sampler.watch(patience.watch(read_source(found.config.source, fields))):
            pass
    except OvernightError as error:
        found.remarks.append(f"the documents could not be read, so there are no times: {error}")
        return None
    return Reading(sampler, whole=not patience.lost)


def _reckon(found: Preview, reading: Reading) -> None:
    """What the documents mean for the plan."""
    sampler = reading.sampler
    if not reading.whole:
        found.remarks.append(
            f"reading was cut short after {READ_SECONDS:.0f} s: there are at least {sampler.documents:,} "
            f"documents"
        )
    if not sampler.documents:
        found.remarks.append("the source holds no documents, so there are no times")
        return
    found.documents, found.characters = sampler.documents, sampler.characters
    known = found.ground.calibration.output_tokens
    longest = sampler.longest if reading.whole else None
    answers = {task.name: task.most_new_tokens for task in found.config.tasks}
    if found.tasks:
        found.ground = found.ground.knowing(longest_row(found.tasks, longest))
        found.loads = tuple(
            load_of(
                task, sampler.sample, sampler.documents, sampler.characters, known.get(task.job.fingerprint)
            )
            for task in found.tasks
        )
    else:
        context = found.ground.wish.context_tokens
        found.ground = found.ground.knowing(rough_longest_row(longest, max(answers.values())))
        found.loads = tuple(
            rough_load(task.name, task.kind, sampler, context, answers[task.name])
            for task in found.config.tasks
        )
    _remark_failures(found)


def _remark_failures(found: Preview) -> None:
    for load in found.loads:
        failed = sum(asked.failed for asked in load.sample)
        if failed and found.tasks:
            found.remarks.append(
                f"task {load.name}: {failed} of {len(load.sample)} sampled documents would fail before "
                f"the model answers"
            )


class _Patience:
    """Ends a reading that takes too long."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self.lost = False

    def watch(self, items: Iterable[Document | Reject]) -> Iterator[Document | Reject]:
        for item in items:
            yield item
            if time.monotonic() > self._until:
                self.lost = True
                return


def advice_lines(found: Preview) -> Sequence[str]:
    """Remarks, warnings and refusals, most urgent first."""
    warnings = list(found.forecast.warnings) if found.forecast else []
    return [
        *([f"a run would be refused: {found.refused}"] if found.refused else []),
        *warnings,
        *found.remarks,
    ]
