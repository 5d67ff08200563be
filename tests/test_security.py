"""What configuration, data and models could do if they meant harm. Each line of the list has its test, here
or where it is named:

safetensors only, no code from a model repository: tests/engine/model/test_loading.py; sandboxed templates:
tests/tasks/test_summarize.py; control tokens: tests/engine/model/test_tokenizer.py and
tests/e2e/test_control_tokens.py; spreadsheet formulas: tests/results/test_export.py; Markdown and HTML:
tests/system/test_escape.py, tests/results/test_report.py and below.
"""

from __future__ import annotations

import ast
import html.parser
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.night import reports
from pipeline.config import parse_config
from pipeline.errors import ConfigError
from tests.nights import ANight, documents

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*(ROOT / "pipeline").rglob("*.py"), *(ROOT / "flows").rglob("*.py")])
# Modules and functions that turn bytes or text into code or objects, and ways to start a shell.
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "torch.load",
    "yaml.load",
    "yaml.full_load",
    "yaml.unsafe_load",
    "os.system",
    "os.popen",
    "numpy.load",
    "np.load",
    "tempfile.mktemp",
}
HOSTILE = [
    "<script>alert(1)</script>",
    "[click](javascript:alert(1))",
    "![x](http://evil.example/p.png)",
    "http://evil.example/",
    "| a | fake | row |\n| --- | --- | --- |",
    "</td></tr></table><h1>done</h1>",
    "# heading\n\n**Complete.**",
    "`code` <!-- comment -->",
]


def _calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func)
            for keyword in node.keywords:
                if keyword.arg == "shell" and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                ):
                    yield node.lineno, "shell="
                if (
                    keyword.arg == "trust_remote_code"
                    and isinstance(keyword.value, ast.Constant)
                    and keyword.value.value
                ):
                    yield node.lineno, "trust_remote_code=True"


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module.split(".")[0]


def _dangers(source: str) -> list[str]:
    tree = ast.parse(source)
    found = [f"line {line}: import {name}" for line, name in _imports(tree) if name in FORBIDDEN_MODULES]
    bad = FORBIDDEN_CALLS | {"shell=", "trust_remote_code=True"}
    return found + [f"line {line}: {name}" for line, name in _calls(tree) if name in bad]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_unpickled_or_run(path: Path) -> None:
    assert _dangers(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from dill import loads",
        "torch.load(path)",
        "eval(text)",
        "yaml.load(text)",
        "run(command, shell=True)",
    ],
)
def test_a_danger_would_be_noticed(source: str) -> None:
    assert len(_dangers(source)) == 1


def test_no_code_of_a_model_unless_asked_for() -> None:
    minimal = {
        "model": {"id": "m"},
        "source": {"path": "x"},
        "tasks": [{"name": "t", "kind": "summarize"}],
        "run": {"directory": "r"},
    }
    assert parse_config(minimal).model.trust_remote_code is False


@pytest.mark.parametrize("name", ["../../x", "a/b", "..", "a\0b", "a b", "", "x" * 65, "id"])
def test_task_names_cannot_become_paths_or_columns(name: str) -> None:
    raw = {
        "model": {"id": "m"},
        "source": {"path": "x"},
        "tasks": [{"name": name, "kind": "summarize"}],
        "run": {"directory": "r"},
    }
    with pytest.raises(ConfigError, match="name"):
        parse_config(raw)


def _tree(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> ANight:
    """A finished night over documents whose ids, texts and failures mean harm."""
    folder = tmp_path_factory.mktemp("hostile")
    ids = ["../../escape", "/etc/passwd", "..\\..\\x", "a\0b", "-rf", "$(touch x)", *HOSTILE]
    rows = [
        {"id": name, "text": f"{name} POISON" if number % 2 else f"{name} text"}
        for number, name in enumerate(ids)
    ]
    night = ANight(folder, [*rows, *documents(2)], script={"faults": [{"text": "POISON", "do": "raise"}]})
    before = os.umask(0o022)
    try:
        night.directory.mkdir(mode=0o755)  # made by somebody who did not think of it
        assert night.run().returncode == 3
    finally:
        os.umask(before)
    return night


def test_a_run_writes_in_its_own_directory_only(hostile: ANight) -> None:
    outside = {path for path in _tree(hostile.folder) if path.parts[0] != "run"}
    assert outside <= {Path("in.jsonl"), Path("config.yaml"), Path("out.jsonl")}
    names = {path.name for path in _tree(hostile.directory)}
    assert not any("escape" in name or "passwd" in name or "touch" in name for name in names)


def test_files_of_a_run_are_the_users_own_even_in_an_open_folder(hostile: ANight) -> None:
    open_to_others = {
        path.name: oct(stat.S_IMODE(path.stat().st_mode))
        for path in hostile.directory.iterdir()
        if path.stat().st_mode & 0o077 and path.is_file()
    }
    assert open_to_others == {}


def test_ids_come_back_as_they_were(hostile: ANight) -> None:
    assert [row["id"] for row in hostile.export()] == [row["id"] for row in hostile.rows]


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)

    def handle_comment(self, data: str) -> None:
        self.found.append("comment")


def test_neither_the_report_nor_the_artifact_of_a_flow_holds_what_documents_inject(hostile: ANight) -> None:
    written = (hostile.directory / "report.md").read_text(encoding="utf-8")
    assert written.count("escape") >= 1  # it does speak of them
    for markdown in (
        written,
        *reports(str(hostile.directory), [task["name"] for task in hostile.tasks]).values(),
    ):  # the artifact is this text and nothing else
        tags = _Tags()
        tags.feed(markdown)
        assert tags.found == []
        assert not re.search(r"(?<!\\)\]\(|(?<!\\)<|http://evil|(?<!\\)\| fake", markdown)
        assert not any(line.startswith(("# heading", "<")) for line in markdown.splitlines())


def test_the_facts_are_plain_json(hostile: ANight) -> None:
    facts = json.loads((hostile.directory / "report.json").read_text(encoding="ascii"))
    assert facts["inputs"]["documents"] == len(hostile.rows)
