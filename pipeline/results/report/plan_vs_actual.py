"""Prediction beside outcome: what the plan said of a run's memory and time, and what the run took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.system.machine_load import beside
from pipeline.system.units import duration


def compared(facts: Mapping[str, Any], *, complete: bool) -> dict[str, Any]:
    """Lines of (name, predicted, measured, ratio). Times of all the work are only compared where the run came
    to its end.
    """
    told, peaks, loaded, waiting = (
        facts["forecast"]["quantities"],
        facts.get("peaks") or {},
        facts["loaded"],
        facts.get("waiting") or {},
    )
    lines = [
        _line(
            "weights",
            "bytes",
            _sum(told, "weights_on_device", "weights_in_ram", "weights_on_disk"),
            loaded.get("weights_bytes"),
        ),
        _line("RAM peak of the worker", "bytes", told.get("ram_peak"), peaks.get("ram_bytes")),
        _line(
            "memory peak on graphics cards",
            "bytes",
            told.get("vram_peak") or None,
            peaks.get("vram_bytes") or None,
        ),
        _line("loading", "seconds", told.get("load"), loaded.get("load_seconds")),
    ]
    if complete:
        seconds, documents = waiting.get("seconds"), facts["forecast"]["documents"]
        lines.append(_line("work", "seconds", told.get("work"), seconds))
        rate = told["work"] and documents / told["work"] * 3600 if told.get("work") else None
        lines.append(
            _line("works an hour", "documents an hour", rate, documents / seconds * 3600 if seconds else None)
        )
    known = [line for line in lines if line["predicted"] is not None or line["measured"] is not None]
    forecast = facts["forecast"]
    return {
        "lines": known,
        "speeds": forecast["speeds"],
        "sampled": forecast["sampled"],
        "planned": beside(forecast.get("busy_cores", 0.0)),  # runs of earlier versions did not look
        "pace": facts.get("pace"),
    }


def _line(name: str, unit: str, predicted: float | None, measured: float | None) -> dict[str, Any]:
    ratio = measured / predicted if predicted and measured is not None else None
    return {"name": name, "unit": unit, "predicted": predicted, "measured": measured, "ratio": ratio}


def _sum(told: Mapping[str, Any], *names: str) -> float | None:
    values = [told.get(name) for name in names]
    return (
        None
        if any(value is None for value in values)
        else sum(value for value in values if value is not None)
    )


def estimated_again(after_seconds: float, planned_seconds: float, expected_seconds: float) -> str:
    """What the first minutes say about the hours."""
    return (
        f"by the pace of its first {duration(after_seconds)} the work takes {duration(expected_seconds)}; "
        f"the plan said {duration(planned_seconds)}"
    )
