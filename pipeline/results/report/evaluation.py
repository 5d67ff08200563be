"""The last evaluation of a run, kept beside its report: ``evaluation.json`` in the run directory, and what
the report shows of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.system.atomic_write import replace_file
from pipeline.system.escape import escape
from pipeline.system.units import moment
from pipeline.tasks.registry import answers_of

FORMAT = 1
NAME = "evaluation.json"
PLOTS = "plots"
"""The folder in a run directory that plots go to."""

_KEPT = (
    "kind",
    "view",
    "view_sentence",
    "judged",
    "abstained",
    "left_out",
    "basis",
    "notes",
    "headline",
    "per_label",
)


def keep_evaluation(directory: Path, facts: Mapping[str, Any]) -> None:
    """Keep the facts of ``overnight evaluate`` for the report, in place of earlier ones. Raises StoppedEarly,
    OSError.
    """
    tasks = {
        name: {key: found[key] for key in _KEPT if key in found} for name, found in facts["tasks"].items()
    }
    when = moment(time.time())
    plots = [_relative(path, directory) for path in facts["plots"]]
    with replace_file(directory / NAME, private=True) as stream:
        stream.write(
            json.dumps({"format": FORMAT, "when": when, "tasks": tasks, "plots": plots}, indent=2).encode(
                "ascii"
            )
        )


def last_evaluation(directory: Path | None, shown: Mapping[str, int]) -> dict[str, Any] | None:
    """What ``keep_evaluation`` has kept of the answers that are shown; None where there is nothing, or
    nothing that this version reads. ``shown``: the number of each task's view, 0 for what the model said
    itself. Figures of another view stay away: ``other_views`` has the view that they judge, by task.
    """
    if directory is None:
        return None
    try:
        found = json.loads((directory / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        return None
    views = {name: task.get("view") for name, task in found["tasks"].items()}
    others = {name: view for name, view in views.items() if view is not None and view != shown.get(name)}
    here = {name: task for name, task in found["tasks"].items() if name not in others}
    return {**found, "tasks": here, "plots": [] if others else found["plots"], "other_views": others}


def render_evaluation(kept: Mapping[str, Any] | None) -> list[str]:
    """Lines of Markdown."""
    if not kept:
        return []
    lines = ["## Evaluation", "", f"As of {escape(kept['when'])}, by `overnight evaluate`.", ""]
    for name, view in kept["other_views"].items():
        judged = f"view {view}" if view else "what the model said itself"
        lines += [f"{escape(name)}: {judged} was judged, which is not what is shown; evaluate it again.", ""]
    for name, found in kept["tasks"].items():
        lines += [
            f"### {escape(name)}",
            "",
            *_facts(found),
            "",
            "| figure | value | 95 % interval |",
            "| --- | --- | --- |",
        ]
        lines += [_figure(title, value) for title, value in found["headline"].items()]
        lines += ["", *answers_of(found["kind"]).report_evaluation_table(found)]
    for path in kept["plots"]:
        shown = escape(Path(path).stem.replace("-", " "))
        lines += [f"![{shown}]({path})" if _links(path) else f"plot: {escape(path)}", ""]
    return lines


def _facts(found: Mapping[str, Any]) -> list[str]:
    lines = answers_of(found["kind"]).report_evaluation(found)
    if found["left_out"]:
        lines.append(
            "- left out: "
            + escape(", ".join(f"{count:,} {reason}" for reason, count in found["left_out"].items()), 1000)
        )
    return lines + [f"- {escape(note, 1000)}" for note in found["notes"]]


def _figure(title: str, value: Mapping[str, Any]) -> str:
    return (
        f"| {escape(title.replace('_', ' '))} | {value['value']:.3f} | {value['low']:.3f} to "
        f"{value['high']:.3f} |"
    )


def _relative(path: str, directory: Path) -> str:
    place, here = Path(path).absolute(), directory.absolute()
    return place.relative_to(here).as_posix() if place.is_relative_to(here) else str(place)


def _links(path: str) -> bool:
    """Only what lies in the run directory under a plain name: a report that is sent elsewhere must not point
    outside.
    """
    return (
        not Path(path).is_absolute()
        and path.replace("/", "").replace("-", "").replace("_", "").replace(".", "").isalnum()
    )
