"""``overnight doctor``: one sentence for each thing that would stop or slow a night on this machine.

Whether a run would be refused, and by which sentence, the run's own steps say (``pipeline.run.admission``,
``pipeline.run.intake``). The run directory stays as it is, and no weights are loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.config import Config, load_config, store_folder
from pipeline.engine.model.environment_checks import Finding, check_environment
from pipeline.errors import EXIT_DONE, EXIT_SOME_FAILED, EXIT_USAGE, OvernightError, StoppedEarly
from pipeline.prepare.preview import READ_SECONDS, Preview, Reading, look
from pipeline.results.outputs import configured
from pipeline.run.admission import Admission
from pipeline.run.trial_reading import Rows, TrialReading, read_on_trial
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.atomic_write import failing_disk_stops
from pipeline.system.hardware import disk_of
from pipeline.system.run_directory import RunDirectory
from pipeline.system.units import amount, counted, duration
from pipeline.tasks.registry import broken_kinds

_FREE_DISK_BYTES = 10**9  # beside the floor
# Of a night: longer work needs several.
_NIGHT_SECONDS = 12 * 3600
_SLOW_TIMES = 1.5
_SHOWN_REASONS = 5
_NOT_REFUSED = (EXIT_DONE, EXIT_SOME_FAILED)


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found, and the exit code that a run would end with for it, as far as can be seen before it."""

    findings: Sequence[Finding]
    exit_code: int


def examine(config: Path | None, overrides: Sequence[str] = ()) -> Examination:
    """The machine, and with a configuration what a run of it would say. Raises ConfigError, as a run does."""
    settings = None if config is None else load_config(config, overrides)
    machine = [*check_environment(), *(Finding("kinds", "warn", why) for why in broken_kinds().values())]
    if settings is None:
        return Examination(machine, EXIT_USAGE if _stops(machine) else EXIT_DONE)
    machine = [_as_it_matters(finding, settings) for finding in machine]
    night = Visit(settings)
    findings = [*machine, *night.findings()]
    stopped = _stops(machine) and night.exit_code in _NOT_REFUSED
    return Examination(findings, EXIT_USAGE if stopped else night.exit_code)


def _stops(findings: Sequence[Finding]) -> bool:
    return any(finding.level == "stop" for finding in findings)


def _as_it_matters(finding: Finding, config: Config) -> Finding:
    """What a run needs for this configuration stops it; what else is wrong here is only told."""
    needed = {
        "bitsandbytes": config.model.quantization != "none",
        "graphics card": config.model.device_map == "auto",
        "libraries": False,  # those that it needs, its own steps look for
    }
    if finding.level != "stop" or needed.get(finding.name, True):
        return finding
    return replace(finding, level="warn")


class Visit:
    """A look at all that a run of ``config`` would look at. ``exit_code``: that of the first refusal, or the
    code of a night that cannot read everything; 0 otherwise.
    """

    def __init__(self, config: Config) -> None:
        self.exit_code = EXIT_DONE
        self._config = config
        self._directory = RunDirectory(config.run.directory)
        self._open = ExitStack()
        self._told: set[str] = set()

    def findings(self) -> Iterator[Finding]:
        """Each thing that a run would be refused for, then what would become of the rows, then what the plan
        says.
        """
        with self._open:
            admission = Admission(self._config, self, configured(self._config))
            for name, step in admission.steps():
                try:
                    with failing_disk_stops(self._directory.path):
                        step()
                except OvernightError as error:
                    yield from self._refused(name, error)
            prepared = admission.prepared
            reading = read_on_trial(self._config, () if prepared is None else prepared.tasks, READ_SECONDS)
            if reading.refused is not None:
                yield from self._refused("source", reading.refused)
            elif reading.status.unreadable_files:
                self.exit_code = self.exit_code or EXIT_SOME_FAILED
            yield from _rows(reading)
            if prepared is not None:
                seen = Reading(reading.sampler, whole=reading.whole and reading.refused is None)
                found = look(self._config, kept=admission.kept, reading=seen)
                yield from self._plan(found, disk_is_short=isinstance(reading.refused, StoppedEarly))

    def lock(self) -> None:
        """See Place: for a moment."""
        self._directory.check()

    def open_ledger(self) -> Ledger | None:
        """See Place: to read it."""
        path = self._directory.ledger
        there = os.path.exists(path)  # noqa: PTH110  # which raises nothing, whatever the place is called
        return self._open.enter_context(Ledger.open(path, write=False)) if there else None

    def _refused(self, name: str, error: OvernightError) -> Iterator[Finding]:
        """A finding, unless an earlier step has met the same."""
        self.exit_code = self.exit_code or error.exit_code
        if str(error) not in self._told:
            self._told.add(str(error))
            yield Finding("disk" if isinstance(error, StoppedEarly) else name, "stop", str(error))

    def _plan(self, found: Preview, *, disk_is_short: bool) -> Iterator[Finding]:
        """What the plan says, a sentence each."""
        if found.refused is not None and self.exit_code in _NOT_REFUSED:
            self.exit_code = EXIT_USAGE
        yield from _memory(found)
        yield from () if disk_is_short else _disk(found)
        yield from _time(found)
        for note in dict.fromkeys(note for task in found.tasks for note in task.notes):
            yield Finding("prompt", "warn", note)
        for warning in found.forecast.warnings if found.forecast else ():
            yield Finding("memory", "warn", warning)


# ── the source ──────────────────────────────────────────────────────────────────────────────────────────────


