"""The device is compiled once, and where it cannot be, that is said."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.pretend_card import build, conftest
from tests.pretend_card.build import CannotBuild, NoCompiler, built

FINE = '#include "part.hpp"\nint answer() { return part(); }\n'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Other sources than the device's, which compile in no time, and an empty place for what is built."""
    folder = tmp_path / "native"
    folder.mkdir()
    (folder / "card.cpp").write_text(FINE)
    (folder / "part.hpp").write_text("inline int part() { return 1; }\n")
    monkeypatch.setattr(build, "NATIVE", folder)
    monkeypatch.setattr(build, "KEPT", tmp_path / "kept")
    return folder


def test_it_is_compiled_once_for_the_same_sources(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    compile_ = build._compile
    monkeypatch.setattr(build, "_compile", lambda library: (made.append(library), compile_(library)))
    with ThreadPoolExecutor(3) as pool:
        (first,) = set(pool.map(lambda _: built(), range(3)))
    assert made == [first]
    (sources / "part.hpp").write_text("inline int part() { return 2; }\n")
    second = built()
    assert made == [first, second]
    assert second != first


def test_without_a_compiler_there_is_a_sentence(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NoCompiler, match="there is none"):
        built()


def test_what_the_compiler_refuses_is_shown(sources: Path) -> None:
    (sources / "card.cpp").write_text("int answer( {")
    with pytest.raises(CannotBuild, match=r"(?s)refused.*answer") as found:
        built()
    assert not isinstance(found.value, NoCompiler)
    assert not list(build.KEPT.rglob("*.so*"))


@pytest.mark.parametrize(
    ("why", "required", "outcome"),
    [
        (NoCompiler("none"), False, pytest.skip.Exception),
        (NoCompiler("none"), True, pytest.fail.Exception),
        (CannotBuild("refused"), False, pytest.fail.Exception),
    ],
)
def test_only_a_lack_where_it_may_be_is_a_skip(
    why: CannotBuild, required: bool, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conftest, "_why_there_is_none", lambda: why)
    monkeypatch.delenv(conftest.REQUIRED, raising=False)
    if required:
        monkeypatch.setenv(conftest.REQUIRED, "1")
    with pytest.raises(outcome, match=str(why)):
        conftest._no_card()
