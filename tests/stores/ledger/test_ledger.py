from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.errors import JobChanged, LedgerError, UsageError
from pipeline.records import Decode, Document, EncodedPrompt, Failure, Generation, Origin, Outcome, Step
from pipeline.stores.ledger.ledger import Ledger
from tests.stores.ledger.ledgers import LONG, begun, document, documents, done, failed, job, read, reject


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def test_an_added_task_is_pending_everywhere_before_its_documents_are_read_again(path: Path) -> None:
    with Ledger.open(path, write=True) as ledger:
        run = begun(ledger, documents(5), job("topic"))
        ledger.accept_tasks([job("topic"), job("mood")], fork=False)
        assert ledger.status().tasks["mood"]["pending"] == 5
        assert {row.results["mood"].state for row in ledger.rows()} == {"pending"}
        read(ledger, run, documents(2), complete=False)  # as with --limit 2
        states = ledger.status().tasks
        assert (states["mood"]["pending"], states["topic"]["pending"]) == (5, 5)


def test_works_that_are_missing_after_a_complete_reading_are_an_error(path: Path) -> None:
    with Ledger.open(path, write=True) as ledger:
        begun(ledger, documents(5))
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("DELETE FROM work WHERE key = (SELECT min(key) FROM work)")
        raw.commit()
    with (
        Ledger.open(path, write=False) as ledger,
        pytest.raises(LedgerError, match="does not add up: task 'topic' knows 4 of 5 documents"),
    ):
        ledger.status()


def test_a_changed_task_is_refused_with_the_words_that_changed(path: Path) -> None:
    with Ledger.open(path, write=True) as ledger:
        begun(ledger, documents(1), job(words=LONG, labels=["a", "b"]))
        changed = job(words=LONG.replace("one word", "two words"), labels=["a", "c"])
        with pytest.raises(JobChanged) as refused:
            ledger.accept_tasks([changed], fork=False)
        message = str(refused.value)
        assert "task 'topic'" in message
        assert "instructions:" in message
        assert "- Answer in one word and nothing else." in message
        assert "+ Answer in two words and nothing else." in message
        assert "Read the report" not in message
        assert 'task.labels: ["a", "b"] → ["a", "c"]' in message
        assert "--fork" in message
        ledger.accept_tasks([job(words=LONG, labels=["a", "b"])], fork=False)


def test_a_refused_configuration_adds_none_of_its_tasks(path: Path) -> None:
    with Ledger.open(path, write=True) as ledger:
        begun(ledger, documents(1), job())
        with pytest.raises(JobChanged):
            ledger.accept_tasks([job("mood"), job(words="Otherwise?")], fork=False)
        assert [task.job.name for task in ledger.tasks()] == ["topic"]


def test_answers_come_back_with_the_version_that_they_belong_to(path: Path) -> None:
    first, second = job(words="Which?"), job(words="What?")
    with Ledger.open(path, write=True) as ledger:
        run = begun(ledger, [document("a")], first, job("mood"))
        ledger.finish(run, [done("topic", document("a").key, "world")])
        ledger.accept_tasks([second], fork=True)
        read(ledger, run, [document("a")])
        assert [task.job.name for task in ledger.tasks()] == ["topic", "mood"]
        assert next(ledger.rows()).results["topic"].state == "pending"
        ledger.finish(run, [done("topic", document("a").key, "sports")])
        ledger.accept_tasks([first], fork=False)
        assert next(ledger.rows()).results["topic"].value == "world"
        assert ledger.tasks()[0].version == 1


def test_a_task_over_fields_has_a_work_for_each_text_and_fields(path: Path) -> None:
    rows = [document("a", "same", year=1999), document("a", "same", year=2000), document("b")]
    over_fields = job(fields=("year",))
    with Ledger.open(path, write=True) as ledger:
        run = begun(ledger, rows, over_fields)
        status = ledger.status()
        assert (status.documents, status.duplicates, status.tasks["topic"]["pending"]) == (2, 1, 3)
        ledger.finish(
            run, [done("topic", over_fields.key(row), f"answer {index}") for index, row in enumerate(rows)]
        )
        assert [row.results["topic"].value for row in ledger.rows()] == ["answer 0", "answer 1", "answer 2"]


def test_an_edited_row_is_new_and_the_old_one_is_gone(path: Path) -> None:
    with Ledger.open(path, write=True) as ledger:
        run = begun(ledger, [document("a", "before"), document("b")])
        ledger.finish(run, [done("topic", document("a", "before").key)])
        read(ledger, run, [document("a", "after"), document("b")])
        assert [(row.input.id, row.results["topic"].state) for row in ledger.rows()] == [
            ("a", "pending"),
            ("b", "pending"),
        ]
        assert ledger.status().documents == 2


