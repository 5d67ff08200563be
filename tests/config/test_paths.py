"""Every path of the configuration means the same: ``~``, variables of the environment, the folder it starts
at. Which keys these are is found by walking the configuration.
"""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from pipeline.config import Config, FilePath, parse_config
from pipeline.config.keys import config_keys
from pipeline.config.paths import path_mark, type_of
from pipeline.errors import ConfigError
from pipeline.tasks.registry import kinds
from tests.nights import ANight, documents

BASE: dict[str, Any] = {
    "model": {"id": "m"},
    "source": {"path": "in.jsonl"},
    "tasks": [{"name": "s", "kind": "summarize"}, {"name": "l", "kind": "label", "labels": ["a", "b"]}],
    "run": {"directory": "run"},
}
Place = tuple[int | str, ...]


def marked(annotation: Any) -> bool:
    return path_mark(annotation) is not None or any(
        marked(part) for part in get_args(annotation) if get_origin(annotation) is not None
    )


def path_keys(section: type[BaseModel], place: Place = ()) -> list[Place]:
    found: list[Place] = []
    for name, info in section.model_fields.items():
        here: Place = (*place, name)
        if here == ("tasks",):
            for index, task in enumerate(BASE["tasks"]):
                found += path_keys(kinds()[task["kind"]].section, ("tasks", index))
        elif isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            found += path_keys(info.annotation, here)
        elif get_origin(info.annotation) is list and issubclass(get_args(info.annotation)[0], BaseModel):
            found += path_keys(get_args(info.annotation)[0], (*here, 0))
        elif marked(type_of(info)):
            found.append(here)
    return found


PATHS = path_keys(Config)


def with_path(place: Place, value: Any) -> Config:
    raw: Any = json.loads(json.dumps(BASE))
    node = raw
    for part, inside in pairwise(place):
        empty: Any = [{}] if inside == 0 else {}
        node = node.setdefault(part, empty) if isinstance(node, dict) else node[part]
    node[place[-1]] = value
    return parse_config(raw)


def at(config: BaseModel, place: Place) -> Any:
    found: Any = config
    for part in place:
        found = found[part] if isinstance(part, int) else getattr(found, part)
    return found


def test_every_key_that_speaks_of_a_file_or_folder_is_a_path() -> None:
    """What a key means tells that it is one; a new one must be of the type, too."""
    spoken = {
        key.key.replace("[]", "")
        for key in config_keys()
        if re.search(r"\b(file|files|folder)\b", key.meaning.split(";")[0].split(":")[0])
        and "path" not in key.values
    }
    assert spoken == {"source.records_field", "tasks.label_field"}  # names of fields in a file
    names = {".".join(part for part in map(str, place) if not part.isdigit()) for place in PATHS}
    assert names >= {
        "model.id",
        "kv_cache.store.path",
        "source.path",
        "run.directory",
        "run.output.path",
        "tasks.gold",
        "tasks.examples",
    }
    assert {key.key.replace("[]", "") for key in config_keys() if "path" in key.values} == names


@pytest.mark.parametrize("place", PATHS, ids=lambda place: ".".join(map(str, place)))
def test_home_and_environment_in_every_path(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_PLACE", "some/where")
    home = str(Path.home())
    for written, meant in (
        ("~/x", f"{home}/x"),
        ("$A_PLACE/x", "some/where/x"),
        ("${A_PLACE}/x.$$y", "some/where/x.$y"),
        ("a~b/$5", "a~b/$5"),
    ):
        config = with_path(place, written)
        assert at(config, place) == meant
        assert parse_config(config.model_dump(mode="json")) == config, "what is recorded means the same"
    for written, said in (
        ("~nobody-of-this-name/x", "home directory of ~nobody-of-this-name is not known"),
        ("$NOT_SET_ANYWHERE/x", "NOT_SET_ANYWHERE is not set"),
        ("", "names no file or folder"),
        (" ", "names no file or folder"),
        ("a\0b", "names no file or folder"),
    ):
        with pytest.raises(ConfigError, match=said):
            with_path(place, written)


@pytest.mark.parametrize("place", PATHS, ids=lambda place: ".".join(map(str, place)))
def test_every_path_is_recorded_so_that_another_folder_finds_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    assert at(with_path(place, "there").anywhere(), place) == str(tmp_path / "there")
    assert parse_config(BASE).anywhere().model.id == "m"  # the name of a model, no folder here


@given(
    st.sampled_from(PATHS),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12).filter(str.strip),
)
def test_any_path_that_is_taken_is_the_same_when_it_is_read_back(place: Place, written: str) -> None:
    try:
        config = with_path(place, written)
    except ConfigError:
        return
    assert parse_config(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json")))) == config
    if not re.search(r"^~|\$", written):
        assert at(config, place) == written


def test_a_path_of_a_stranger_s_section_is_treated_alike() -> None:
    class Section(BaseModel):
        lists: dict[str, list[FilePath]] = {}
        one: Annotated[FilePath | None, "noted"] = None

    made = Section(lists={"x": ["~/a", "b"]}, one="~/c")
    assert made.lists == {"x": [f"{Path.home()}/a", "b"]}
    assert made.one == f"{Path.home()}/c"


def test_a_run_directory_under_the_home_is_there_and_not_in_a_folder_called_tilde(tmp_path: Path) -> None:
    """Field case 07."""
    night = ANight(tmp_path / "night", documents(2))
    assert Path(os.environ["HOME"]) != Path.cwd()
    name = f"runs-of-{tmp_path.name}"
    for written, limit in (f'"~/{name}/x"', "1"), (f"~/{name}/x", "2"):
        done = night.run("-q", "--set", f"run.directory={written}", "--limit", limit, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert (Path.home() / name / "x" / "ledger.sqlite").is_file()
    assert not (tmp_path / "~").exists()
