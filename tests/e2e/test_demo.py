"""The demo as its configuration says it: the real model in 4-bit, both tasks, the export and the report."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.nights import ANight, no_process_left

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "demo.yaml"
LABELS = {"world", "sports", "business", "science"}
REPORTS = [
    json.loads(line) for line in (ROOT / "data" / "reports.jsonl").read_text(encoding="utf-8").splitlines()
]
SHORT = sorted(REPORTS, key=lambda row: len(row["text"]))


def demo(
    folder: Path, rows: list[dict[str, Any]], *overrides: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(export, report) of the demo's own configuration over ``rows``."""
    night = ANight(folder, rows, extra={"model": {"id": "smollm2-135m-instruct"}})
    places = (f"source.path={night.source}", f"run.directory={night.directory}")
    settings = [word for override in (*places, *overrides) for word in ("--set", override)]
    done = night.command("run", str(CONFIG), *settings, "--json", timeout=1500)
    assert done.returncode == 0, done.stderr
    told = night.status()
    assert not told.pop("run")["alive"]
    assert json.loads(done.stdout)["status"] == told
    assert no_process_left(folder)
    report = night.command("report", str(night.directory), "--json")
    assert report.returncode == 0, report.stderr
    return night.export(), json.loads(report.stdout)


def check_answers(exported: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    assert [row["id"] for row in exported] == [row["id"] for row in rows]
    for row in exported:
        assert row["topic_status"] == row["summary_status"] == "done", row
        assert row["topic_error"] is row["summary_error"] is None
        assert row["topic"] in LABELS
        assert set(row["topic_probabilities"]) == LABELS
        assert math.isclose(sum(row["topic_probabilities"].values()), 1, abs_tol=1e-6)
        assert (
            row["topic_probability"]
            == row["topic_probabilities"][row["topic"]]
            == max(row["topic_probabilities"].values())
        )
        assert len(row["summary"].split()) >= 5
        assert row["summary_finish_reason"] in ("stop", "length", "repetition")
    assert len({row["summary"] for row in exported}) == len(rows)


def check_loaded(report: dict[str, Any], placement: str) -> None:
    loaded, plan = report["loaded"], report["plan"]
    assert (loaded["linear4bit"], loaded["decoder_linears"]) == (210, 210)
    assert loaded["quantization"] == {"type": "nf4", "double_quantization": True, "compute_dtype": "float32"}
    assert 100e6 < loaded["weights_bytes"] <= 170e6
    assert sum(loaded["bytes_by_device"].values()) <= 170e6
    assert set(loaded["device_map"].values()) == set(loaded["bytes_by_device"])
    assert len(loaded["bytes_by_device"]) == 1  # the whole model on one device, whichever this machine has
    assert (plan["quantization"], plan["dtype"], plan["placement"]) == ("nf4", "float32", placement)
    assert report["inputs"]["complete"]
    for task in report["tasks"].values():
        assert list(task["placements"]) == [placement]


class Short(NamedTuple):
    rows: list[dict[str, Any]]
    tokens: int  # of a summary
    exported: list[dict[str, Any]]
    report: dict[str, Any]


@pytest.fixture(
    scope="module",
    params=[(3, 16), pytest.param((6, 32), marks=pytest.mark.full)],
    ids="{0[0]} reports".format,
)
def short(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, demo_model_folder: Path
) -> Short:
    """A night over so many of the shortest reports, with summaries of so many tokens."""
    count, tokens = request.param
    folder = tmp_path_factory.mktemp("short")
    return Short(
        SHORT[:count], tokens, *demo(folder, SHORT[:count], f"tasks.summary.max_output_tokens={tokens}")
    )


@pytest.mark.timeout(600)
def test_short_reports(short: Short) -> None:
    check_answers(short.exported, short.rows)
    check_loaded(short.report, "device")
    assert short.report["tasks"]["summary"]["tokens_out"] <= len(short.rows) * short.tokens


@pytest.mark.full
@pytest.mark.timeout(600)
def test_an_offloaded_cache_gives_the_same_answers(tmp_path: Path, short: Short) -> None:
    rows = short.rows[: 1 + len(short.rows) // 3]
    most = f"tasks.summary.max_output_tokens={short.tokens}"
    exported, report = demo(tmp_path, rows, most, "kv_cache.placement=offloaded")
    check_loaded(report, "offloaded")
    for row, other in zip(exported, short.exported[: len(rows)], strict=True):
        assert row["summary"] == other["summary"]
        assert row["topic"] == other["topic"]
        # score_tolerance, twice
        assert row["topic_probabilities"] == pytest.approx(other["topic_probabilities"], abs=2e-3)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_whole_demo(tmp_path: Path, demo_model_folder: Path) -> None:
    exported, report = demo(tmp_path, REPORTS)
    check_answers(exported, REPORTS)
    check_loaded(report, "device")
    for name in ("topic", "summary"):
        long = report["tasks"][name]["long_documents"]
        assert long["count"] == long["read_whole"] == 4
        assert report["tasks"][name]["tokens_dropped"] == 0
    assert {row["id"] for row in report["tasks"]["summary"]["long_documents"]["most_parts"]} == {
        row["id"] for row in REPORTS if len(row["text"]) > 10_000
    }
