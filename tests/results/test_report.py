from __future__ import annotations

import itertools
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from pipeline.records import Answer, Decode, EncodedPrompt, Failure, Generation, Outcome, Step
from pipeline.results.report import build_report, render_markdown, write_report
from pipeline.results.report.tasks import Reasons
from pipeline.stores.ledger.ledger import Ledger
from tests.stores.ledger.ledgers import begun, document, documents, done, failed, job, read, reject

SUMMARY = job("summary", kind="summarize")
EVIL = "x\n# h\n| a | b |\n<script>alert(1)</script> [l](http://evil.example) ![i](x) `c` **b**"


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    with Ledger.open(tmp_path / "ledger.sqlite", write=True) as opened:
        yield opened


def _sections(markdown: str) -> dict[str, str]:
    """Text below each heading."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in markdown.splitlines():
        if line.startswith("#"):
            name = line.lstrip("# ")
        found.setdefault(name, []).append(line)
    return {title: "\n".join(lines) for title, lines in found.items()}


def test_counts_and_sums_are_those_of_the_outcomes(ledger: Ledger) -> None:
    rows = [*documents(6), document("empty", " ")]
    run = begun(ledger, [*rows, rows[0]], job(), SUMMARY)
    keys = [row.key for row in rows]
    ledger.mark(run, [("topic", key) for key in keys[:5]])
    ledger.finish(
        run,
        [
            done("topic", keys[0], "world", probabilities={"world": 1.0, "sports": 0.0}, seconds=2.0),
            done(
                "topic",
                keys[1],
                "sports",
                probabilities={"sports": 0.55},
                seconds=1.0,
                placement="offloaded",
                batch_rows=4,
            ),
            done(
                "topic",
                keys[2],
                None,
                finish_reason="abstained",
                probabilities={"world": 0.5, "sports": 0.5},
                seconds=1.0,
            ),
            failed("topic", keys[3], message="no room for 1,234 tokens in 'a'"),
            failed("topic", keys[4], "quarantined", "no room for 99 tokens in 'b'"),
            done(
                "summary",
                keys[0],
                "s",
                finish_reason="length",
                tokens_in=100,
                tokens_out=20,
                tokens_dropped=7,
                notes=("folded",),
            ),
            done("summary", keys[1], "s", finish_reason="repetition", tokens_in=50, tokens_out=30),
        ],
    )
    report = build_report(ledger)
    assert report["inputs"] | {"clashes": []} == {
        "documents": 7,
        "rejected": 0,
        "duplicates": 1,
        "clashing_ids": 0,
        "clashes": [],
        "read_completely": True,
        "complete": False,
    }
    topic, summary = report["tasks"]["topic"], report["tasks"]["summary"]
    assert topic["states"] == {
        "pending": 1,
        "running": 0,
        "done": 3,
        "failed": 1,
        "quarantined": 1,
        "skipped": 1,
    }
    assert topic["working_seconds"] == 4.0
    assert topic["tokens_per_second"] == 3 * 12 / 4
    assert topic["documents_per_hour"] == 3 * 3600 / 4
    assert topic["finish_reasons"] == {"stop": 2, "abstained": 1}
    assert topic["placements"] == {"device": 4, "offloaded": 1}
    assert topic["largest_batch_rows"] == 4
    assert topic["labels"]["distribution"] == {"world": 1, "sports": 1}
    assert (topic["labels"]["abstained"], topic["labels"]["confidence_by_tenths"]) == (
        1,
        [0, 0, 0, 0, 0, 2, 0, 0, 0, 1],
    )
    assert topic["labels"]["mean_confidence"] == pytest.approx((1 + 0.55 + 0.5) / 3)
    assert topic["failures"]["by_reason"] == [{"reason": "broken: no room for … tokens in …", "count": 2}]
    assert {(row["id"], row["state"], row["attempts"]) for row in topic["failures"]["first"]} == {
        ("d000003", "failed", 1),
        ("d000004", "quarantined", 1),
    }
    assert topic["slowest"][0]["id"] == "d000000"
    assert (
        summary["tokens_in"],
        summary["tokens_out"],
        summary["tokens_dropped"],
        summary["documents_cut"],
    ) == (150, 50, 7, 1)
    assert summary["notes"] == {"folded": 1}
    assert "labels" not in summary
    text = render_markdown(report)
    assert "7 documents" in text
    assert "1 rows repeat an id and its text exactly" in text
    assert "finish reason length: 1 (**cut off at max_output_tokens: worth a look**)" in text
    assert "finish reason repetition: 1 (**" in text
    assert "**7 tokens of 1 documents were left out**" in text
    assert "KV cache placement offloaded: 1 documents" in text
    assert "Mean confidence 0.683" in text


def test_several_labels_are_counted_one_by_one(ledger: Ledger) -> None:
    rows = documents(3)
    run = begun(ledger, rows, job(multi=True))
    answers = [["a", "b"], ["a"], []]
    odds = [{"a": 0.9, "b": 0.8}, {"a": 0.9, "b": 0.1}, {"a": 0.4, "b": 0.0}]
    ledger.finish(
        run,
        [
            done("topic", row.key, answer, probabilities=odd)
            for row, answer, odd in zip(rows, answers, odds, strict=True)
        ],
    )
    labels = build_report(ledger)["tasks"]["topic"]["labels"]
    assert labels["distribution"] == {"a": 2, "b": 1}
    assert (labels["none_of_them"], labels["abstained"]) == (1, 0)
    assert labels["mean_confidence"] == pytest.approx((0.8 + 0.9 + 0.6) / 3)


def test_no_documents_are_said_loudly(ledger: Ledger) -> None:
    run = begun(ledger, [])
    assert "**NO DOCUMENTS WERE READ." in render_markdown(build_report(ledger))
    read(ledger, run, documents(1))
    assert "NO DOCUMENTS" not in render_markdown(build_report(ledger))


def test_a_ledger_that_has_seen_nothing_yet_can_be_told(ledger: Ledger) -> None:
    assert "NO DOCUMENTS" in render_markdown(build_report(ledger))


def test_rejects_are_counted_by_reason_and_the_first_are_shown(ledger: Ledger, tmp_path: Path) -> None:
    run = begun(ledger, documents(1))
    rejects = [
        reject(line, f"the text at byte {line} is {'null' if line % 3 else 'a number'}")
        for line in range(1, 31)
    ]
    read(ledger, run, documents(1), rejects)
    report = build_report(ledger)
    assert report["rejects"]["by_reason"] == [
        {"reason": "the text at byte … is null", "count": 20},
        {"reason": "the text at byte … is a number", "count": 10},
    ]
    assert [row["line"] for row in report["rejects"]["first"]] == list(range(1, 21))
    assert "| in.jsonl:20 | 200 | the text at byte 20 is null |" in render_markdown(report)
    write_report(ledger, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert lines[29] == {
        "file": "in.jsonl",
        "line": 30,
        "offset": 300,
        "reason": "the text at byte 30 is a number",
        "excerpt": "12",
    }
    assert len(lines) == 30


def test_clashing_ids_are_named(ledger: Ledger) -> None:
    begun(ledger, [document("a", "one"), document("a", "two"), document("b"), document("b")])
    report = build_report(ledger)
    assert report["inputs"]["clashing_ids"] == 1
    assert report["inputs"]["clashes"] == [{"id": "a", "texts": 2}]
    assert "  - a: 2 texts" in render_markdown(report)


@pytest.mark.parametrize(
    ("last", "words"),
    [(100, "1 of 1 documents in parts were read whole."), (90, "**Only 0 of 1 documents in parts")],
)
def test_a_document_in_parts_shows_what_was_read_of_it(ledger: Ledger, last: int, words: str) -> None:
    row = document("long", "x" * 100)
    run = begun(ledger, [row], SUMMARY)
    steps = [
        Step(f"map/{start}", EncodedPrompt((start,), 0, 1), Decode(5), (start, end))
        for start, end in ((0, 50), (40, last))
    ]
    ledger.finish(run, [], [(("summary", row.key), step, Generation(0)) for step in steps])
    ledger.finish(run, [done("summary", row.key, "s", parts=2, probabilities=None)])
    report = build_report(ledger)
    assert report["tasks"]["summary"]["long_documents"]["most_parts"] == [
        {"id": "long", "parts": 2, "characters": 100, "covered": last}
    ]
    text = _sections(render_markdown(report))["Long documents"]
    assert words in text
    assert f"| long | 2 | {last} of 100 |" in text


def test_the_slowest_come_first_and_only_ten(ledger: Ledger) -> None:
    rows = documents(50)
    run = begun(ledger, rows)
    ledger.finish(
        run, [done("topic", row.key, seconds=float((index * 7) % 50)) for index, row in enumerate(rows)]
    )
    assert [row["seconds"] for row in build_report(ledger)["tasks"]["topic"]["slowest"]] == [
        float(second) for second in range(49, 39, -1)
    ]


def test_plan_and_machine_are_those_of_the_last_run_that_loaded(ledger: Ledger) -> None:
    first = ledger.begin_run(
        {
            "plan": {"dtype": "float32"},
            "versions": {"torch": "1.0"},
            "model": {"id": "m"},
            "notes": ["said once"],
        }
    )
    ledger.annotate_run(first, loaded={"device_map": {"": "cpu"}, "weights_bytes": 1234567})
    ledger.annotate_run(first, waiting={"seconds": 600.0, "waited_seconds": 3.0})
    ledger.end_run(first, 75, "the deadline 07:00 has passed")
    second = ledger.begin_run(
        {"plan": {"dtype": "bfloat16"}, "versions": {"torch": "2.0"}, "model": {"id": "m"}, "notes": []}
    )
    report = build_report(ledger)
    assert report["plan"] == {"dtype": "float32"}
    assert report["versions"] == {"torch": "1.0"}
    assert [(run["exit_code"], run["reason"]) for run in report["runs"]] == [
        (75, "the deadline 07:00 has passed"),
        (None, None),
    ]
    text = render_markdown(report)
    assert "**A run is going on, or was cut off without a word.**" in text
    assert "- weights_bytes: 1,234,567" in text
    assert "The loaded model waited for work 0.5% of 10 min." in text
    assert "- said once" in text
    ledger.end_run(second, 75, "a signal")
    assert "The last run ended early: a signal (exit code 75)." in render_markdown(build_report(ledger))


def test_what_the_plan_rests_on_and_what_the_first_minutes_made_of_it(ledger: Ledger) -> None:
    run = ledger.begin_run({})
    speeds = "measured with this model by overnight bench, 2026-12-01 01:00:00"
    forecast = {"quantities": {"work": 3600.0}, "documents": 10, "sampled": 5, "speeds": speeds}
    ledger.annotate_run(run, loaded={}, waiting={"seconds": 7200.0, "waited_seconds": 1.0}, forecast=forecast)
    ledger.end_run(run, 0, "done")
    assert f"Speeds {speeds}; lengths by a sample of 5 documents.\n" in render_markdown(build_report(ledger))
    pace = {"after_seconds": 120.0, "planned_seconds": 3600.0, "expected_seconds": 6540.0}
    ledger.annotate_run(run, forecast={**forecast, "busy_cores": 1.5}, pace=pace)
    text = render_markdown(build_report(ledger))
    assert "; planned while other programs used 1.5 of " in text
    assert "By the pace of its first 2 min the work takes 1 h 49 min; the plan said 60 min." in text


def test_what_a_cache_gave_is_no_reading_speed(ledger: Ledger) -> None:
    """Two documents of 1,000 tokens in ten seconds; of the second all but 10 were in the store."""
    rows = documents(2)
    run = begun(ledger, rows)
    keys = [row.key for row in rows]
    ledger.mark(run, [("topic", key) for key in keys])
    answer = Answer("world", "stop", tokens_in=1000, tokens_out=5)
    outcomes = [
        Outcome("topic", key, "done", answer, seconds=seconds, read_tokens=read)
        for key, seconds, read in zip(keys, (9.0, 1.0), (1000, 10), strict=True)
    ]
    ledger.finish(run, outcomes)
    report = build_report(ledger)
    task = report["tasks"]["topic"]
    assert (task["tokens_in"], task["tokens_computed"]) == (2000, 1010)
    assert task["tokens_per_second"] == pytest.approx(102)
    assert "2,000 tokens read (990 of them from caches or earlier attempts), 10 written" in render_markdown(
        report
    )


def test_whatever_others_wrote_stays_text(ledger: Ledger, tmp_path: Path) -> None:
    rows = [document(EVIL, "one"), document(EVIL, "two"), document("ok")]
    run = begun(ledger, rows, job(multi=True))
    broken = Outcome("topic", rows[0].key, "failed", failure=Failure("k|" + EVIL, EVIL))
    fine = done(
        "topic",
        rows[1].key,
        [EVIL],
        probabilities={EVIL: 0.9},
        finish_reason=EVIL,
        notes=(EVIL,),
        placement=EVIL,
        parts=2,
    )
    ledger.finish(run, [broken, fine])
    ledger.annotate_run(
        run,
        plan={EVIL: EVIL},
        loaded={"map": {EVIL: EVIL}},
        notes=[EVIL],
        versions={"torch": EVIL},
        model={"id": EVIL},
    )
    read(ledger, run, rows, [reject(1, EVIL)])
    ledger.end_run(run, 1, EVIL)
    write_report(ledger, tmp_path)
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    tokens = parser.parse((tmp_path / "report.md").read_text(encoding="utf-8"))
    kinds = {token.type for token in tokens} | {
        child.type for token in tokens for child in token.children or []
    }
    assert not kinds & {
        "link_open",
        "image",
        "html_inline",
        "html_block",
        "code_inline",
        "fence",
        "code_block",
        "blockquote_open",
    }
    headings = [after.content for token, after in itertools.pairwise(tokens) if token.type == "heading_open"]
    assert "h" not in headings
    assert len(headings) == 9
    widths = [sum(token.type == "td_open" for token in row) for row in _table_rows(tokens)]
    assert set(widths) <= {2, 3, 5, 6}


def _table_rows(tokens: list[Any]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for token in tokens:
        if token.type == "tr_open":
            rows.append([])
        elif rows:
            rows[-1].append(token)
    return [row for row in rows if any(token.type == "td_open" for token in row)]


def test_files_are_private_plain_and_without_nan(ledger: Ledger, tmp_path: Path) -> None:
    row = document("a \ud800")
    run = begun(ledger, [row])
    ledger.finish(run, [done("topic", row.key, "\udfff", probabilities={"\udfff": float("nan")})])
    write_report(ledger, tmp_path)
    for name in ("report.md", "report.json", "rejects.jsonl"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600

    def refuse(word: str) -> None:
        raise AssertionError(word)

    facts = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert facts["tasks"]["topic"]["labels"]["mean_confidence"] is None
    assert "1 done" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_reasons_do_not_grow_without_end() -> None:
    reasons = Reasons()
    for number in range(1000):
        reasons.add("kind " + "abcdefghij"[number % 10] * (number + 1))
    listed = reasons.listed()
    assert len(listed) == 201
    assert listed[0]["reason"] == "(other reasons)"
    assert sum(item["count"] for item in listed) == 1000


def test_a_report_while_a_reader_holds_the_ledger_open_for_reading_only(
    ledger: Ledger, tmp_path: Path
) -> None:
    run = begun(ledger, documents(3))
    with Ledger.open(tmp_path / "ledger.sqlite", write=False) as reader:
        before = build_report(reader)
        ledger.finish(run, [done("topic", row.key) for row in documents(3)])
        assert (
            before["tasks"]["topic"]["states"]["done"],
            build_report(reader)["tasks"]["topic"]["states"]["done"],
        ) == (0, 3)
