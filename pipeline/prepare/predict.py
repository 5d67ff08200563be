"""What a run foretells before it starts to work, for the report to set beside the outcome; and what it leaves
for the next plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.planner.report_lines import quantities
from pipeline.prepare.dry_run import load_of
from pipeline.prepare.measured_speeds import remember
from pipeline.prepare.prepare import Preparation
from pipeline.records import Document
from pipeline.system.machine_load import beside
from pipeline.system.units import duration
from pipeline.tasks.registry import kind_of
from pipeline.tasks.throughput_meter import TaskSize


def predict(
    prepared: Preparation, sample: Sequence[Document], sizes: Sequence[tuple[int, int]], busy_cores: float
) -> dict[str, Any]:
    """Numbers for the works that are pending: ``sizes`` has (works, characters) of each task; others use
    ``busy_cores`` of the machine meanwhile. Empty where nothing can be said.
    """
    if prepared.ground.cannot_plan is not None or not sample:
        return {}
    known = prepared.ground.calibration.output_tokens
    loads = [
        load_of(task, sample, works, characters, known.get(task.job.fingerprint))
        for task, (works, characters) in zip(prepared.tasks, sizes, strict=True)
        if works
    ]
    forecast = prepared.forecast(loads)
    assert forecast is not None
    found = quantities(forecast, prepared.ground.shape, prepared.plan.dtype)
    return {
        "verdict": forecast.verdict,
        "documents": sum(load.documents for load in loads),
        "sampled": len(sample),
        "speeds": prepared.ground.machine.rates.origin,
        "busy_cores": busy_cores,
        "quantities": {quantity.name: quantity.value for quantity in found},
    }


def sizes_by_task(
    prepared: Preparation, sizes: Sequence[tuple[int, int]], foretold: Mapping[str, Any]
) -> dict[str, TaskSize]:
    """What is pending of each task, and the seconds that ``foretold`` (see ``predict``) gives it; none where
    a rate of the machine is not known.
    """
    found = {}
    told = foretold.get("quantities", {})
    for task, (_, characters) in zip(prepared.tasks, sizes, strict=True):
        name = task.job.name
        seconds = [told.get(f"{name}: {part}") for part in ("reading", "writing")]
        known = None if None in seconds else sum(seconds)
        found[name] = TaskSize(characters, known or None)
    return found


def rests_on(foretold: Mapping[str, Any]) -> str:
    """What the hours of a plan are, and what they rest on; empty where there are none."""
    seconds = foretold.get("quantities", {}).get("work")
    if seconds is None:
        return ""
    words = beside(foretold["busy_cores"])
    return (
        f"about {duration(seconds)} of work by the plan (speeds {foretold['speeds']})"
        f"{f', made {words}' if words else ''}; the first minutes will tell"
    )


def learn(config: Config, prepared: Preparation, report: Path) -> None:
    """Keep how long answers were, how long loading took and what the worker's process weighs. ``report`` is
    report.json.
    """
    if prepared.ground.cannot_plan is not None:
        return
    facts = json.loads(report.read_text(encoding="ascii"))
    loaded = facts["loaded"] or {}
    seen = {name: loaded[name] for name in ("process_bytes", "load_seconds") if loaded.get(name)}
    lengths = {}
    for task in prepared.tasks:
        told = facts["tasks"].get(task.job.name)
        if kind_of(task.job.kind).writes_text and told and told["states"]["done"] and told["tokens_out"]:
            lengths[task.job.fingerprint] = told["tokens_out"] / told["states"]["done"]
    if seen or lengths:
        remember(config, prepared.plan.dtype, **seen, output_tokens=lengths)
