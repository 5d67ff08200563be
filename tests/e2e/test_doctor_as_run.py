"""What a run is refused for, the doctor refuses: the same sentence, the same exit code, and nothing is made
or changed by being asked.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.doctor import Visit
from pipeline.config import load_config
from pipeline.errors import OvernightError
from pipeline.run.in_process_worker import in_process_workers
from pipeline.run.runner import run
from pipeline.system.run_directory import RunDirectory
from tests.cli.test_plan import a_model
from tests.engine.small_models import save_llama
from tests.nights import TASKS, ANight
from tests.tiers import quick

ROWS = [{"id": f"d{number}", "text": f"text {number}.", "year": 2000 + number} for number in range(3)]
LONG = "x" * 300
Prepare = Callable[[ANight], AbstractContextManager[object] | None]


def said_by_a_run(night: ANight, overrides: Sequence[str]) -> tuple[int, str]:
    try:
        result = run(load_config(night.config, overrides), workers=in_process_workers)
    except OvernightError as error:
        return error.exit_code, str(error)
    return result.exit_code, result.reason


def said_by_the_doctor(night: ANight, overrides: Sequence[str]) -> tuple[int, list[str]]:
    """The exit code, and all that stops, or that part cannot be read."""
    try:
        visit = Visit(load_config(night.config, overrides))
    except OvernightError as error:
        return error.exit_code, [str(error)]
    findings = list(visit.findings())
    levels = {"stop"} if visit.exit_code != 3 else {"warn"}
    return visit.exit_code, [finding.sentence for finding in findings if finding.level in levels]


def same(*sentences: str) -> list[str]:
    """Without what is free at the moment."""
    return [re.sub(r"^[0-9.,]+ \w+ (?=are free)", "", sentence) for sentence in sentences]


def lying_there(folder: Path) -> dict[str, bytes]:
    """Every file and folder below, with its content; SQLite may touch what only helps it to read."""
    helping = ("-shm", "-wal")
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"(a folder)"
        for path in folder.rglob("*")
        if not path.name.endswith(helping)
    }


# ── what can be wrong ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Case:
    """``code``: what both end with; ``words`` stand in the sentence; ``prepare`` makes it so."""

    code: int
    words: str
    overrides: tuple[str, ...] = ()
    prepare: Prepare = lambda _: None
    finished: bool = False


def source_is(text: str, name: str = "in.jsonl") -> Prepare:
    def write(night: ANight) -> None:
        (night.folder / name).write_text(text, encoding="utf-8")

    return write


def configured_with(*lines: str) -> Prepare:
    def write(night: ANight) -> None:
        night.config.write_text(night.config.read_text() + "\n".join(lines) + "\n")

    return write


def there_is(name: str, text: str | None = None) -> Prepare:
    """A file of that name in the run directory; a folder where there is no ``text``."""

    def make(night: ANight) -> None:
        place = night.directory / name
        if place.exists():
            place.unlink()
        if text is None:
            place.mkdir(parents=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)

    return make


def another_format(night: ANight) -> None:
    with closing(sqlite3.connect(night.directory / "ledger.sqlite")) as ledger, ledger:
        ledger.execute("UPDATE meta SET value = '99' WHERE name = 'format'")


def another_database(night: ANight) -> None:
    night.directory.mkdir()
    with closing(sqlite3.connect(night.directory / "ledger.sqlite")) as ledger, ledger:
        ledger.execute("CREATE TABLE mine (id)")


def a_folder_of(*names: str) -> Prepare:
    def make(night: ANight) -> None:
        for name in names:
            place = night.folder / "docs" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(b"caf\xe9" if "bad" in name else b'{"id": "a", "text": "b"}\n')

    return make


@contextmanager
def held(night: ANight) -> Iterator[None]:
    with RunDirectory(night.directory).locked():
        yield


@contextmanager
def without(package: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, package, None)  # how Python marks what must not be found
        yield


def a_small_model(night: ANight) -> None:
    save_llama(night.folder / "small")


def a_model_without_weights(night: ANight) -> None:
    a_model(night.folder / "bare")


def gold_of(*lines: str) -> Prepare:
    return source_is("\n".join(("id,label,text", *lines)) + "\n", "gold.csv")


CASES: dict[str, Case] = {
    # the configuration
    "unknown key": Case(2, "model.quantisation", ("model.quantisation=nf4",)),
    "wrong value": Case(2, "int3", ("model.quantization=int3",)),
    "idle key": Case(2, "source.subset", ("source.subset=en",)),
    "no time of day": Case(2, "run.deadline", ("run.deadline='25:00'",)),
    "key twice": Case(2, "stands twice", prepare=configured_with("run: {directory: elsewhere}")),
    "label twice": Case(2, "listed twice", ("tasks.topic.labels=[a, a]",)),
    "override without value": Case(2, "a.b=c", ("model.dtype",)),
    "no such kind": Case(2, "extract", ("tasks.topic.kind=extract",)),
    # tables
    "table of somebody else": Case(
        2,
        "is not an earlier export",
        ("run.output={folder}/mine.csv",),
        source_is("name,salary\nAda,1\n", "mine.csv"),
    ),
    "table over an input": Case(2, "it is an input of the run", ("run.output={source}",)),
    "table where nothing can be": Case(2, "/proc/nothere", ("run.output=/proc/nothere/t.csv",)),
    "table with a long name": Case(2, "too long", (f"run.output={{folder}}/{LONG}.csv",)),
    # the run directory
    "file in the way": Case(2, "a file is in the way", ("run.directory={source}",)),
    "below a file": Case(2, "a file is in the way", ("run.directory={source}/deeper/still",)),
    "directory where none can be": Case(2, "cannot create", ("run.directory=/proc/nothere/run",)),
    "directory with a long name": Case(2, "cannot create", (f"run.directory={{folder}}/a/{LONG}",)),
    "lock is a folder": Case(2, "cannot be used", prepare=there_is("lock")),
    "log is a folder": Case(2, "cannot be used", prepare=there_is("overnight.log"), finished=True),
    "held by another run": Case(75, "is in use by another run", prepare=held),
    "report is a folder": Case(2, "report.md: it is a folder", prepare=there_is("report.md")),
    "ledger is a text": Case(
        1, "cannot be read as a ledger", prepare=there_is("ledger.sqlite", "words " * 99)
    ),
    "ledger is another database": Case(2, "not a ledger of ours", prepare=another_database),
    "ledger of another version": Case(2, "has format 99", prepare=another_format, finished=True),
    "changed task": Case(2, "multi: false → true", ("tasks.topic.multi=true",), finished=True),
    "changed model": Case(2, "other questions", ("model.id=another",), finished=True),
    "two things wrong": Case(
        2, "a file is in the way", ("run.directory={source}", "source.path={folder}/gone.jsonl")
    ),
    # the model
    "no such backend": Case(2, "no backend that is installed", ("engine.backend=cloud",)),
    "backend that cannot be imported": Case(2, "cannot be opened", ("engine.backend=nowhere:Nothing",)),
    "model that is not there": Case(2, "model.id", ("engine.backend=auto", "model.id=nobody/has-this-model")),
    "model folder that is not there": Case(2, "model.id", ("engine.backend=auto", "model.id=/no/such")),
    "model without weights": Case(
        2, "safetensors", ("engine.backend=auto", "model.id={folder}/bare"), a_model_without_weights
    ),
    "model that does not fit": Case(
        2,
        "fit",
        (
            "engine.backend=auto",
            "model.id={folder}/small",
            "model.max_memory={{cpu: 1KiB}}",
            "model.quantization=int8",
            "model.context_tokens=128",
        ),
        a_small_model,
    ),
    "quantizer that is not there": Case(
        2,
        "bitsandbytes",
        (
            "engine.backend=auto",
            "model.id={folder}/small",
            "model.quantization=nf4",
            "model.context_tokens=128",
        ),
        lambda night: a_small_model(night) or without("bitsandbytes"),
    ),
    # the tasks
    "gold that is not there": Case(2, "gone.csv", ("tasks.topic.gold=gone.csv",)),
    "gold with other labels": Case(
        2, "does not have", ("tasks.topic.gold={folder}/gold.csv",), gold_of("d0,cooking,x")
    ),
    "gold that contradicts itself": Case(
        2, "different labels", ("tasks.topic.gold={folder}/gold.csv",), gold_of("d0,world,x", "d0,sports,x")
    ),
    "gold without what calibrates": Case(
        2,
        "needs sklearn",
        ("tasks.topic.gold={folder}/gold.csv",),
        lambda night: gold_of("d0,world,x")(night) or without("sklearn"),
    ),
    "examples that are not there": Case(2, "gone.csv", ("tasks.topic.examples=gone.csv",)),
    "examples with other labels": Case(
        2, "none of", ("tasks.topic.examples={folder}/gold.csv",), gold_of("d0,cooking,some text")
    ),
    "instructions that are no template": Case(2, "topic", ("tasks.topic.instructions={{{{ year",)),
    "instructions longer than the context": Case(
        2, "topic", ("model.context_tokens=128", f"tasks.topic.instructions={'Which? ' * 99}")
    ),
    # the source
    "no file": Case(2, "gone.jsonl", ("source.path={folder}/gone.jsonl",)),
    "no pattern": Case(2, "nothing is at", ("source.path={folder}/*.parquet",)),
    "no protocol": Case(2, "nope://", ("source.path=nope://bucket/x.jsonl",)),
    "no kind of file": Case(2, "holds no file that can be read", ("source.path={config}",)),
    "no split": Case(2, "source.split", ("source.split=validation",)),
    "no row": Case(2, "holds no document", prepare=source_is("")),
    "no row of a table": Case(
        2, "holds no document", ("source.path={folder}/t.csv",), source_is("id,text\n", "t.csv")
    ),
    "no readable text": Case(2, "not blank", prepare=source_is('{"id": "a", "text": " \\u200b"}\n')),
    "no good row": Case(2, "none of the 2 rows", prepare=source_is('{"id": "a"}\n[]\n')),
    "no such column": Case(2, "'body'", ("source.text_field=body",)),
    "no field of the instructions": Case(
        2, "name the field 'mood'", ("tasks.topic.instructions=In {{{{ mood }}}}?",)
    ),
    "too many bad rows": Case(
        2,
        "more than source.max_rejects = 1",
        ("source.max_rejects=1",),
        source_is('{"id": "a", "text": "b"}\n' + "nothing\n" * 3),
    ),
    "part cannot be read": Case(
        3, "1 file could not be read", ("source.path={folder}/docs",), a_folder_of("a.jsonl", "bad.parquet")
    ),
    # the machine
    "disk below its floor": Case(75, "run.keep_free_disk", ("run.keep_free_disk=9999TB",)),
    # nothing
    "nothing wrong": Case(0, "done"),
    "nothing wrong and nothing left to do": Case(0, "done", finished=True),
}
# one of each step in every tier
QUICK = (
    "unknown key",
    "table of somebody else",
    "held by another run",
    "ledger of another version",
    "changed task",
    "gold with other labels",
    "part cannot be read",
    "disk below its floor",
    "nothing wrong",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a night that is over."""
    night = ANight(tmp_path_factory.mktemp("finished"), ROWS, [TASKS[0]])
    assert said_by_a_run(night, ()) == (0, "done")
    return night.directory