def test_finish_is_all_or_nothing(path: Path) -> None:
    a, b = document("a"), document("b")
    with Ledger.open(path, write=True) as ledger:
        run = begun(ledger, [a, b])
        ledger.finish(run, [done("topic", a.key)])
        with pytest.raises(LedgerError, match="already finished"):
            ledger.finish(run, [done("topic", b.key), done("topic", a.key)])
        assert [row.results["topic"].state for row in ledger.rows()] == ["done", "pending"]


def test_rejects_are_those_of_the_latest_reading_and_written_at_once(path: Path) -> None:
    with Ledger.open(path, write=True) as ledger:
        run = begun(ledger, documents(3))
        read(ledger, run, documents(3), [reject(1), reject(2)])
        inventory = ledger.start_inventory(run)
        inventory.enter([reject(9, "too many of them")])  # and then the run gives up, without finish
        assert [row["line"] for row in ledger.rejects()] == [9]
        assert ledger.status().rejected == 1


def test_lone_surrogates_and_nul_survive_everywhere(path: Path) -> None:
    broken = Document("id \udcff", "text \ud800", Origin("name \udcff.jsonl", 1), {"field": "\udc00"})
    with Ledger.open(path, write=True) as ledger:
        task = job(words="\ud800?", fields=("field",))
        run = begun(ledger, [broken], task)
        read(ledger, run, [broken], [reject(1, "bad \udcff \0")])
        ledger.finish(
            run,
            [
                Outcome(
                    "topic", task.key(broken), "failed", failure=Failure("broken", "\udfff \0", raw="\ud800")
                )
            ],
        )
        ledger.end_run(run, 3, "\ud800")
        row = next(ledger.rows())
        assert (row.input.id, row.input.file) == (r"id \udcff", r"name \udcff.jsonl")
        assert row.results["topic"].error == "broken: \\udfff \0"
        assert len(ledger.documents("id \udcff")) == 1


def test_covered_characters_are_the_union_of_the_spans_read(path: Path) -> None:
    text = "x" * 100
    with Ledger.open(path, write=True) as ledger:
        run = begun(ledger, [document("whole", text), document("hole", text), document("short", text)])
        spans = {"whole": [(0, 60), (40, 80), (80, 100)], "hole": [(0, 30), (10, 20), (50, 100)]}
        for name, read_spans in spans.items():
            key = document(name, text).key
            steps = [
                Step(f"map/{index}", EncodedPrompt((index,), 0, 1), Decode(5), span)
                for index, span in enumerate(read_spans)
            ]
            merged = Step("reduce/0/0", EncodedPrompt((9,), 0, 0), Decode(5))
            ledger.finish(
                run, [], [(("topic", key), step, Generation(1, (1, 2))) for step in [*steps, merged]]
            )
            assert ledger.replies("topic", key)[steps[0].key].token_ids == (1, 2)
            assert [step.span for step in ledger.steps("topic", key) if step.span] == read_spans
            ledger.finish(run, [done("topic", key, parts=len(read_spans))])
        ledger.finish(run, [done("topic", document("short", text).key)])
        assert {ledger.some_id(row["document_key"]): row["covered"] for row in ledger.results("topic")} == {
            "whole": 100,
            "hole": 80,
            "short": 100,
        }


def test_readers_keep_their_snapshot_while_the_writer_goes_on(path: Path) -> None:
    with Ledger.open(path, write=True) as writer:
        run = begun(writer, documents(1000))
        with Ledger.open(path, write=False) as reader:
            rows, works = reader.rows(), writer.results("topic")
            first = next(rows)
            assert next(works, None) is None
            writer.finish(run, [done("topic", row.key) for row in documents(1000)])
            assert first.results["topic"].state == "pending"
            assert {row.results["topic"].state for row in rows} == {"pending"}
            assert {row.results["topic"].state for row in reader.rows()} == {"done"}
            with pytest.raises(Exception, match="readonly"):
                reader.begin_run({})


def test_counts_add_up_whenever_a_reader_looks(path: Path) -> None:
    rows = documents(400)
    seen: list[int] = []
    stop = threading.Event()

    def look() -> None:
        with Ledger.open(path, write=False) as reader:
            while not stop.is_set():
                states = reader.status().tasks["topic"]
                assert sum(states.values()) == 400
                seen.append(states["done"] + states["failed"])
        seen.append(-1)

    with Ledger.open(path, write=True) as ledger:
        run = begun(ledger, rows)
        watcher = threading.Thread(target=look)
        watcher.start()
        for begin in range(0, 400, 8):
            batch = rows[begin : begin + 8]
            ledger.mark(run, [("topic", row.key) for row in batch])
            ledger.finish(
                run,
                [
                    done("topic", row.key) if row.origin.line % 3 else failed("topic", row.key)
                    for row in batch
                ],
            )
        stop.set()
        watcher.join()
    assert seen.pop() == -1  # the watcher ended without a failed assertion
    assert seen == sorted(seen)
    assert all(count % 8 == 0 for count in seen)  # never part of a batch


