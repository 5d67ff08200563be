"""What persisted caches save, what they cost when nobody comes back, and by how much the smaller formats
change answers.

``OVERNIGHT_BENCH_DOCUMENTS`` sets how many documents take part.
"""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.nights import ANight

pytestmark = [pytest.mark.bench, pytest.mark.timeout(7200)]

COUNT = int(os.environ.get("OVERNIGHT_BENCH_DOCUMENTS", "40"))
TURNS = 5
CHARACTERS = 9_000  # of these texts, about 2,000 tokens
ROOT = Path(__file__).parents[2]
FIRST: dict[str, Any] = {
    "name": "topic",
    "kind": "label",
    "labels": ["world", "sports", "business", "science"],
}
SECOND: dict[str, Any] = {
    "name": "tone",
    "kind": "label",
    "instructions": "Is the text good or bad news?",
    "labels": ["good news", "bad news"],
}
FORMATS = ("fp16", "bf16", "int8", "int4")


def long_rows() -> list[dict[str, Any]]:
    """Reports one after the other, each document with a different one first."""
    reports = [
        json.loads(line)["text"]
        for line in (ROOT / "data" / "reports.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    rows = []
    for number in range(COUNT):
        turned = reports[number % len(reports) :] + reports[: number % len(reports)]
        rows.append(
            {
                "id": f"d{number:03}",
                "text": f"Collection {number}.\n\n" + "\n\n".join(turned)[: CHARACTERS + 20 * (number % 7)],
            }
        )
    return rows


def a_night(folder: Path, tasks: list[dict[str, Any]], **store: Any) -> ANight:
    extra = {
        "model": {
            "id": "smollm2-135m-instruct",
            "quantization": "none",
            "dtype": "float32",
            "context_tokens": 4096,
        },
        "generation": {"layout": "document_first"},
        "engine": {},
        "kv_cache": {"store": store},
    }
    return ANight(folder, long_rows(), tasks=tasks, extra=extra)


def night(
    folder: Path, tasks: list[dict[str, Any]], **store: Any
) -> tuple[float, dict[str, Any], list[dict[str, Any]]]:
    """Seconds from the loaded model to the last answer, the report, the answers."""
    made = a_night(folder, tasks, **store)
    done = made.run(timeout=3600)
    assert done.returncode == 0, done.stderr
    report = json.loads((made.directory / "report.json").read_text(encoding="utf-8"))
    return report["waiting"]["seconds"], report, made.export()


def test_the_second_question(tmp_path: Path, demo_model_folder: Path) -> None:
    first_seconds, first, _ = night(tmp_path / "on", [FIRST], documents="always")
    second_seconds, second, found = night(tmp_path / "on", [FIRST, SECOND], documents="always")
    _, _, plain = night(tmp_path / "plain", [FIRST, SECOND], quota=0)
    share = second_seconds / first_seconds
    print(
        f"{COUNT} documents: first task {first_seconds:.1f} s, second {second_seconds:.1f} s ({share:.3f} "
        f"of it); {second['store']}"
    )
    assert first["store"]["stored"] >= COUNT
    assert second["store"]["loaded"] >= COUNT
    for ours, theirs in zip(found, plain, strict=True):
        for name in ("topic", "tone"):
            assert ours[name] == theirs[name]
            assert ours[f"{name}_probabilities"] == pytest.approx(theirs[f"{name}_probabilities"], abs=2e-3)
    assert share <= 0.15


@pytest.mark.parametrize("documents", ["auto", "always"])
def test_a_store_that_is_never_hit(documents: str, tmp_path: Path, demo_model_folder: Path) -> None:
    """auto: one task, so there is nothing to store; always: all is stored, and nobody comes back for it."""
    ratios = []
    for turn in range(TURNS):
        off_seconds, _, _ = night(tmp_path / f"off{turn}", [FIRST], quota=0)
        on_seconds, report, _ = night(tmp_path / f"on{turn}", [FIRST], documents=documents)
        ratios.append(on_seconds / off_seconds)
        assert report["store"]["loaded"] == 0
        assert (report["store"]["stored"] >= COUNT) == (documents == "always")
        print(f"{documents}: {off_seconds:.1f} s without a store, {on_seconds:.1f} s with ({ratios[-1]:.3f})")
    assert statistics.median(ratios) <= 1.05


def test_formats_drift(tmp_path: Path, demo_model_folder: Path) -> None:
    """Labels and texts from caches in each format beside those from caches as they were computed."""
    text = {"name": "sum", "kind": "summarize", "max_output_tokens": 48}
    _, _, exact = night(tmp_path / "exact", [FIRST, SECOND, text], quota=0)
    for name in FORMATS:
        night(tmp_path / name, [FIRST], documents="always", format=name)
        _, report, found = night(tmp_path / name, [FIRST, SECOND, text], documents="always", format=name)
        labels = sum(ours["tone"] == theirs["tone"] for ours, theirs in zip(found, exact, strict=True))
        texts = sum(ours["sum"] == theirs["sum"] for ours, theirs in zip(found, exact, strict=True))
        moved = max(
            abs(ours["tone_probabilities"][label] - theirs["tone_probabilities"][label])
            for ours, theirs in zip(found, exact, strict=True)
            for label in SECOND["labels"]
        )
        tokens = report["store"]["loaded_tokens"]
        print(
            f"{name}: {labels / COUNT:.1%} of labels, {texts / COUNT:.1%} of texts the same, "
            f"probabilities moved by at most {moved:.4f}, "
            f"{report['store']['loaded_bytes'] / tokens / 1024:.1f} KiB a token"
        )
        assert report["store"]["loaded"] >= COUNT
