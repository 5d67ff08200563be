"""Sources that are edited at random between the runs over them: files of several formats, what is done to
them, and what runs over them must then say.

A story is plain data, so that a failing one can be shrunk and kept: numbers in it are taken modulo what there
is to choose from.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import Config, SourceConfig, parse_config
from pipeline.errors import EXIT_USAGE, SourceError
from pipeline.records import Document, Origin
from pipeline.results.export import export
from pipeline.run.in_process_worker import in_process_workers
from pipeline.run.runner import run
from pipeline.sources import read_source
from pipeline.stores.ledger.ledger import Ledger
from tests.nights import SCRIPTED

FORMATS = ("jsonl", "csv", "parquet", "txt", "jsonl.gz")
EDITS = (
    "add row",
    "edit row",
    "remove row",
    "repeat row",
    "blank row",
    "spoil row",
    "reverse rows",
    "add file",
    "remove file",
    "rename file",
    "empty file",
    "damage file",
    "repair file",
)
ACTIONS = ("whole", "limit", "kill")
TASKS: list[dict[str, Any]] = [
    {"name": "topic", "kind": "label", "labels": ["world", "sports"], "calibration": "none"},
    {"name": "summary", "kind": "summarize", "max_output_tokens": 40},
]
Row = dict[str, Any]


class Step(NamedTuple):
    """Edits, each a kind with three numbers that say of what, and the run that follows, with its number."""

    edits: list[tuple[str, int, int, int]]
    action: str
    number: int = 0


class Story(NamedTuple):
    """The formats of the first files with their rows, and what then happens."""

    files: list[tuple[str, int]]
    steps: list[Step]


@dataclass
class AFile:
    """A file as its owner sees it: its rows are there also while it is damaged. ``damage`` from 1 to 100 says
    how much of it is left, in per cent.
    """

    format: str
    rows: list[tuple[str, str]] = field(default_factory=list)
    damage: int | None = None
    spoiled: set[int] = field(default_factory=set)

    def written(self, name: str) -> bytes:
        """Its bytes on the disk."""
        whole = _WRITERS[self.format](self)
        if self.damage is None:
            return whole
        if self.format in ("jsonl.gz", "parquet"):
            return whole[: len(whole) * self.damage // 100]
        return b"caf\xe9 " + whole if self.format == "txt" else whole.decode().encode("utf-16")


def _jsonl(file: AFile) -> bytes:
    lines = [
        "{not json" if at in file.spoiled else json.dumps({"id": name, "text": text})
        for at, (name, text) in enumerate(file.rows)
    ]
    return "".join(line + "\n" for line in lines).encode()


def _csv(file: AFile) -> bytes:
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["id", "text"])
    for at, row in enumerate(file.rows):
        table.writerow([*row, "one too many"] if at in file.spoiled else row)
    return text.getvalue().encode()


def _parquet(file: AFile) -> bytes:
    data = io.BytesIO()
    texts = [None if at in file.spoiled else text for at, (_, text) in enumerate(file.rows)]
    columns = {"id": [name for name, _ in file.rows], "text": texts}
    pq.write_table(pa.table(columns, pa.schema([("id", pa.string()), ("text", pa.string())])), data)
    return data.getvalue()


_WRITERS: dict[str, Callable[[AFile], bytes]] = {
    "jsonl": _jsonl,
    "csv": _csv,
    "parquet": _parquet,
    "txt": lambda file: file.rows[0][1].encode() if file.rows else b"",
    "jsonl.gz": lambda file: gzip.compress(_jsonl(file), mtime=0),
}


class Source:
    """The files of a folder while they are edited. ``reversed`` are names of those whose rows lie in another
    order than when they were last read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, AFile] = {}
        self.reversed: set[str] = set()
        self._numbers = 0
        self.config = SourceConfig(path=str(folder))
        folder.mkdir()

    def add(self, format_: str, rows: int) -> None:
        """A file with so many new rows; a text has one."""
        self._numbers += 1
        name = f"f{self._numbers % 7}{self._numbers:02}.{format_}"  # not sorted by age
        self.files[name] = AFile(format_, [self._row(name) for _ in range(1 if format_ == "txt" else rows)])

    def _row(self, name: str) -> tuple[str, str]:
        self._numbers += 1
        return (name if name.endswith(".txt") else f"r{self._numbers}", self._text())

    def _text(self) -> str:
        self._numbers += 1
        return f"Text {self._numbers} of the matter."

    def write(self) -> None:
        """Let the disk be as the files are."""
        for path in self.folder.iterdir():
            if path.name not in self.files:
                path.unlink()
        for name, file in self.files.items():
            (self.folder / name).write_bytes(file.written(name))

    def edit(self, kind: str, which: int, place: int, other: int) -> None:
        """One of EDITS; where there is nothing that it could be done to, nothing."""
        if kind == "add file":
            self.add(FORMATS[which % len(FORMATS)], place % 4)
            return
        if not self.files:
            return
        name = sorted(self.files)[which % len(self.files)]
        file = self.files[name]
        if kind == "remove file":
            del self.files[name]
        elif kind == "rename file" and file.format != "txt":
            self._numbers += 1
            self.files[f"f{other % 10}{self._numbers:02}.{file.format}"] = self.files.pop(name)
        elif kind in ("damage file", "repair file"):
            file.damage = 1 + other % 100 if kind == "damage file" else None
        elif kind == "reverse rows":
            file.rows.reverse()
            file.spoiled.clear()
            self.reversed.add(name)
        elif kind == "empty file" and file.format != "txt":
            file.rows.clear()
        else:
            self._edit_row(name, file, kind, place, other)

    def _edit_row(self, name: str, file: AFile, kind: str, place: int, other: int) -> None:
        if kind == "add row" and file.format != "txt":
            file.rows.insert(place % (len(file.rows) + 1), self._row(name))
        if not file.rows:
            return
        at = place % len(file.rows)
        if kind == "edit row":
            file.rows[at] = (file.rows[at][0], self._text())
        elif kind == "blank row":
            file.rows[at] = (file.rows[at][0], " ")
        elif kind == "remove row" and file.format != "txt":
            del file.rows[at]
        elif kind == "spoil row" and file.format != "txt":
            file.spoiled ^= {at}
        elif kind == "repeat row":
            target = sorted(self.files)[other % len(self.files)]
            if self.files[target].format != "txt" and file.format != "txt":
                self.files[target].rows.append(file.rows[at])

    def texts(self) -> list[str]:
        """Those of all rows, in order."""
        return [text for _, file in sorted(self.files.items()) for _, text in file.rows]


