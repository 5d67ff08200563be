"""A kind of task in one file, this one: how many words a text has, as the scripted model tells it. It is
found by an entry point, as an installed package is, and goes through everything that a kind goes through.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import Field

from pipeline.config import SourceConfig, TaskSection, parse_config
from pipeline.errors import ConfigError, DocumentFailed
from pipeline.prompts import fits
from pipeline.records import Answer, Document, Step, TaskJob
from pipeline.sources import Valued, read_values
from pipeline.tasks import Setting, Work
from pipeline.tasks.answers import Answers, Column, ColumnType, Counts, Judge, Wanted
from pipeline.tasks.base import definition
from pipeline.tasks.registry import TaskKind, kinds, registered
from tests.flows.serving import ROOT, Server, Serving, done_count, wait_for
from tests.nights import ANight, documents, no_process_left

pytestmark = pytest.mark.timeout(400)


# ── the kind ────────────────────────────────────────────────────────────────────────────────────────────────


class WordsTask(TaskSection):
    """Count the words of every document."""

    kind: Literal["words"]
    max_output_tokens: int = Field(100, ge=1, description="the most tokens an answer may take")

    @property
    def most_new_tokens(self) -> int:
        return self.max_output_tokens


class Words:
    """Asks how many; whatever number the model writes is the answer."""

    notes: tuple[str, ...] = ()

    def __init__(self, config: WordsTask, setting: Setting, shared: dict[str, Any]) -> None:
        self._config, self._setting = config, setting
        self.job = TaskJob(config.name, "words", {**shared, "task": definition(config)})
        self._frame = setting.frames.build("How many words has this text?", "Words:", config.system)

    def work(self, document: Document) -> Work:
        room = self._frame.room(self._setting.context_tokens, self._config.max_output_tokens)
        ids = fits(self._setting.tokenizer, document.text, room)
        if ids is None:
            raise DocumentFailed("too_long", "this kind reads no parts")
        ask = self._setting.decode(document, "whole", self._config.max_output_tokens)
        replies = yield [Step("whole", self._frame.around(ids), ask, (0, len(document.text)))]
        found = re.search(r"of (\d+) tokens", self._setting.tokenizer.decode(replies[0].token_ids))
        if found is None:
            raise DocumentFailed("no_number", "the model wrote no number")
        return Answer(found[1], "stop", tokens_in=len(ids), tokens_out=len(replies[0].token_ids))


class WordCounts(Counts):
    def __init__(self) -> None:
        self._sum = 0

    def add(self, row: Mapping[str, Any]) -> None:
        self._sum += int(row["value"])

    def facts(self) -> dict[str, Any]:
        return {"words": self._sum}


class WordsAnswers(Answers):
    judged_by: ClassVar[Wanted | None] = "gold"

    def answer_type(self, task: object) -> ColumnType:
        return "integer"

    def answer(self, result: Any) -> int | None:
        return None if result.value is None else int(result.value)

    def cells(self, result: Any) -> Sequence[Any]:
        return (None if result.value is None else int(result.value) % 2 == 0,)

    def counts(self) -> WordCounts:
        return WordCounts()

    def report_lines(self, facts: Mapping[str, Any]) -> list[str]:
        return [f"- {facts['words']:,} words in all"]

    def report_section(self, facts: Mapping[str, Any]) -> list[str]:
        return ["### Words", "", f"As many as {facts['words']:,}.", ""]

    def story(self, ledger: Any, task: Any, key: str, result: Mapping[str, Any] | None) -> dict[str, Any]:
        return {"counted": None if result is None else int(result["value"])}

    def story_lines(self, story: Mapping[str, Any]) -> list[str]:
        return [f"counted: {story['counted']}"] if "counted" in story else []

    def evaluate(self, ledger: Any, task: Any, judge: Judge) -> dict[str, Any]:
        config = SourceConfig(path=[str(path) for path in judge.paths], text_field=judge.field)
        gold = {row.id: row.value for row in read_values(config) if isinstance(row, Valued)}
        rows = [row for row in ledger.rows() if row.input.id in gold]
        right = [row.results[task.job.name].value == str(gold[row.input.id]) for row in rows]
        share = {"value": sum(right) / len(right), "low": None, "high": None}
        return {
            "kind": "words",
            "judged": len(right),
            "left_out": {},
            "notes": [],
            "headline": {"right": share | {"low": 0.0, "high": 1.0}},
        }

    def evaluation_heading(self, found: Mapping[str, Any]) -> list[str]:
        return [f"{found['judged']} word counts compared"]


KIND = TaskKind(
    name="words",
    section=WordsTask,
    build=Words,
    does="Count the words of every document",
    writes_text=True,
    columns=(Column("_even", "yes or no"),),
    answers=WordsAnswers(),
)


# ── the tests ───────────────────────────────────────────────────────────────────────────────────────────────

TASKS: list[dict[str, Any]] = [
    {"name": "count", "kind": "words"},
    {"name": "topic", "kind": "label", "labels": ["world", "sports"]},
]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip leaves a package: a folder that names its entry points, for every process that is started."""
    info = tmp_path / "packages" / "toy_kind-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-kind\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[overnight.kinds]\nwords = {__name__}:KIND\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(info.parent))))


