"""What a configuration says is used or refused with its line: keys that are unknown, given twice, idle, or of
a wrong type.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import Config, load_config
from pipeline.config.keys import config_keys, text_may_stand, type_at
from pipeline.errors import ConfigError
from pipeline.system.yaml_text import NotYaml, read_yaml

BASE = """\
model: {id: m, quantization: none}
source: {path: in.jsonl}
tasks:
  - {name: topic, kind: label, labels: [sports, business]}
run: {directory: r}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str, *overrides: str) -> Config:
    Path("c.yaml").write_text(text, encoding="utf-8")
    return load_config("c.yaml", overrides)


def refusal(text: str, *overrides: str) -> str | None:
    try:
        load(text, *overrides)
    except ConfigError as error:
        return str(error)
    return None


def refused(text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    return str(caught.value)


def test_a_second_list_of_tasks_is_no_replacement_of_the_first(here: Path) -> None:
    """Field case 08."""
    said = refused(BASE + "tasks:\n  - {name: mood, kind: label, labels: [good, bad]}\n")
    assert said == "c.yaml, line 6: the key 'tasks' stands twice, first in line 3; keep one of them"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[sports, business]", "{a: x, b: y, a: z}", "line 4: the key 'a' stands twice"),
        ("{id: m, ", "{id: m, id: n, ", "line 1: the key 'id' stands twice"),
        ("run: {directory: r}", "run:\n  directory: r\n  directory: q", "line 7: the key 'directory'"),
        ("[sports, business]", "{yes: x, true: y}", "line 4: the key 'true' stands twice, first in line 4"),
        ("{id: m, ", "{id: m, template_options: {a: {b: 1, b: 2}}, ", "the key 'b' stands twice"),
    ],
)
def test_a_key_twice_is_refused_wherever_it_stands(here: Path, old: str, new: str, said: str) -> None:
    assert said in refused(BASE.replace(old, new))


def test_all_keys_given_twice_are_told_at_once(here: Path) -> None:
    said = refused(BASE + "model:\n  id: x\n  id: y\nmodel: {id: z}\n")
    assert [line.split(": ")[0] for line in said.splitlines()] == [f"c.yaml, line {n}" for n in (6, 8, 9)]


@given(st.lists(st.text("abc", min_size=1, max_size=2), min_size=1, max_size=6))
def test_duplicates_are_exactly_the_keys_that_repeat(keys: list[str]) -> None:
    text = "".join(f"{key!r}: {index}\n" for index, key in enumerate(keys))
    if len(set(keys)) == len(keys):
        assert read_yaml(text).value == {key: index for index, key in enumerate(keys)}
        return
    with pytest.raises(NotYaml) as caught:
        read_yaml(text)
    again = [index + 1 for index, key in enumerate(keys) if key in keys[:index]]
    assert [line for line, _ in caught.value.faults] == again


def test_lines_are_those_of_the_keys_also_behind_anchors() -> None:
    text = read_yaml("a: &x {k: 1}\nb:\n  - *x\n  - <<: *x\n    n: 2\n")
    assert text.value == {"a": {"k": 1}, "b": [{"k": 1}, {"k": 1, "n": 2}]}
    assert {place: text.lines[place] for place in [("a",), ("a", "k"), ("b", "1"), ("b", "1", "n")]} == {
        ("a",): 1,
        ("a", "k"): 1,
        ("b", "1"): 4,
        ("b", "1", "n"): 5,
    }


