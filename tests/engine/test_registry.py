"""A backend is found by the name in the configuration: built in, an installed package's, or written out."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import Config, parse_config
from pipeline.engine.hf_backend import TransformersBackend
from pipeline.engine.registry import known_backends, open_backend
from pipeline.errors import ConfigError
from pipeline.testing.scripted_backend import ScriptedBackend
from tests.nights import SCRIPTED


def asking_for(backend: str) -> Config:
    return parse_config(
        {
            "model": {"id": "m"},
            "source": {"path": "in.jsonl"},
            "tasks": [{"name": "s", "kind": "summarize", "instructions": "Sum up."}],
            "engine": {"backend": backend},
            "run": {"directory": "r"},
        }
    )


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages that declare backends: one that is there, one that is not, one of a name of ours, one that
    two of them have; and modules that fail.
    """
    entries = tmp_path / "other-1.dist-info"
    entries.mkdir()
    (entries / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (entries / "entry_points.txt").write_text(
        f"[overnight.backends]\nother = {SCRIPTED}\n"
        f"broken = no.such.module:Backend\ntransformers = {SCRIPTED}\nshared = {SCRIPTED}\n"
    )
    more = tmp_path / "more-1.dist-info"
    more.mkdir()
    (more / "METADATA").write_text("Metadata-Version: 2.1\nName: more\nVersion: 1\n")
    (more / "entry_points.txt").write_text(f"[overnight.backends]\nshared = {SCRIPTED}\n")
    (tmp_path / "wrong_syntax.py").write_text("Backend = (")
    (tmp_path / "wrong_end.py").write_text("raise SystemExit(7)")
    (tmp_path / "wrong_code.py").write_text("def Backend(*_): raise RuntimeError('no key is set')")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("name", ["auto", "transformers"])
def test_auto_means_transformers_whatever_else_is_installed(installed: None, name: str) -> None:
    assert isinstance(open_backend(asking_for(name)), TransformersBackend)


def test_a_package_brings_a_backend(installed: None) -> None:
    assert isinstance(open_backend(asking_for("other")), ScriptedBackend)
    assert set(known_backends()) >= {"transformers", "other", "broken"}


def test_a_class_may_be_written_out() -> None:
    assert isinstance(open_backend(asking_for(SCRIPTED)), ScriptedBackend)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nobody", "transformers"),
        ("broken", "engine.backend .broken. cannot be opened: No module"),
        ("no.such.module:Backend", "no.such.module"),
        ("pipeline.engine.registry:Nothing", "Nothing"),
        ("shared", "a name of several packages: more and other"),
        ("wrong_syntax:Backend", "cannot be opened: SyntaxError"),
        ("wrong_end:Backend", "cannot be opened: SystemExit"),
        ("wrong_code:Backend", "cannot be opened: RuntimeError.*no key is set"),
        ("os:sep", "cannot be opened: TypeError"),
        ("os:getcwd", "cannot be opened: TypeError"),
        ("pipeline.errors:ConfigError", r"is no backend: it has no tokenizer\(\)"),
    ],
)
def test_a_wrong_name_is_said(installed: None, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_backend(asking_for(name))


@pytest.mark.parametrize("name", ["", ":", "a:", ":b", "../a", "a b", "a:b:c", "a:b.c"])
def test_what_is_no_name_is_refused_with_the_configuration(name: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\.backend"):
        asking_for(name)
