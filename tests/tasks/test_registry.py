"""Kinds of task are known to the registry and to nobody else. A kind in one file goes its whole way in
``tests/flows/test_toy_kind.py``.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.tasks.registry import answers_of, columns_of, kind_of, kinds
from tests.structure import kinds_named, read_modules

THEIR_OWN = {
    # labels: their views, gold labels, calibration, review
    "pipeline/results/calibrate.py",
    "pipeline/results/gold.py",
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


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ("label = json:loads", "has the name of one of our own"),
        ("extract = no_such_module:KIND", "cannot be loaded: ModuleNotFoundError"),
        ("extract = json:loads", "json:loads is no TaskKind of that name"),
    ],
)
def test_an_installed_kind_that_is_none_is_a_sentence(
    point: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "bad_kind-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-kind\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[overnight.kinds]\n{point}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    registry = importlib.import_module("pipeline.tasks.registry")
    monkeypatch.setattr(registry, "_known", {})
    with pytest.raises(ConfigError, match=said):
        kinds()