class Installed(ANight):
    """A night whose processes find the package, too."""

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "PYTHONPATH": os.environ["PYTHONPATH"]}


def a_night(folder: Path, count: int = 12, seconds: float = 0.0) -> Installed:
    return Installed(folder, documents(count, longest=6), tasks=TASKS, script={"seconds": seconds})


def out_of(night: ANight, *arguments: str) -> str:
    done = night.command(*arguments)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.mark.full
def test_it_goes_the_whole_way(installed: None, tmp_path: Path) -> None:
    night = a_night(tmp_path / "night", count=30, seconds=0.1)
    assert "task count: 1.0 requests a document" in out_of(night, "plan", str(night.config))
    killed = night.start("run", str(night.config))
    wait_for(lambda: done_count(night, "count") >= 3)
    killed.kill()
    killed.communicate(timeout=60)
    assert no_process_left(night.directory)
    assert 3 <= done_count(night, "count") < 30
    night.script = {}
    assert night.run().returncode == 0
    rows = night.export()
    columns = ["count", "count_status", "count_error", "count_finish_reason", "count_even"]
    assert list(rows[0])[:6] == ["id", *columns]
    assert all(row["count"] > 0 and row["count_even"] == (row["count"] % 2 == 0) for row in rows)
    report = (night.directory / "report.md").read_text(encoding="utf-8")
    assert f"- {sum(row['count'] for row in rows):,} words in all" in report
    assert "### Words" in report
    told = out_of(night, "show", str(night.directory), "d0003")
    assert f"counted: {rows[3]['count']}" in told
    _is_judged(night, rows)
    _has_a_schema(night, tmp_path)


def _is_judged(night: ANight, rows: list[dict[str, Any]]) -> None:
    gold = night.folder / "gold.jsonl"
    wrong = [{"id": row["id"], "label": row["count"] + (number < 3)} for number, row in enumerate(rows)]
    gold.write_text("".join(json.dumps(row) + "\n" for row in wrong), encoding="utf-8")
    lines = out_of(night, "evaluate", str(night.directory), "--gold", str(gold), "--task", "count")
    assert "30 word counts compared" in lines
    assert "right             0.900" in lines
    report = (night.directory / "report.md").read_text(encoding="utf-8")
    assert "| right | 0.900 | 0.000 to 1.000 |" in report


def _has_a_schema(night: ANight, folder: Path) -> None:
    import pyarrow.parquet as pq

    out_of(night, "export", str(night.directory), "--output", str(folder / "o.parquet"))
    schema = {field.name: str(field.type) for field in pq.read_schema(folder / "o.parquet")}
    assert (schema["count"], schema["count_even"]) == ("int64", "bool")


@pytest.mark.full
def test_its_flow_is_served_beside_ours(installed: None, server: Server, tmp_path: Path) -> None:
    night = a_night(tmp_path / "night")
    with Serving(server, night) as serving:
        assert [command[-1] for command in serving.printed_commands()] == [
            "summarize/overnight",
            "label/overnight",
            "words/overnight",
        ]
        run = serving.ask_for("words")
        assert server.wait_ended(run) == ("COMPLETED", "Completed"), serving.output
    assert done_count(night, "count") == 12
    assert "words in all" in server.artifacts(run)["words-report"]["data"]


def test_without_it_the_run_is_still_shown(installed: None, tmp_path: Path, monkeypatch: Any) -> None:
    night = a_night(tmp_path / "night", count=3)
    assert night.run().returncode == 0
    gold = tmp_path / "gold.jsonl"
    gold.write_text('{"id": "d0001", "label": 3}\n', encoding="utf-8")
    out_of(night, "evaluate", str(night.directory), "--gold", str(gold), "--task", "count")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    rows = night.export()
    assert all(row["count"].isdigit() and "count_even" not in row for row in rows)
    report = out_of(night, "report", str(night.directory))
    assert "3 done" in report
    assert "| right | 0.000 |" in report  # judged while it was there
    refused = night.run()
    assert refused.returncode == 2
    assert "there is no kind of task 'words' here" in refused.stderr


def test_a_registered_kind_is_a_kind_as_long_as_it_lasts() -> None:
    raw = {
        "model": {"id": "m"},
        "source": {"path": "a.jsonl"},
        "tasks": [{"name": "n", "kind": "words"}],
        "run": {"directory": "runs/x"},
    }
    before = list(kinds())
    with registered(KIND):
        assert isinstance(parse_config(raw).tasks[0], WordsTask)
        taken = [*raw["tasks"], {"name": "n_even", "kind": "words"}]  # type: ignore[misc]
        with pytest.raises(ConfigError, match="n_even is taken"):
            parse_config({**raw, "tasks": taken})
    assert list(kinds()) == before
    with pytest.raises(ConfigError, match="there is no kind of task 'words' here"):
        parse_config(raw)