def test_times_of_day_need_no_quotes(here: Path) -> None:
    assert load(BASE.replace("directory: r", "directory: r, deadline: 22:30")).run.deadline == "22:30"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "quantization",
            "quantisation",
            "line 1: model.quantisation: unknown key; did you mean quantization?",
        ),
        ("run:", "ruun:", "line 5: ruun: unknown key; did you mean run?"),
        ("{path: in.jsonl}", "{path: in.jsonl, deadline: 7:00}", "line 2: .*there is run.deadline"),
        ("business]", "business], max_output_tokens: 9", "line 4: .*of tasks of kind summarize"),
        ("business]", "business], abstain_bellow: 1", "line 4: .*did you mean abstain_below"),
        ("business]", "business], xyz: 1", r"line 4: tasks\[0\].xyz: unknown key; known are abstain_below"),
        (
            "{id: m, ",
            "{id: m, context: 9, ",
            "line 1: model.context: unknown key; did you mean context_tokens",
        ),
        ("kind: label", "kind: labels", "line 4: .*there is no kind of task 'labels' .*did you mean label"),
        ("kind: label, ", "", r"line 4: tasks\[0\]: the key kind is required; there are summarize, label"),
    ],
)
def test_what_is_unknown_has_a_line_and_a_suggestion(here: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(BASE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("none}", "int4}", "line 1: model.quantization: it must be none, int8 or nf4, not 'int4'"),
        ("none}", "nof4}", "not 'nof4'"),
        ("in.jsonl", "5", "line 2: source.path: it must be path or list of path, not 5; put it in quotes"),
        ("in.jsonl", "[a, 5]", r"line 2: source.path\[1\]: it must be path, not 5; put it in quotes"),
        ("in.jsonl", "{a: b}", "line 2: source.path: it must be path or list of path, not .'a': 'b'"),
        ("{directory: r}", "", "line 5: run: it must be a section, whose keys stand below it; it is empty"),
        ("{directory: r}", "r", "line 5: run: it must be a section, whose keys stand below it, not 'r'"),
        (
            "\n  - {name: topic, kind: label, labels: [sports, business]}",
            " label",
            "line 3: .*are a list",
        ),
        ("{name: topic, kind: label, labels: [sports, business]}", "label", "line 4: .*tasks are a list"),
        ("business]", "business], examples: [{text: x}]", r"examples\[0\].label: this key is required"),
        ("business]", "business], examples: 7", "tasks.0..examples: it must be path or list of section"),
        ("directory: r", "directory: 2024-01-01", "run.directory: it must be path, .*; put it in quotes"),
        (
            "directory: r",
            "directory: r, max_attempts: a lot",
            "max_attempts: it must be whole number, at least 1",
        ),
        ("id: m", "id: 2024-13-45", "line 1: .*'2024-13-45' is no value of its kind .*put it in quotes"),
        ("in.jsonl", "*.jsonl", "line 2: this is no valid YAML: .*goes in quotes"),
        ("  - {", "\t- {", "line 4: .*YAML is indented by spaces"),
        ("model", "\x00model", "line 1: a character .* cannot stand in YAML"),
    ],
)
def test_wrong_types_get_our_sentence(here: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(BASE.replace(old, new))
    words = str(caught.value)
    assert "Input should" not in words
    assert "function-" not in words
    assert re.search(said, words.replace("\n", " ")), words


GROUPED = ("source.group_by.order_by", "source.group_by.separator")  # need the field beside them
ODD = (5, 2.5, True, None, "x", [1], {"x": 1}, "2024-01-01")


def every_place() -> list[tuple[int | str, ...]]:
    """Of each key in a configuration whose tasks are one of each kind."""
    found: list[tuple[int | str, ...]] = []
    for key in config_keys():
        section, _, rest = key.key.partition(".")
        if section != "tasks[]":
            found.append(
                (section.removesuffix("[]"), *rest.replace("[]", ".0").split(".")) if rest else (section,)
            )
        elif rest != "kind":
            number = 0 if key.of in ("", "label") else 1
            found.append(("tasks", number, *rest.replace("[]", ".0").split(".")))
    return found


@pytest.mark.parametrize("place", every_place(), ids=lambda place: ".".join(map(str, place)))
def test_no_key_gets_the_validators_words(here: Path, place: tuple[int | str, ...]) -> None:
    """Any odd value of any key is taken, or refused in our words with its line."""
    for odd in ODD:
        raw: Any = yaml.safe_load(BASE)
        raw["tasks"].append({"name": "summary", "kind": "summarize"})
        node = raw
        for part, then in itertools.pairwise(place):
            if isinstance(node, dict) and node.get(part) is None:
                node[part] = [{}] if isinstance(then, int) or then == "0" else {}
            node = node[int(part) if isinstance(node, list) else part]
        node[int(place[-1]) if isinstance(node, list) else place[-1]] = odd
        said = refusal(yaml.safe_dump(raw))
        assert said is None or ("nput should" not in said and "line " in said), (odd, said)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("label_field: topic", "label_field: nothing obeys it: there is neither gold nor a file of examples"),
        ("examples_tokens: 99", "examples_tokens: nothing obeys it: no examples are shown"),
        ("examples_seed: 2", "examples_seed: nothing obeys it"),
        ("score_tolerance: 0.1", "score_tolerance: nothing obeys it"),
        ("calibration: none, expected_shares: {sports: 0.5, business: 0.5}", "uses no shares"),
        ("long_documents: fail, max_parts: 3", "max_parts: nothing obeys it: with long_documents: fail"),
    ],
)
def test_a_key_that_nothing_obeys_is_refused_with_its_line(here: Path, more: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"line 4: tasks.0..{said}|line 4: .*{said}"):
        load(BASE.replace("business]", f"business], {more}"))


