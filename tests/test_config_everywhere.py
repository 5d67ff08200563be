"""Whatever a configuration can say, it says again after YAML, ``--set``, a ledger's JSON and the message to a
worker; what it could not say again is refused with its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types as bounds
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue
from pydantic.fields import FieldInfo

from pipeline.config import ByteSize, Config, Device, load_config, parse_config, upgraded
from pipeline.errors import ConfigError
from pipeline.run.protocol import Configure, decode_to_worker, encode
from pipeline.tasks.registry import kinds

BASE: dict[str, Any] = {
    "model": {"id": "m"},
    "source": {"path": "in.jsonl"},
    "tasks": [{"name": "s", "kind": "summarize"}, {"name": "l", "kind": "label", "labels": ["a", "b"]}],
    "run": {"directory": "run"},
}
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    str: st.text(max_size=9),
    type(None): st.none(),
    ByteSize: st.integers(0, 2**62) | st.just("1.5GiB"),
    Device: st.integers(0, 99) | st.integers(0, 99).map(str) | st.just("cpu"),
    JsonValue: st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    ),
}
WORDS = {
    "tasks.0.name": st.text("abc", min_size=1, max_size=9),
    "tasks.1.name": st.text("abc", min_size=1, max_size=9),
    "engine.backend": st.sampled_from(["auto", "a.b:C", "transformers"]),
    "run.deadline": st.sampled_from(["7:00", "23:59", None]),
}
Key = tuple[str, st.SearchStrategy[Any]]


def values(annotation: Any, limits: dict[str, float]) -> st.SearchStrategy[Any]:
    """What a key of that type may be."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    if annotation in (int, float):
        return numbers(annotation, limits)
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        return st.sampled_from(parts)
    if get_origin(annotation) is list:
        return st.lists(values(parts[0], limits), max_size=3)
    if get_origin(annotation) is dict:
        return st.dictionaries(values(parts[0], limits), values(parts[1], limits), max_size=3)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        of = {name: field_values(field) for name, field in annotation.model_fields.items()}
        asked = {name: of[name] for name, field in annotation.model_fields.items() if field.is_required()}
        return st.fixed_dictionaries(asked, optional={name: of[name] for name in of if name not in asked})
    if get_origin(annotation) is Annotated:
        return values(parts[0], limits | limits_of(parts[1:]))
    return st.one_of(values(part, limits) for part in parts)