@dataclass(frozen=True)
class End:
    """How a run ended, and what there was then: its exit code, the bytes of the last export, its rows, and
    what the ledger has.
    """

    code: int
    exported: bytes
    rows: list[Row]
    known: list[tuple[str, str, str, str | None]]  # file, id, document key, why it was not seen


class Nights:
    """Runs over one source in one run directory, in this process."""

    def __init__(self, source: Path, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._output = folder / "out.jsonl"
        self._config = configured(source, folder)

    def run(self, limit: int | None = None, kill_at: str | None = None) -> End:
        """Run to the end, or until the model is asked about ``kill_at``, and export as the program does."""
        if kill_at is not None and (killed := self._killed(kill_at)):
            return self._end(killed)
        try:
            code = run(self._config, limit=limit, workers=in_process_workers).exit_code
        except SourceError as error:
            if "run again" in str(error) or "same command" in str(error):
                raise
            return self._end(EXIT_USAGE, export_too=False)
        return self._end(code)

    def _killed(self, text: str) -> int:
        """Minus the signal that ended a run at ``text``, in a process of its own; 0 if it was not met."""
        pid = os.fork()
        if not pid:
            try:
                os.environ["OVERNIGHT_SCRIPT"] = json.dumps({"faults": [{"text": text, "do": "kill"}]})
                run(self._config, workers=in_process_workers)
            finally:
                os._exit(0)
        return min(0, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def _end(self, code: int, *, export_too: bool = True) -> End:
        known = []
        with Ledger.open(self._folder / "run" / "ledger.sqlite", write=False) as ledger:
            if export_too:
                export(ledger, self._output)
            for row in ledger.rows():
                place = Path(row.input.file).name
                known.append((place, row.input.id, row.input.document_key, row.input.unread))
            assert (code == 0) <= ledger.status().complete or ledger.status().limited
        exported = self._output.read_bytes() if self._output.exists() else b""
        return End(code, exported, [json.loads(line) for line in exported.splitlines()], known)

    def answers_given(self) -> list[int]:
        """How often each work was answered."""
        with (
            Ledger.open(self._folder / "run" / "ledger.sqlite", write=False) as ledger,
            ledger._reading() as c,
        ):
            query = "SELECT count(*) FROM attempts WHERE outcome = 'done' GROUP BY task_id, key"
            return list(c.exec_driver_sql(query).scalars())


def configured(source: Path, folder: Path) -> Config:
    """The configuration of a scripted model over a folder of documents."""
    return parse_config(
        {
            "model": {"id": "scripted", "quantization": "none"},
            "source": {"path": str(source)},
            "tasks": TASKS,
            "engine": {"backend": SCRIPTED, "batch_rows": 2},
            "run": {"directory": str(folder / "run")},
        }
    )


def told(story: Story, folder: Path) -> None:
    """Act a story out, and hold what each run of it says against a run that never knew anything else."""
    source = Source(folder / "docs")
    for format_, rows in story.files:
        source.add(format_, rows)
    ours, before = Nights(source.folder, folder / "ours"), End(0, b"", [], [])
    for number, step in enumerate(story.steps):
        for edit in step.edits:
            source.edit(*edit)
        source.write()
        limit = 1 + step.number % 8 if step.action == "limit" else None
        texts = source.texts()
        kill_at = texts[step.number % len(texts)] if step.action == "kill" and texts else None
        end = ours.run(limit, kill_at)
        fresh = Nights(source.folder, folder / f"fresh{number}").run(limit)
        Judgement(source, before, end, fresh, limit).hold()
        before = end
        source.reversed.clear()
    assert set(ours.answers_given()) <= {1}


@dataclass(frozen=True)
class Judgement:
    """What a run said, after what was known ``before``, beside a fresh one."""

    source: Source
    before: End
    end: End
    fresh: End
    limit: int | None

    def hold(self) -> None:
        """Raise AssertionError where a run said what it should not have said."""
        if self.fresh.code == EXIT_USAGE:
            assert self.end.code == EXIT_USAGE
            assert (self.end.exported, self.end.known) == (self.before.exported, self.before.known)
            return
        killed = self.end.code == -signal.SIGKILL
        assert killed or self.end.code == self.fresh.code
        seen = [row for row in self.end.rows if not row.pop("not_read", None)]
        assert [row["id"] for row in seen] == [row["id"] for row in self.fresh.rows]
        for row, expected in zip(seen, self.fresh.rows, strict=True):
            for task in ("topic", "summary"):
                if killed and row[f"{task}_status"] in ("pending", "running"):
                    continue
                named = [name for name in expected if name.startswith(task)]
                assert [row[name] for name in named] == [expected[name] for name in named]
        self._unseen()

    def _unseen(self) -> None:
        """Rows that were not seen are those of before that lay where nobody could look."""
        unseen = [row for row in self.end.known if row[3] is not None]
        known = [row[:3] for row in self.before.known]
        for name, identity, key, why in unseen:
            assert (name, identity, key) in known
            file = self.source.files[name]
            if why == "left out":
                assert self.limit is not None
                assert name >= self._stopped_in()
            else:
                assert file.damage is not None
        for name, identity, key in self._must_stay():
            assert (name, identity, key) in [row[:3] for row in self.end.known]

    def _must_stay(self) -> Iterator[tuple[str, str, str]]:
        """Answered rows of before that their owner has left in a file that cannot be read now."""
        answered = {row["id"] for row in self.before.rows if row["topic_status"] == "done"}
        for name, identity, key, _ in self.before.known:
            file = self.source.files.get(name)
            if file is None or file.damage is None or name in self.source.reversed or self.limit is not None:
                continue
            there = {(one, Document(one, text, Origin(name, 1)).key) for one, text in file.rows}
            if identity in answered and (identity, key) in there:
                yield name, identity, key

    def _stopped_in(self) -> str:
        """The file of the first document that a limited run left out; after all of them where none was."""
        documents = (item for item in read_source(self.source.config) if isinstance(item, Document))
        left_out = next(itertools.islice(documents, self.limit, None), None)
        return "~" if left_out is None else Path(left_out.origin.file).name