def _rows(reading: TrialReading) -> Iterator[Finding]:
    """What would become of the rows, and how much of the source was looked at."""
    status = reading.status
    for remark in reading.remarks:
        yield Finding("source", "warn", remark)
    if status.unreadable_files:
        yield Finding("source", "warn", status.unreadable)
    for reason, rows in list(reading.rejected.items())[:_SHOWN_REASONS]:
        yield Finding("source", "warn", f"{counted(rows.count, 'row')} rejected: {_place(rows)}: {reason}")
    if (more := len(reading.rejected) - _SHOWN_REASONS) > 0:
        yield Finding("source", "warn", f"rows are rejected for {counted(more, 'further reason')}")
    if reading.blank is not None:
        texts = counted(reading.blank.count, "document")
        yield Finding("source", "warn", f"{texts} skipped, with nothing to read: {_place(reading.blank)}")
    if status.duplicates:
        told = f"{counted(status.duplicates, 'row')} repeated, id and text: each document is asked about once"
        yield Finding("source", "warn", told)
    if status.clashing_ids:
        yield Finding("source", "warn", _ambiguous(status.clashing_ids, reading.clashing))
    if reading.refused is None:
        yield Finding("source", "ok", _read(reading))


def _read(reading: TrialReading) -> str:
    files = f" in {counted(reading.files, 'file')}" if reading.files else ""
    read = f"{counted(reading.status.documents, 'document')}{files}"
    if reading.first is not None:
        read += f"; the first is {reading.first.id!r}, {len(reading.first.text):,} characters"
    if not reading.whole:
        read += f". So much was read in {READ_SECONDS:.0f} s, and nothing is said of the rest; a run reads on"
    return read


def _place(rows: Rows) -> str:
    first = "" if rows.count == 1 else "first "
    return f"{first}{rows.first.file}, line {rows.first.line}"


def _ambiguous(count: int, some: Sequence[tuple[str, int]]) -> str:
    shown = ", ".join(f"{name!r} ({texts:,})" for name, texts in some)
    more = f" and {count - len(some):,} more" if count > len(some) else ""
    stand = "1 id stands" if count == 1 else f"{count:,} ids stand"
    return f"{stand} for several texts, each of which is asked; gold labels cannot tell which: {shown}{more}"


# ── the plan ────────────────────────────────────────────────────────────────────────────────────────────────


def _memory(found: Preview) -> Iterator[Finding]:
    if found.refused is not None:
        yield Finding("model", "stop", found.refused)
        return
    forecast = found.forecast
    if forecast is None:
        yield Finding(
            "model", "warn", f"{found.ground.cannot_plan}; a run works, its memory is not predicted"
        )
        return
    peaks = ", ".join(
        f"{amount(size)} of {name} at most"
        for name, size in (
            ("VRAM", forecast.vram_peak_bytes),
            ("RAM", forecast.ram_peak_bytes - forecast.ram_mapped_bytes),
        )
        if size
    )
    slow = forecast.step is not None and forecast.step.slowdown >= _SLOW_TIMES
    if forecast.verdict == "resident":
        yield Finding("model", "ok", f"{found.ground.shape.describe()}: it fits, with {peaks}")
    elif forecast.fits:
        times = f", decoding {forecast.step.slowdown:.1f} times slower" if slow and forecast.step else ""
        better = f"; {forecast.next_steps[0]}" if forecast.next_steps else ""
        yield Finding(
            "model", "warn" if slow else "ok", f"it works as {forecast.verdict}, with {peaks}{times}{better}"
        )
    else:
        steps = "; ".join(forecast.next_steps)
        yield Finding(
            "model", "warn", f"documents near the whole context do not fit: {forecast.reasons[-1]}; {steps}"
        )


def _disk(found: Preview) -> Iterator[Finding]:
    """The run directory's disk, and that of a store that lies elsewhere."""
    forecast, store = found.forecast, found.config.kv_cache.store
    kept = min(forecast.store_bytes or 0, store.quota) if forecast and forecast.keep_documents else 0
    needed = (forecast.disk_peak_bytes if forecast else 0) + _FREE_DISK_BYTES
    if store.path is not None and kept:
        needed -= kept
        yield _room(
            store_folder(found.config),
            kept + store.keep_free,
            "the KV store",
            "kv_cache.store.path, or lower its quota",
        )
    floor = found.config.run.keep_free_disk
    yield _room(Path(found.config.run.directory), needed + floor, "the run directory", "run.directory")


def _room(folder: Path, needed_bytes: int, what: str, remedy: str) -> Finding:
    free_bytes = disk_of(folder).free_bytes
    free = f"{free_bytes / 1e9:.1f} GB are free where {what} is"
    if free_bytes >= needed_bytes:
        return Finding("disk", "ok", free)
    return Finding(
        "disk", "warn", f"{free}, and {needed_bytes / 1e9:.1f} GB may be needed; free some, or move {remedy}"
    )


def _time(found: Preview) -> Iterator[Finding]:
    work = found.forecast.work if found.forecast else None
    for remark in found.remarks:
        yield Finding("time", "warn", remark)
    if work is None or found.forecast is None or not found.loads:
        return
    told = (
        f"{found.documents:,} documents take about {duration(work.seconds)} "
        f"({work.documents_per_hour:,.0f} an hour)"
    )
    deadline = found.forecast.deadline_seconds
    if deadline is not None and work.seconds > deadline:
        late = duration(work.seconds - deadline)
        yield Finding(
            "time",
            "warn",
            f"{told}, {late} more than until run.deadline; the rest is done by the same command later",
        )
    elif work.seconds > _NIGHT_SECONDS:
        yield Finding(
            "time", "warn", f"{told}: more than one night; the same command goes on in the next one"
        )
    else:
        known = "" if found.ground.calibration.measured else "; overnight plan --measure makes this exact"
        yield Finding("time", "ok", f"{told}{known}")