@pytest.mark.parametrize("name", quick(CASES, *QUICK))
def test_the_doctor_says_what_a_run_says(
    tmp_path: Path, finished: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    case = CASES[name]
    night = ANight(tmp_path / "night", ROWS, [TASKS[0]])
    if case.finished:
        shutil.copytree(finished, night.directory)
    places = {"folder": night.folder, "source": night.source, "config": night.config}
    overrides = [one.format(**places) if "{" in one else one for one in case.overrides]
    with ExitStack() as stack:
        if (lasting := case.prepare(night)) is not None:
            stack.enter_context(lasting)
        before = lying_there(night.folder)
        code, sentences = said_by_the_doctor(night, overrides)
        assert lying_there(night.folder) == before
        told = said_by_a_run(night, overrides)
    assert case.words in told[1]
    assert (code, same(*sentences[:1])) == (told[0], same(told[1]) if case.code else [])
    assert code == case.code


def test_it_says_what_becomes_of_the_rows(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        *ROWS,
        ROWS[0],
        {"id": "d1", "text": "another text."},
        {"id": "void", "text": "\u200b"},
        {"id": "no text"},
        {"id": "no text either"},
    ]
    night = ANight(tmp_path, rows, [TASKS[0]])
    docs = night.folder / "docs"
    docs.mkdir()
    night.source.rename(docs / "rows.jsonl")
    (docs / "README.md").write_text("About it.")
    (docs / "table.xlsx").write_text("")
    visit = Visit(load_config(night.config, [f"source.path={docs}"]))
    said = [finding.sentence for finding in visit.findings() if finding.name == "source"]
    assert visit.exit_code == 0
    where = f"{docs}/rows.jsonl, line"
    assert said == [
        (
            f"{docs}: the files of records are read, not what lies beside them (README.md); name those "
            f"themselves to have them read, too"
        ),
        f"{docs}: 1 file left out by the ending of the name: .xlsx (1)",
        (
            f"2 rows rejected: first {where} 7: the text field 'text' is missing; correct the row, or set "
            f"source.id_field and source.text_field"
        ),
        f"1 document skipped, with nothing to read: {where} 6",
        "1 row repeated, id and text: each document is asked about once",
        "1 id stands for several texts, each of which is asked; gold labels cannot tell which: 'd1' (2)",
        "5 documents in 1 file; the first is 'd0', 7 characters",
    ]
    counts = run(
        load_config(night.config, [f"source.path={docs}"]), workers=in_process_workers
    ).status.to_json()
    assert (counts["documents"], counts["rejected"], counts["duplicates"]) == (5, 2, 1)
    assert counts["tasks"]["topic"]["skipped"] == 1
