"""What a run foretells about itself before it starts to work, for the report to set beside the outcome, and what it leaves for the next plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.calibration import remember
from pipeline.config import Config
from pipeline.planner.quantities import quantities
from pipeline.preparation import Preparation
from pipeline.records import Document
from pipeline.rehearsal import load_of
from pipeline.stores.ledger import Ledger


def predict(prepared: Preparation, sample: Sequence[Document], sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Numbers with units for the works that are pending: ``sizes`` has (works, characters) of each task. Empty where nothing can be said."""
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
        "verdict": forecast.verdict, "documents": sum(load.documents for load in loads), "sampled": len(sample),
        "speeds": prepared.ground.machine.rates.origin, "quantities": {quantity.name: quantity.value for quantity in found},
    }  # fmt: skip


def learn(config: Config, prepared: Preparation, ledger: Ledger) -> None:
    """Keep how long answers were, how long loading took and what the worker's process weighs, for the next plan."""
    run = ledger.runs()[-1]
    loaded = run["facts"].get("loaded") or {}
    seen: dict[str, Any] = {}
    if loaded.get("process_bytes"):
        seen["process_bytes"] = int(loaded["process_bytes"])
    if loaded.get("load_seconds"):
        seen["load_seconds"] = float(loaded["load_seconds"])
    lengths = {}
    for task in prepared.tasks:
        if task.job.kind == "summarize" and (mean := ledger.mean_output_tokens(task.job.name)):
            lengths[task.job.fingerprint] = mean
    if seen or lengths:
        remember(config, prepared.plan.dtype, **seen, output_tokens=lengths)