def test_facts_and_resolved_values_stay(path: Path) -> None:
    with Ledger.open(path, write=True) as ledger:
        run = ledger.begin_run({"pid": 1})
        ledger.annotate_run(run, loaded={"weights_bytes": 5})
        ledger.end_run(run, 75, "the deadline")
        assert ledger.resolve("dtype", "float32") == "float32"
    with Ledger.open(path, write=True) as ledger:
        assert ledger.resolve("dtype", "bfloat16") == "float32"
        assert ledger.resolved() == {"dtype": "float32"}
        (only,) = ledger.runs()
        assert (only["exit_code"], only["reason"], only["facts"]) == (
            75,
            "the deadline",
            {"pid": 1, "loaded": {"weights_bytes": 5}},
        )


def test_retry_of_a_task_that_is_not_there(path: Path) -> None:
    with Ledger.open(path, write=True) as ledger:
        begun(ledger, documents(1))
        with pytest.raises(UsageError, match="there is no task 'topics' in this run directory; it has topic"):
            ledger.retry(["topics"])


def test_no_ledger_is_a_users_mistake(path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a run directory: it has no ledger\.sqlite"):
        Ledger.open(path, write=False)
    assert not path.exists()


@pytest.mark.parametrize("write", [False, True])
def test_a_foreign_file_is_refused_and_left_as_it_is(path: Path, write: bool) -> None:
    path.write_bytes(b"not a database at all, but long enough to look like one" * 100)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="cannot be read as a ledger: file is not a database"):
        Ledger.open(path, write=write)
    assert path.read_bytes() == before


@pytest.mark.parametrize("write", [False, True])
def test_a_foreign_database_is_refused_and_left_as_it_is(path: Path, write: bool) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE meta (a)")
        raw.commit()
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"but not a ledger of ours; choose another run\.directory"):
        Ledger.open(path, write=write)
    assert path.read_bytes() == before


@pytest.mark.parametrize("write", [False, True])
def test_a_ledger_of_a_newer_version_is_refused(path: Path, write: bool) -> None:
    with Ledger.open(path, write=True):
        pass
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE meta SET value = '9' WHERE name = 'format'")
        raw.commit()
    with pytest.raises(
        UsageError,
        match=r"has format 9, written by .*, which reads formats 1 to 3\. Use .* or a later version",
    ):
        Ledger.open(path, write=write)


def test_every_commit_is_on_the_disk_before_it_counts(path: Path) -> None:
    with Ledger.open(path, write=True) as ledger, ledger._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2


def test_work_is_expected_until_all_that_was_read_is_finished(path: Path) -> None:
    rows = documents(2)
    with Ledger.open(path, write=True) as ledger:
        assert ledger.expects_work()  # nothing was ever read
        run = begun(ledger, rows)
        ledger.finish(run, [done("topic", rows[0].key)])
        assert ledger.expects_work()
        ledger.mark(run, [("topic", rows[1].key)])
        assert ledger.expects_work()
        ledger.finish(run, [failed("topic", rows[1].key)])
        assert not ledger.expects_work()
        read(ledger, run, rows, complete=False)
        assert ledger.expects_work()
        read(ledger, run, rows[:1])
        assert not ledger.expects_work()
        ledger.retry()
        assert not ledger.expects_work()  # what is to be tried again is gone from the source


def test_marking_and_finishing_many_at_once(path: Path) -> None:
    """More works than one statement takes, some of them twice, some already done."""
    rows = documents(1200)
    works = [("topic", row.key) for row in rows]
    with Ledger.open(path, write=True) as ledger:
        run = begun(ledger, rows)
        ledger.finish(run, [done("topic", rows[7].key)])
        assert ledger.mark(run, [*works, *works[:5]]) == [work for work in works if work != works[7]]
        assert ledger.mark(run, works) == []
        with pytest.raises(LedgerError, match="already finished"):
            ledger.finish(run, [done("topic", rows[0].key), done("topic", rows[0].key)])
        ledger.finish(run, [done("topic", row.key) for row in rows if row is not rows[7]])
        assert ledger.status().tasks["topic"]["done"] == 1200
        assert all(row["attempts"] == (row["key"] != rows[7].key) for row in ledger.results("topic"))