def limits_of(marks: Iterable[Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for mark in marks:
        if isinstance(mark, bounds.Ge | bounds.Gt | bounds.Le | bounds.Lt):
            found |= {name: getattr(mark, name) for name in mark.__slots__}
    return found


def numbers(kind: type, limits: dict[str, float]) -> st.SearchStrategy[Any]:
    least, most = limits.get("ge", limits.get("gt")), limits.get("le", limits.get("lt"))
    if kind is int:
        return st.integers(-(2**63) if least is None else int(least), 2**64 - 1)
    return st.floats(least, most, allow_nan=False)


def field_values(field: FieldInfo) -> st.SearchStrategy[Any]:
    if any(mark in get_args(ByteSize) for mark in field.metadata):
        return PLAIN[ByteSize]
    return values(field.annotation, limits_of(field.metadata))


def keys(section: type[BaseModel], prefix: str = "") -> Iterator[Key]:
    """Every key by its dotted path, with what it may be; tasks are those of BASE."""
    for name, field in section.model_fields.items():
        path = prefix + name
        if path == "tasks":
            for index, task in enumerate(BASE["tasks"]):
                yield from keys(kinds()[task["kind"]].section, f"tasks.{index}.")
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys(field.annotation, f"{path}.")
        else:
            yield path, WORDS[path] if path in WORDS else field_values(field)


KEYS = dict(keys(Config))
SAID = st.lists(
    st.sampled_from(sorted(KEYS)).flatmap(lambda key: st.tuples(st.just(key), KEYS[key])), max_size=6
)


def with_key(raw: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    found = deepcopy(raw)
    node: Any = found
    *most, last = path.split(".")
    for part in most:
        node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
    node[last] = value
    return found


def by_yaml(config: Config, _: Path) -> Config:
    return parse_config(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json"))))


def by_ledger(config: Config, _: Path) -> Config:
    return parse_config(upgraded(json.loads(json.dumps(config.model_dump(mode="json")))))


def by_message(config: Config, _: Path) -> Config:
    message = decode_to_worker(encode(Configure(config.model_dump())))
    assert isinstance(message, Configure)
    return parse_config(message.config)


def by_overrides(config: Config, file: Path) -> Config:
    """Every section but the tasks, and every key of these, by ``--set``."""
    dumped = config.model_dump(mode="json")
    said = {name: value for name, value in dumped.items() if name != "tasks"}
    for index, task in enumerate(dumped["tasks"]):
        said |= {f"tasks.{index}.{key}": value for key, value in task.items()}
    return load_config(file, [f"{key}={yaml.safe_dump(value)}" for key, value in said.items()])


def as_a_file(raw: dict[str, Any], folder: Path) -> Config:
    """What a person who writes this gets: keys that nothing obeys are refused, too."""
    file = folder / "said.yaml"
    file.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return load_config(file)


@pytest.fixture(scope="module")
def base_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("base") / "config.yaml"
    file.write_text(yaml.safe_dump(BASE), encoding="utf-8")
    return file


@pytest.mark.parametrize("way", [by_yaml, by_ledger, by_message, by_overrides])
@given(said=SAID)
def test_it_says_the_same_again(
    way: Callable[[Config, Path], Config], base_file: Path, said: list[tuple[str, Any]]
) -> None:
    raw = BASE
    for path, value in said:
        more = with_key(raw, path, value)
        try:
            as_a_file(more, base_file.parent)
        except ConfigError:  # keys that go together with others only, or that nothing obeys beside the others
            continue
        raw = more
    config = parse_config(raw)
    assert way(config, base_file) == config


@pytest.mark.parametrize("path", sorted(KEYS))
def test_each_key_can_be_said(path: str) -> None:
    """The test above says something of every key: else it would look at nothing."""

    @settings(max_examples=20, derandomize=True)
    @given(KEYS[path])
    def tried(value: Any) -> None:
        try:
            parse_config(with_key(BASE, path, value))
        except ConfigError:
            return
        accepted.append(value)

    accepted: list[Any] = []
    tried()
    assert accepted


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (
            "model.template_options",
            {"day": yaml.safe_load("2020-01-01")},
            "options.day: .* read as date; put",
        ),
        ("model.template_options", {"a": {1: "x"}}, "template_options.a"),
        ("model.template_options", {"a": [b"x"]}, "template_options.a"),
        ("model.template_options", {"a": [2**64]}, r"template_options.a\[0\]: the number is too large"),
        ("model.max_memory", {True: 1}, "max_memory.*neither a GPU number"),
        ("model.max_memory", {-1: 1}, "max_memory.*neither a GPU number"),
        ("model.max_memory", {"01": 1}, "max_memory.*neither a GPU number"),
        ("model.max_memory", {0: 1, "0": 2}, "max_memory: a device is named twice"),
        ("generation.sampling", {"temperature": 1, "seed": 2**64}, "sampling.seed: the number is too large"),
        ("engine.batch_rows", 2**80, "engine.batch_rows: the number is too large"),
        ("tasks.0.system", "half \ud83d", "tasks.0..system: .* is no text"),
        ("tasks.1.labels", ["a", "half \ud83d"], "tasks.1..labels.* is no text"),
        ("kv_cache.store.quota", "9" * 400, "store.quota: .* is not a size"),
        ("run.directory", "a\0b", "run.directory"),
    ],
)
def test_what_could_not_be_said_again_is_refused_with_its_place(path: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_config(with_key(BASE, path, value))


def test_a_file_of_json_means_its_characters(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(with_key(BASE, "tasks.1.labels", ["\N{SNOWFLAKE}", "\N{GRINNING FACE}"])))
    assert "\\ud83d" in file.read_text()
    task: Any = load_config(file).tasks[1]
    assert list(task.labels) == ["\N{SNOWFLAKE}", "\N{GRINNING FACE}"]
    task = load_config(file, ['tasks.s.system="\\ud83d\\ude00"']).tasks[0]
    assert task.system == "\N{GRINNING FACE}"
