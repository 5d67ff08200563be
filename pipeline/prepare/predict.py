"""What a run foretells before it starts to work, for the report to set beside the outcome; and what it leaves
for the next plan.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.planner.report_lines import quantities
from pipeline.prepare.dry_run import load_of
from pipeline.prepare.measured_speeds import remember
from pipeline.prepare.prepare import Preparation
from pipeline.records import Document
from pipeline.tasks.registry import kind_of


def predict(
    prepared: Preparation, sample: Sequence[Document], sizes: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """Numbers for the works that are pending: ``sizes`` has (works, characters) of each task. Empty where
    nothing can be said.
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
        "quantities": {quantity.name: quantity.value for quantity in found},
    }


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
