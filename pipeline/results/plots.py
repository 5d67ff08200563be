"""Plots of an evaluation as PNG or SVG: reliability, coverage and accuracy, confusion. Drawn without a
screen.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import UsageError
from pipeline.quality.scores import extra
from pipeline.system.atomic_write import replace_file
from pipeline.system.escape import fold
from pipeline.system.writable import check_writable, written_later

FORMATS = ("png", "svg")
_NAMED_LABELS = 40
_COUNTED_LABELS = 16
_NAME_CHARACTERS = 24


def require_plots(folder: Path, plot_format: str) -> None:
    """Refuse before any work what could not be drawn, or not be written, at its end. Raises UsageError,
    StoppedEarly where the disk is full.
    """
    if plot_format not in FORMATS:
        raise UsageError(f"plots cannot be written as {plot_format!r}: choose one of {', '.join(FORMATS)}")
    extra("matplotlib")
    check_writable(folder / f"plot.{plot_format}")


def draw(facts: Mapping[str, Mapping[str, Any]], folder: Path, plot_format: str = "png") -> list[Path]:
    """Plots of every evaluated label task whose answers were judged one by one; returns their files. Raises
    StoppedEarly.
    """
    written = []
    for name, found in facts.items():
        for title, paint in _PLOTS.items():
            if _NEEDS[title] in found:
                path = folder / f"{name}-{title}.{plot_format}"
                _save(paint, name, found, path, plot_format)
                written.append(path)
    return written


def _save(
    paint: Callable[[Any, Mapping[str, Any]], None],
    name: str,
    found: Mapping[str, Any],
    path: Path,
    plot_format: str,
) -> None:
    def titled(axes: Any) -> None:
        paint(axes, found)
        axes.set_title(f"{name}: {axes.get_title()}", parse_math=False)

    save_plot(titled, path, plot_format)


def save_plot(paint: Callable[[Any], None], path: Path, plot_format: str) -> None:
    """One figure, with what ``paint`` draws on its axes, in a folder that is made for it. Raises
    StoppedEarly.
    """
    # a figure of its own has no window
    figure = extra("matplotlib.figure").Figure(figsize=(6, 5), layout="constrained")
    paint(figure.add_subplot())
    with warnings.catch_warnings(), written_later(path, "the same command"):
        # a label in a script that the font lacks is drawn as boxes
        warnings.filterwarnings("ignore", message="Glyph")
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as stream:
            figure.savefig(
                stream, format=plot_format, dpi=150, metadata={"Date": None} if plot_format == "svg" else None
            )


def _reliability(axes: Any, found: Mapping[str, Any]) -> None:
    bins = found["reliability"]
    axes.plot([0, 1], [0, 1], color="0.7", linestyle="--", label="perfect")
    axes.plot(
        [one["confidence"] for one in bins], [one["accuracy"] for one in bins], marker="o", label="answers"
    )
    for one in bins:
        axes.annotate(
            f"{one['count']:,}",
            (one["confidence"], one["accuracy"]),
            textcoords="offset points",
            xytext=(5, -10),
            fontsize=7,
        )
    error = found["headline"]["calibration_error"]["value"]
    axes.set(xlabel="probability of the label", ylabel="share that is right", xlim=(0, 1), ylim=(0, 1.02))
    axes.set_title(f"reliability, calibration error {error:.3f}")
    axes.legend(loc="upper left")


def _coverage(axes: Any, found: Mapping[str, Any]) -> None:
    curve = found["coverage_curve"]
    axes.plot(
        [point["coverage"] for point in curve], [point["accuracy"] for point in curve], drawstyle="steps-pre"
    )
    if found["abstained"] and found["answered"]:
        named = "answered_exact_match" if found["multi"] else "answered_accuracy"
        right, coverage = found["headline"][named]["value"], found["answered"] / found["judged"]
        axes.plot([coverage], [right], marker="o", color="tab:red", linestyle="none", label="as answered")
        axes.legend(loc="lower left")
    axes.set(
        xlabel="share of documents answered",
        ylabel="share of the answers that is right",
        xlim=(0, 1),
        ylim=(0, 1.02),
    )
    axes.set_title("accuracy when the least certain are left out")


def _confusion(axes: Any, found: Mapping[str, Any]) -> None:
    table, names = found["confusion"], [fold(label, _NAME_CHARACTERS) for label in found["labels"]]
    axes.imshow(
        [[count / max(1, sum(row)) for count in row] for row in table],
        cmap="Blues",
        vmin=0,
        vmax=1,
        aspect="auto",
    )
    if len(names) <= _NAMED_LABELS:
        axes.set_xticks(range(len(names) + 1), [*names, "(none)"], rotation=90, fontsize=7, parse_math=False)
        axes.set_yticks(range(len(names)), names, fontsize=7, parse_math=False)
    if len(names) <= _COUNTED_LABELS:
        for row, counts in enumerate(table):
            for column, count in enumerate(counts):
                colour = "white" if count > sum(counts) / 2 else "black"
                axes.text(column, row, f"{count:,}", ha="center", va="center", fontsize=7, color=colour)
    axes.set(xlabel="answer", ylabel="gold label")
    axes.set_title("confusion")


_NEEDS = {"reliability": "reliability", "coverage": "coverage_curve", "confusion": "confusion"}
"""The figures that a plot is drawn from; an evaluation that lacks them, of several labels or of summaries,
has no such plot.
"""

_PLOTS: Mapping[str, Callable[[Any, Mapping[str, Any]], None]] = {
    "reliability": _reliability,
    "coverage": _coverage,
    "confusion": _confusion,
}
