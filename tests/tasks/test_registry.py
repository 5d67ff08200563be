"""Kinds of task are known to the registry and to nobody else. A kind in one file goes its whole way in
``tests/flows/test_toy_kind.py``.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.config import parse_config
from pipeline.errors import ConfigError
from pipeline.tasks import registry
from pipeline.tasks.registry import answers_of, broken_kinds, columns_of, kind_of, kinds
from tests.structure import kinds_named, read_modules

THEIR_OWN = {
    # labels: their views, gold labels, calibration, review
    "pipeline/results/calibrate/configured.py",
    "pipeline/results/gold_store.py",
    "pipeline/results/label_view.py",
    "pipeline/results/review.py",
    # how labels and summaries are judged
    "pipeline/results/evaluate/figures.py",
    "pipeline/results/evaluate/labels.py",
    "pipeline/results/evaluate/summaries.py",
    # scripts that start the flow of one kind
    "flows/label.py",
    "flows/summarize.py",
}
"""Files of a kind besides ``pipeline/tasks/KIND`` and ``pipeline/results/kinds/KIND*``."""


def test_no_module_names_a_kind_but_its_own_files_and_the_registry() -> None:
    named = [
        f"{at.path}:{at.line} {at.text}" for at in kinds_named(read_modules()) if at.path not in THEIR_OWN
    ]
    assert not named


def test_what_is_a_kinds_own_is_there() -> None:
    assert {module.path for module in read_modules()} >= THEIR_OWN


def test_ours_are_whole() -> None:
    assert list(kinds())[:2] == ["summarize", "label"]
    for name, kind in kinds().items():
        assert kind.name == name == kind.section.model_fields["kind"].annotation.__args__[0]  # type: ignore[union-attr]
        assert answers_of(name).judged_by is not None
        assert [column.ending[0] for column in columns_of(name)] == ["_"] * len(kind.columns)
        assert all(field.description for field in kind.section.model_fields.values())


def test_an_unknown_kind_is_a_sentence_and_its_answers_are_texts() -> None:
    with pytest.raises(ConfigError, match="no kind of task 'extract' here; there are summarize, label"):
        kind_of("extract")
    assert columns_of("extract") == ()
    assert answers_of("extract").judged_by is None


_SECTION = """
from pipeline.config import TaskSection
from pipeline.tasks.registry import TaskKind
class Section(TaskSection):
    kind: Literal["{of}"] = Field(description="gives something")
KIND = TaskKind("{name}", {section}, {build}, "Give something")
"""


def a_kind(of: str = "extract", name: str = "extract", section: str = "Section", build: str = "print") -> str:
    top = "from typing import Literal\nfrom pydantic import Field\n"
    return top + _SECTION.format(of=of, name=name, section=section, build=build)


def install(folder: Path, package: str, points: str) -> None:
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[overnight.kinds]\n{points}\n", encoding="utf-8")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for packages, which a fresh registry finds."""
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    monkeypatch.setattr(registry, "_known", {})
    monkeypatch.setattr(registry, "_broken", {})
    yield tmp_path
    sys.modules.pop("a_kind", None)


@pytest.mark.parametrize(
    ("point", "module", "said"),
    [
        ("label = json:loads", "", "'label' of theirs has the name of one of our own"),
        ("extract = no_such_module:KIND", "", "cannot be loaded: ModuleNotFoundError"),
        ("extract = json:loads", "", "json:loads is no TaskKind of that name"),
        ("extract = a_kind:KIND", "raise SystemExit(7)", "cannot be loaded: SystemExit"),
        ("extract = a_kind:KIND", "KIND = (", "cannot be loaded: SyntaxError"),
        ("extract = a_kind:KIND", a_kind(name="other"), "no TaskKind of that name"),
        ("extract = a_kind:KIND", a_kind(of="label"), "no TaskKind of that name"),
        ("extract = a_kind:KIND", a_kind(section="dict"), "no TaskKind of that name"),
        ("extract = a_kind:KIND", a_kind(build="None"), "no TaskKind of that name"),
        ("../extract = a_kind:KIND", a_kind(of="../extract", name="../extract"), "no TaskKind of that name"),
        (
            "extract = a_kind:KIND\nmore = a_kind:KIND",
            a_kind(),
            "'more' of theirs: a_kind:KIND is no TaskKind",
        ),
    ],
)
def test_an_installed_kind_that_cannot_be_used_hinders_only_who_asks_for_it(
    point: str, module: str, said: str, packages: Path
) -> None:
    install(packages, "theirs", point)
    (packages / "a_kind.py").write_text(module, encoding="utf-8")
    assert {"summarize", "label"} <= set(kinds())
    ((name, reason),) = broken_kinds().items()
    assert said in reason
    if name != "label":
        with pytest.raises(ConfigError, match=re.escape(said)):
            kind_of(name)
    assert answers_of("extract").judged_by is None  # what it answered before is still shown, as texts


def test_a_name_of_two_packages_is_neither_ones(packages: Path) -> None:
    install(packages, "first", "extract = a_kind:KIND")
    install(packages, "second", "extract = a_kind:KIND")
    (packages / "a_kind.py").write_text(a_kind(), encoding="utf-8")
    assert "has the name of another package's" in broken_kinds()["extract"]
    assert "extract" not in kinds()


def test_a_whole_one_is_there(packages: Path) -> None:
    install(packages, "theirs", "extract = a_kind:KIND")
    (packages / "a_kind.py").write_text(a_kind(), encoding="utf-8")
    assert kind_of("extract").does == "Give something"
    assert not broken_kinds()


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"name": "x", "kind": "extract"}, r"tasks\[0\]: there is no kind of task 'extract' here; there are"),
        ({"name": "x"}, r"tasks\[0\]: the key kind is required; there are summarize, label"),
        ({"name": "x", "kind": "broken"}, r"tasks\[0\]: the kind is broken"),
    ],
)
def test_a_configuration_is_told_why_there_is_no_such_kind(
    task: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry._broken, "broken", "the kind is broken")
    with pytest.raises(ConfigError, match=said):
        parse_config(
            {"model": {"id": "m"}, "source": {"path": "p"}, "run": {"directory": "r"}, "tasks": [task]}
        )