@pytest.mark.parametrize("key", ["subset", "revision"])
def test_keys_of_the_hub_say_nothing_about_a_local_source(here: Path, key: str) -> None:
    assert f"line 2: source.{key}: nothing obeys it" in refused(
        BASE.replace("in.jsonl", f"in.jsonl, {key}: x")
    )
    assert load(BASE.replace("in.jsonl", f"'hf://owner/name', {key}: x"))


# ── --set ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("run.deadline=22:30", "22:30"),  # field case 17, as the next
        ("source.path=*.jsonl", "*.jsonl"),
        ("source.path=[a-c]*.jsonl", "[a-c]*.jsonl"),
        ("source.path=[a.jsonl, b.jsonl]", ["a.jsonl", "b.jsonl"]),
        ("source.path={a,b}.jsonl", "{a,b}.jsonl"),
        ('run.deadline="7:00"', "7:00"),
        ("run.deadline=null", None),
        ("model.revision=", ""),
        ("model.revision=2024-01-01", "2024-01-01"),
        ("model.revision=2024-13-45", "2024-13-45"),
        ("model.id=null", "null"),
        ("model.id=1e5", "1e5"),
        ("source.id_field=yes", "yes"),
        ("source.text_field=0x1F", "0x1F"),
        ("source.group_by=on", {"field": "on", "order_by": None, "separator": "\n\n"}),
        ("tasks.topic.instructions=Sum up: all of # 5", "Sum up: all of # 5"),
        ("tasks.topic.instructions=", ""),
        ("tasks.topic.cue='it is: '", "it is: "),
        ("tasks.topic.system=@here & !now %5 `x`", "@here & !now %5 `x`"),
        ("tasks.0.name=yes", "yes"),
        ("tasks.topic.gold=~nobody-of-this-name/g.csv", ConfigError),
        ("engine.batch_rows=", None),
        ("engine.batch_rows=1_000", 1000),
        ("engine.batch_rows=22:30", ConfigError),
        ("kv_cache.store.quota=20:30", ConfigError),
        ("model.max_memory.0=7GiB", {0: 7 * 2**30}),
    ],
)
def test_set_takes_a_text_as_it_is_typed(here: Path, override: str, value: Any) -> None:
    if value is ConfigError:
        assert f"--set {override!r}: " in refused(BASE, override)
        return
    config: Any = load(BASE, override).model_dump()
    for part in override.split("=", maxsplit=1)[0].split("."):
        found = (
            config[0 if part in ("topic", "0") and isinstance(config, list) else part]
            if part in (config if isinstance(config, dict) else ("topic", "0"))
            else config
        )
        config = found
    assert config == value


def every_text_key() -> list[str]:
    raw: Any = yaml.safe_load(BASE)
    raw["tasks"].append({"name": "summary", "kind": "summarize"})
    places = (place for place in every_place() if "0" not in map(str, place[2:]))
    return [
        ".".join(map(str, place))
        for place in places
        if text_may_stand(type_at(place, raw)) and place[-1] != "0"
    ]


@pytest.mark.parametrize("key", every_text_key())
def test_every_text_key_takes_what_yaml_would_take_for_something_else(here: Path, key: str) -> None:
    """It is that text, or is refused for what it says, never for how YAML reads it."""
    both = BASE.replace("\nrun:", "\n  - {name: summary, kind: summarize}\nrun:")
    for text in ("22:30", "*.jsonl", "yes", "1", "2024-01-01", "a: b # c", "@x", "- y"):
        grouped = ["source.group_by.field=x"] if key in GROUPED else []
        given = [f"{key}={text}", *grouped]
        said = refusal(both, *given)
        if said is not None:
            assert text in said
            assert "YAML" not in said
            continue
        found: Any = load(both, *given).model_dump()
        for part in key.split("."):
            found = found[int(part) if isinstance(found, list) else part]
        assert found in (text, {"field": text, "order_by": None, "separator": "\n\n"}), key


def test_two_overrides_of_one_key_are_refused(here: Path) -> None:
    assert "takes back what --set 'run.deadline=7:00' says" in refused(
        BASE, "run.deadline=7:00", "run.deadline=8:00"
    )
    assert "takes back" in refused(BASE, "tasks.topic.name=a", "tasks.0.name=b")
    assert "takes back" in refused(BASE, "run.deadline=7:00", "run={directory: q}")
    config = load(BASE, "run={directory: q}", "run.deadline=7:00", "run.deadline=7:00")
    assert (config.run.directory, config.run.deadline) == ("q", "7:00")


def test_an_override_is_named_where_it_is_wrong(here: Path) -> None:
    said = refused(BASE, "run.direktory=x", "engine.batch_rows=many")
    assert "--set 'run.direktory=x': run.direktory: unknown key; did you mean directory?" in said
    assert "--set 'engine.batch_rows=many': engine.batch_rows: it must be whole number or null" in said
