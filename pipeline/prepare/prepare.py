"""Before the night: what ``auto`` means here, the tasks bound to the model, their identities, the plan and
its forecast.
"""

from __future__ import annotations

import datetime
import itertools
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.config import Config, identity_of, store_folder
from pipeline.engine.interface import Backend, ModelFacts, PlanRequest
from pipeline.engine.model.demo_model import cache_folder
from pipeline.engine.model.fused_products import fused_rows
from pipeline.errors import CannotPlan, ConfigError, OvernightError
from pipeline.planner.budget import Wish
from pipeline.planner.forecast import Forecast, decide
from pipeline.planner.fused_products import FusedRows
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.plan import usable, wish_of
from pipeline.planner.prompt_layout import Layout, choose_layout, questions_about_a_document, tokens_of
from pipeline.planner.workload import TaskLoad
from pipeline.prepare.measured_speeds import MeasuredSpeeds, calibrated, recall
from pipeline.prompts import PROMPT_FORMAT, FrameBuilder
from pipeline.records import Document, Plan, Sampling
from pipeline.sources import read_source
from pipeline.stores.kv.directory import measured_reading
from pipeline.system.hardware import Hardware, probe
from pipeline.system.hardware_datasheet import card_of
from pipeline.system.hardware_rates import known_rates, with_rates
from pipeline.system.stop_signal import seconds_until
from pipeline.tasks import Setting, Task, build_task

