"""Before the night: what ``auto`` means here, the tasks bound to the model, their identities, the plan."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.config import Config, LabelTask
from pipeline.engine.base import Backend
from pipeline.errors import ConfigError
from pipeline.layout import choose_layout
from pipeline.planner.hardware import probe
from pipeline.planner.plan import make_plan
from pipeline.planner.shape import model_shape
from pipeline.prompts import PROMPT_FORMAT, FrameBuilder
from pipeline.records import Plan, Sampling
from pipeline.sources.labelled import labelled_for
from pipeline.tasks import Setting, Task, build_task

# The storage format that keeps every bit of caches in these numbers.
_HALF = {"float32": None, "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class Preparation:
    """Everything that is decided before a document is read."""

    tasks: tuple[Task, ...]
    plan: Plan
    identity: Mapping[str, Any]
    notes: tuple[str, ...]


def meant_by_auto(config: Config) -> list[str]:
    """Names of what the configuration leaves open."""
    asked = {"dtype": config.model.dtype, "attention": config.model.attention, "layout": config.generation.layout, "date": "auto"}
    return [name for name, value in asked.items() if value == "auto"]


def resolve(config: Config, backend: Backend, kept: Mapping[str, Any]) -> dict[str, Any]:
    """What ``auto`` means: the configuration's word, else what the run directory has kept, else what fits this machine today."""
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
        "layout": choose_layout(config),
        "date": datetime.date.today().isoformat(),
    }
    return {name: asked[name] or kept.get(name) or found[name] for name in asked}


def prepare(config: Config, backend: Backend, resolved: Mapping[str, Any], kinds: Collection[str] | None = None) -> Preparation:
    """Bind the tasks to the model and plan. Raises ConfigError or DoesNotFit."""
    plan = make_plan(config, model_shape(backend.model_config()), probe(), resolved)
    identity = _shared_identity(config, backend, resolved, plan)
    wanted = [task for task in config.tasks if kinds is None or task.kind in kinds]
    if not wanted:
        raise ConfigError(f"the configuration has no task of kind {' or '.join(sorted(kinds or ()))}; it has {_kinds(config)}")
    setting = _setting(config, backend, resolved, plan)
    examples = [labelled_for(task) if isinstance(task, LabelTask) else [] for task in wanted]
    tasks = tuple(build_task(task, setting, identity, given) for task, given in zip(wanted, examples, strict=True))
    notes = tuple(dict.fromkeys(note for task in tasks for note in task.notes))
    return Preparation(tasks, plan, identity, notes)


def _shared_identity(config: Config, backend: Backend, resolved: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """The part of a task's identity that all tasks of a configuration share."""
    stored = config.kv_cache.store.format
    lossy: dict[str, Any] = (
        {"kv_format": stored} if config.kv_cache.store.quota and stored not in ("as_computed", _HALF[resolved["dtype"]]) else {}
    )
    if plan.placement == "quantized":
        lossy["kv_placement"] = "quantized"
    if plan.lossy_last_resort:
        lossy["kv_last_resort"] = "quantized"
    return lossy | {
        "model": dict(backend.identity()),
        "quantization": config.model.quantization,
        "dtype": resolved["dtype"],
        "attention": resolved["attention"],
        "template_options": config.model.template_options,
        "context_tokens": plan.context_tokens,
        "layout": resolved["layout"],
        "date": resolved["date"],
        "sampling": None if config.generation.sampling is None else config.generation.sampling.model_dump(mode="json"),
        "prompt_format": PROMPT_FORMAT,
    }


def _setting(config: Config, backend: Backend, resolved: Mapping[str, Any], plan: Plan) -> Setting:
    tokenizer = backend.tokenizer()
    frames = FrameBuilder(tokenizer, resolved["layout"], config.model.template_options, resolved["date"])
    chosen = config.generation.sampling
    sampling = None if chosen is None else Sampling(chosen.temperature, chosen.top_p, chosen.top_k, chosen.seed)
    return Setting(tokenizer, frames, plan.context_tokens, sampling)


def _kinds(config: Config) -> str:
    return ", ".join(f"{task.name} ({task.kind})" for task in config.tasks)
