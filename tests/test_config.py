"""The configuration: what is refused, with its place; overrides; sizes."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import RETIRED, Config, load_config, parse_config, upgraded
from pipeline.errors import ConfigError
from pipeline.system.units import parse_bytes
from pipeline.tasks.label.section import LabelTask

ROOT = Path(__file__).parent.parent
MINIMAL: dict[str, Any] = {
    "model": {"id": "m"},
    "source": {"path": "a.jsonl"},
    "tasks": [{"name": "s", "kind": "summarize"}, {"name": "t", "kind": "label", "labels": ["a", "b"]}],
    "run": {"directory": "runs/x"},
}


def changed(**path_values: Any) -> dict[str, Any]:
    raw = deepcopy(MINIMAL)
    for dotted, value in path_values.items():
        node: Any = raw
        *path, last = dotted.split("__")
        for part in path:
            node = node[int(part) if part.isdigit() else part]
        node[last] = value
    return raw


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_configurations_are_valid(path: Path) -> None:
    assert load_config(path).tasks


@pytest.mark.parametrize(
    ("raw", "place", "words"),
    [
        (changed(model__idd="x"), "model.idd", "unknown key"),
        (changed(engine={"decoder": "auto"}), "engine.decoder", "there is only one decoder now; delete it"),
        (changed(model__quantization="int4"), "model.quantization", "nf4"),
        (changed(run__deadline=1320), "run.deadline", "1320; write for example"),
        (changed(model__context_tokens=3), "model.context_tokens", "128"),
        (changed(tasks__1__labels=["A", "a"]), "tasks[1].labels", "only in case"),
        (changed(tasks__1__labels=["a", "a"]), "tasks[1].labels", "twice"),
        (changed(tasks__1__labels={True: None, "b": None}), "tasks[1].labels", "quotes"),
        (changed(tasks__1__labels=["a"]), "tasks[1]", "nothing to choose"),
        (changed(tasks__1__labels=[]), "tasks[1].labels", "at least one"),
        (changed(tasks__1__labels=[" a", "b"]), "tasks[1].labels", "spaces"),
        (
            changed(tasks__1__labels=["a_b", "A-b"], tasks__1__label_names="spaced"),
            "tasks[1]",
            "'a_b' and 'A-b' are both read as",
        ),
        (changed(tasks__1__examples_per_label=4), "tasks[1]", "needs gold"),
        (
            changed(tasks__1__gold="g.jsonl", tasks__1__calibration="none"),
            "tasks[1]",
            "drop one of the two keys",
        ),
        (changed(tasks__1__target_accuracy=0.9), "tasks[1]", "needs gold"),
        (
            changed(tasks__1__target_accuracy=0.9, tasks__1__gold="g", tasks__1__abstain_below=0.5),
            "tasks[1]",
            "keep one of the two keys",
        ),
        (
            changed(tasks__1__gold="g", tasks__1__target_accuracy=1.0),
            "tasks[1].target_accuracy",
            "below 1",
        ),
        (changed(tasks__1__expected_shares={"x": 0.5, "a": 0.5, "b": 0.5}), "tasks[1]", "none of the labels"),
        (changed(tasks__1__expected_shares={"a": 0.5}), "tasks[1]", "lacks 'b'"),
        (changed(tasks__1__expected_shares={"a": 0.9, "b": 0.0}), "tasks[1]", "not between 0 and 1"),
        (changed(tasks__1__expected_shares={"a": 0.9, "b": float("nan")}), "tasks[1]", "not between 0 and 1"),
        (changed(tasks__1__expected_shares={"a": 0.9, "b": 0.9}), "tasks[1]", "add up to 1.800"),
        (changed(tasks__1__examples=[{"text": "x"}]), "tasks[1].examples[0].label", "required"),
        (changed(tasks__1__examples="e.csv", tasks__1__multi=True), "tasks[1]", "multi"),
        (changed(tasks__1__name="s"), "tasks", "two tasks"),
        (changed(tasks__0__name="id"), "tasks[0].name", "taken"),
        (changed(tasks__0__name="a b"), "tasks[0].name", "not a task name"),
        (changed(tasks__0__kind="translate"), "tasks[0]", "translate"),
        (changed(tasks__0__overlap_tokens=40, tasks__0__chunk_tokens=64), "tasks[0]", "half"),
        (changed(run__deadline="7"), "run.deadline", "07:00"),
        (changed(kv_cache={"store": {"quota": "9 XB"}}), "kv_cache.store.quota", "20GB"),
        (changed(model__max_memory={"disk": "1GB"}), "model.max_memory", "neither"),
        (changed(tasks=[]), "tasks", "at least 1"),
    ],
)
def test_faults_are_named_with_their_place(raw: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(raw)
    assert place in str(caught.value)
    assert words in str(caught.value)


def test_all_faults_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(changed(model__x=1, run__y=2))
    assert "model.x" in str(caught.value)
    assert "run.y" in str(caught.value)


def write(tmp_path: Path, raw: object) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(raw if isinstance(raw, str) else yaml.safe_dump(raw), encoding="utf-8")
    return path


def test_overrides_reach_keys_lists_and_tasks_by_name(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    overrides = [
        "model.context_tokens=512",
        "tasks.t.abstain_below=0.5",
        "tasks.0.max_output_tokens=9",
        "kv_cache.store.quota=1GiB",
    ]
    config = load_config(path, overrides)
    assert config.model.context_tokens == 512
    label = config.tasks[1]
    assert isinstance(label, LabelTask)
    assert label.abstain_below == 0.5
    assert config.tasks[0].max_output_tokens == 9  # type: ignore[union-attr]  # the first task summarizes
    assert config.kv_cache.store.quota == 2**30


@pytest.mark.parametrize(
    "override",
    [
        "model",
        "=1",
        "tasks.nobody.name=x",
        "model.id.deep=1",
        "engine.batch_rows=[",
        "tasks.9=1",
        "tasks.nobody=1",
        "engine.batch_rows=2020-13-45",
        "engine.batch_rows=" + "[" * 3000,
        "engine.batch_rows=" + "9" * 5000,
    ],
)
def test_wrong_overrides_are_sentences(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigError, match=r"--set"):
        load_config(write(tmp_path, MINIMAL), [override])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        "a: [",
        "x: &x [*x]",
        "a: !!python/object:os.system {}",
        "\x00",
        "- " * 3000 + "x",
        "just words",
    ],
)
def test_what_is_not_a_configuration_is_a_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        load_config(write(tmp_path, text))


def test_missing_file_and_folder_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no configuration file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="folder"):
        load_config(tmp_path)


def test_a_configuration_survives_its_json() -> None:
    config = parse_config(MINIMAL)
    assert parse_config(config.model_dump(mode="json")) == config


def test_labels_keep_their_order() -> None:
    config = parse_config(changed(tasks__1__labels=["z", "a", "m"]))
    assert isinstance(config, Config)
    # the second task labels
    assert list(config.tasks[1].labels) == ["z", "a", "m"]  # type: ignore[union-attr]


@given(st.integers(0, 10**6), st.sampled_from(["", "B", "kB", "MB", "GB", "KiB", "MiB", "GiB"]))
def test_sizes(number: int, unit: str) -> None:
    scale = {"": 1, "B": 1, "kB": 1000, "MB": 10**6, "GB": 10**9, "KiB": 1024, "MiB": 2**20, "GiB": 2**30}[
        unit
    ]
    assert parse_bytes(f"{number}{unit}") == number * scale
    assert parse_bytes(f" {number} {unit} ") == number * scale


KEYS = st.sampled_from(
    ["model", "id", "tasks", "run", "source", "path", "kind", "labels", "name", "directory"]
)
SCALARS = st.none() | st.booleans() | st.floats() | st.text(max_size=8)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(KEYS, ANYTHING, max_size=5))
def test_any_mapping_is_a_configuration_or_a_sentence(raw: dict[str, Any]) -> None:
    try:
        accepted = parse_config(raw)
    except ConfigError as error:
        accepted = None
        words = str(error)
    assert accepted is not None or "not valid" in words


def test_paths_of_label_files_are_made_absolute() -> None:
    made = parse_config(changed(tasks__1__gold="g.jsonl", tasks__1__examples_per_label=2)).anywhere()
    task = made.tasks[1]
    assert isinstance(task, LabelTask)
    assert task.gold is not None
    assert Path(task.gold).is_absolute()
    assert all(Path(path).is_absolute() for path in made.source.paths)


def test_labels_that_look_alike_are_refused() -> None:
    """One accent as one character or as two: a reader sees the same label twice."""
    with pytest.raises(ValueError, match="differ only in how their accents are encoded"):
        LabelTask(name="topic", kind="label", labels={"caf\u00e9": None, "cafe\u0301": None})


def test_the_place_of_the_store_is_made_absolute() -> None:
    """``retry`` may be run from another folder; a store inside the run directory goes where that goes."""
    made = parse_config(changed(kv_cache={"store": {"path": "shared/kv"}})).anywhere()
    assert made.kv_cache.store.path == str(Path("shared/kv").absolute())
    assert parse_config(changed()).anywhere().kv_cache.store.path is None


@pytest.mark.parametrize("path", ["", "  ", "a\0b", "~nobody-of-this-name/kv"])
def test_a_store_without_a_place_is_refused_before_the_night(path: str) -> None:
    with pytest.raises(ConfigError, match=r"kv_cache\.store\.path"):
        parse_config(changed(kv_cache={"store": {"path": path}}))


def test_what_was_recorded_is_read_without_retired_keys() -> None:
    recorded = changed(engine={"decoder": "transformers", "batch_rows": 3}, model__template_options={"a": []})
    before = deepcopy(recorded)
    config = parse_config(upgraded(recorded))
    assert config.engine.batch_rows == 3
    assert recorded == before
    assert upgraded(parse_config(MINIMAL).model_dump(mode="json")) == parse_config(MINIMAL).model_dump(
        mode="json"
    )


def test_retired_keys_inside_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RETIRED, "tasks.*.mood", "this key is gone; delete it")
    raw = changed(tasks__0__mood="good", tasks__1__labels={"mood": "tasks.*.mood", "b": None})
    with pytest.raises(ConfigError, match=r"tasks\[0\]\.mood: this key is gone; delete it") as refused:
        parse_config(raw)
    assert "labels" not in str(refused.value)
    assert parse_config(upgraded(raw)).tasks[1].labels == {"mood": "tasks.*.mood", "b": None}  # type: ignore[union-attr]