_LOOKED_AT_DOCUMENTS = 64
# The storage format that keeps every bit of caches in these numbers.
_HALF = {"float32": None, "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class Ground:
    """What a plan stands on: the backend and its facts, the machine as far as it may be used, what is asked
    for, what was measured.
    """

    config: Config
    backend: Backend
    facts: ModelFacts
    machine: Hardware
    wish: Wish
    calibration: MeasuredSpeeds

    @property
    def cannot_plan(self) -> str | None:
        """Why there is a plan, but no forecast; None where there is one."""
        if self.facts.shape is None:
            return self.facts.cannot_plan or "the model's weights are not on this machine"
        return self.facts.cannot_plan

    @property
    def shape(self) -> ModelShape:
        """What the model takes here. Raises CannotPlan where its weights are elsewhere."""
        if self.facts.shape is None:
            raise CannotPlan(f"{self.cannot_plan}, so that nothing can be said of memory and time")
        return self.facts.shape

    def knowing(self, longest_tokens: int | None) -> Ground:
        """The same, for documents of which none asks for a longer row; None: not known."""
        return replace(self, wish=replace(self.wish, longest_tokens=longest_tokens))

    def decide(self, loads: Sequence[TaskLoad] = ()) -> Forecast:
        """The forecast: without documents, or for what they would ask. Raises CannotPlan."""
        return decide(self.shape, usable(self.config, self.machine), self._wish(loads))

    def plan(self, resolved: Mapping[str, Any]) -> Plan:
        """The frozen plan, as the backend decides it. Of the documents it depends on the longest row alone.
        Raises DoesNotFit.
        """
        return self.backend.plan(PlanRequest(resolved, self.machine, self._wish()))

    def _wish(self, loads: Sequence[TaskLoad] = ()) -> Wish:
        deadline = self.config.run.deadline
        seconds = None if deadline is None else seconds_until(deadline)
        return replace(self.wish, loads=tuple(loads), deadline_seconds=seconds)


@dataclass(frozen=True, slots=True)
class Preparation:
    """Everything that is decided before a document is read."""

    tasks: tuple[Task, ...]
    plan: Plan
    identity: Mapping[str, Any]
    notes: tuple[str, ...]
    ground: Ground

    def settled(self, longest_tokens: int | None) -> Preparation:
        """Once the documents are read: the plan for rows that long, which may spare them a placement that
        only longer ones need.

        Nothing changes that shapes an answer. Raises DoesNotFit.
        """
        ground = self.ground.knowing(longest_tokens)
        resolved = {"dtype": self.plan.dtype, "layout": self.plan.layout}
        return replace(self, ground=ground, plan=ground.plan(resolved))

    def forecast(self, loads: Sequence[TaskLoad]) -> Forecast | None:
        """For what the documents would ask; None where the model's memory is not known."""
        return None if self.ground.cannot_plan else self.ground.decide(loads)


def meant_by_auto(config: Config) -> list[str]:
    """Names of what the configuration leaves open."""
    asked = {
        "dtype": config.model.dtype,
        "attention": config.model.attention,
        "layout": config.generation.layout,
        "date": "auto",
    }
    return [name for name, value in asked.items() if value == "auto"]


def resolve(config: Config, backend: Backend, kept: Mapping[str, Any]) -> dict[str, Any]:
    """What ``auto`` means: the configuration's word, else what the run directory has kept, else what fits
    this machine today.
    """
    here = backend.resolve()
    asked = {
        "dtype": None if config.model.dtype == "auto" else config.model.dtype,
        "attention": None if config.model.attention == "auto" else config.model.attention,
        "layout": None if config.generation.layout == "auto" else config.generation.layout,
        "date": None,
    }
    found = {
        "dtype": here["dtype"],
        "attention": here["attention"],
        "date": datetime.date.today().isoformat(),
    }
    meant = {name: asked[name] or kept.get(name) or found.get(name) for name in asked}
    return meant | {"layout": meant["layout"] or _fitting_layout(config)}


def _fitting_layout(config: Config) -> Layout:
    """By the first documents of the source. One that cannot be read is told of when it is read in earnest."""
    if questions_about_a_document(config) < 2 and config.kv_cache.store.documents != "always":
        return "instructions_first"
    try:
        some = itertools.islice(
            (item for item in read_source(config.source) if isinstance(item, Document)), _LOOKED_AT_DOCUMENTS
        )
        characters = [len(document.text) for document in some]
    except OvernightError:
        characters = []
    return choose_layout(config, tokens_of(statistics.fmean(characters)) if characters else 0)


def ground_of(
    config: Config, backend: Backend, resolved: Mapping[str, Any], machine: Hardware | None = None
) -> Ground:
    """What the plan stands on. ``machine``: one that is not this one. Raises ConfigError."""
    facts = backend.facts()
    dtype = str(resolved["dtype"])
    calibration = MeasuredSpeeds() if machine else recall(config, dtype)
    wish = wish_of(config, facts.context_tokens, resolved, stored_dtype=facts.stored_dtype)
    if facts.stored_quantized:  # only what is quantized here can be streamed
        wish = replace(wish, quantization=facts.stored_as or wish.quantization, may_stream=False)
    if machine is None:
        wish = replace(
            wish, store=replace(wish.store, read_bytes_per_second=measured_reading(store_folder(config)))
        )
    if calibration.process_bytes:
        wish = replace(wish, process_bytes=calibration.process_bytes)
    found = machine or this_machine(config, dtype, calibration)
    wish = replace(wish, fused=_fused(config, facts, found, wish))
    return Ground(config, backend, facts, found, wish, calibration)


def _fused(config: Config, facts: ModelFacts, machine: Hardware, wish: Wish) -> FusedRows | None:
    """How many rows the first card that may be used multiplies with weights in 4 bits as they lie; None where
    there are none, or no card.
    """
    cards = usable(config, machine)
    if wish.quantization != "nf4" or facts.shape is None or not cards.gpu_bytes:
        return None
    return fused_rows(facts.shape, card_of(cards, 0), wish.dtype)


def this_machine(config: Config, dtype: str, calibration: MeasuredSpeeds) -> Hardware:
    """As it is now, with the speeds that were measured on it before, if any; without its graphics cards where
    the model is not to use them. Raises DeviceLost.
    """
    folder = Path(config.run.directory)
    found = probe((folder,), with_cards=config.model.device_map == "auto")
    rates = known_rates(cache_folder(), folder, dtype, found.gpu_names)
    return calibrated(found if rates is None else with_rates(found, rates), calibration)


def prepare(
    config: Config, backend: Backend, resolved: Mapping[str, Any], kinds: Collection[str] | None = None
) -> Preparation:
    """Bind the tasks to the model and plan. Raises ConfigError or DoesNotFit."""
    ground = ground_of(config, backend, resolved)
    plan = ground.plan(resolved)
    identity = shared_identity(config, backend.identity(), resolved, plan.context_tokens)
    tasks = bind_tasks(config, backend, resolved, plan.context_tokens, identity, kinds)
    notes = tuple(dict.fromkeys(note for task in tasks for note in task.notes))
    return Preparation(tasks, plan, identity, notes, ground)


def bind_tasks(
    config: Config,
    backend: Backend,
    resolved: Mapping[str, Any],
    context_tokens: int,
    identity: dict[str, Any],
    kinds: Collection[str] | None = None,
) -> tuple[Task, ...]:
    """The tasks of the wanted kinds over the model's tokenizer. Raises ConfigError."""
    wanted = [task for task in config.tasks if kinds is None or task.kind in kinds]
    if not wanted:
        raise ConfigError(
            f"the configuration has no task of kind {' or '.join(sorted(kinds or ()))}; it has "
            f"{_kinds(config)}"
        )
    setting = _setting(config, backend, resolved, context_tokens)
    return tuple(build_task(task, setting, identity) for task in wanted)


def shared_identity(
    config: Config, model: Mapping[str, Any], resolved: Mapping[str, Any], context_tokens: int
) -> dict[str, Any]:
    """The part of a task's identity that all tasks of a configuration share."""
    stored = config.kv_cache.store.format
    lossy: dict[str, Any] = (
        {"kv_format": stored}
        if config.kv_cache.store.quota and stored not in ("as_computed", _HALF[resolved["dtype"]])
        else {}
    )
    if config.kv_cache.placement == "quantized":  # auto never takes it
        lossy["kv_placement"] = "quantized"
    if config.kv_cache.lossy_last_resort:
        lossy["kv_last_resort"] = "quantized"
    return lossy | {
        "model": dict(model),
        "quantization": config.model.quantization,
        "dtype": resolved["dtype"],
        "attention": resolved["attention"],
        "template_options": config.model.template_options,
        "context_tokens": context_tokens,
        "layout": resolved["layout"],
        "date": resolved["date"],
        "sampling": None if config.generation.sampling is None else identity_of(config.generation.sampling),
        "prompt_format": PROMPT_FORMAT,
    }


def _setting(config: Config, backend: Backend, resolved: Mapping[str, Any], context_tokens: int) -> Setting:
    tokenizer = backend.tokenizer()
    frames = FrameBuilder(tokenizer, resolved["layout"], config.model.template_options, resolved["date"])
    chosen = config.generation.sampling
    sampling = (
        None if chosen is None else Sampling(chosen.temperature, chosen.top_p, chosen.top_k, chosen.seed)
    )
    return Setting(tokenizer, frames, context_tokens, sampling)


def _kinds(config: Config) -> str:
    return ", ".join(f"{task.name} ({task.kind})" for task in config.tasks)
