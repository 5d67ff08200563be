"""Examples of a label task: in the shared prefix, recorded, within their budget; label names as the model
reads them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError
from pipeline.records import Generation, Score, digest
from pipeline.tasks.label import Label
from pipeline.testing.scripted_backend import ByteTokenizer
from tests.tasks.conftest import Driver

INLINE = [{"text": "Rain all day.", "label": "wet"}, {"text": "Sun all day.", "label": "dry"}]
GOLD = [
    {"id": f"g{n}", "text": f"Report {n}: {word} {n * 7} hours.", "label": label}
    for n, (word, label) in enumerate([("rain", "wet"), ("sun", "dry")] * 6)
]


def jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def task_of(driver: Driver) -> Label:
    assert isinstance(driver.task, Label)
    return driver.task


def prompt(driver: Driver) -> tuple[str, str]:
    """The text before the document and the whole prompt."""
    driver.answer("A DOCUMENT.")
    ids = driver.asked[-1].prompt
    return ByteTokenizer().decode(ids.ids[: ids.prefix_tokens]), ByteTokenizer().decode(ids.ids)


def test_examples_are_earlier_turns_in_the_prefix(drive: Callable[..., Driver]) -> None:
    before, whole = prompt(drive(kind="label", labels=["wet", "dry"], examples=INLINE))
    assert "Rain all day.<|assistant|>The category that fits this text best is wet" in before
    assert "Sun all day.<|assistant|>The category that fits this text best is dry" in before
    assert before.count("Categories:") == 1
    assert before.index("Categories:") < before.index("Rain all day.")
    assert whole == before + "A DOCUMENT.The category that fits this text best is"


def test_what_is_shown_is_in_the_identity(drive: Callable[..., Driver]) -> None:
    def job(examples: list[dict[str, str]] | None, **keys: Any) -> Any:
        return drive(kind="label", labels=["wet", "dry"], examples=examples, **keys).task.job

    shown = job(INLINE).identity["examples"]
    # ids wherever they stand
    assert sorted(row[:2] for row in shown) == sorted([digest(row["text"]), row["label"]] for row in INLINE)
    other_text = [INLINE[0], {"text": "Sun at noon.", "label": "dry"}]
    other_label = [INLINE[0], {"text": "Sun all day.", "label": "wet"}]
    orders = {job(INLINE, examples_seed=seed).fingerprint for seed in range(8)}
    prints = {job(examples).fingerprint for examples in (None, INLINE, other_text, other_label)}
    assert len(prints) == 4
    assert len(orders) == 2
    assert "examples" not in job(None).identity


def test_drawn_from_gold_and_named(drive: Callable[..., Driver], tmp_path: Path) -> None:
    path = jsonl(tmp_path / "gold.jsonl", GOLD)
    driver = drive(kind="label", labels=["wet", "dry"], gold=path, examples_per_label=2, context_tokens=2000)
    task = task_of(driver)
    labels = {str(row["id"]): row["label"] for row in GOLD}
    assert sorted(labels[shown] for shown in task.example_ids) == ["dry", "dry", "wet", "wet"]
    before, _ = prompt(driver)
    for row in GOLD:
        assert (str(row["text"]) in before) == (row["id"] in task.example_ids)


def test_labels_that_look_alike_are_alike_in_examples_as_in_gold(
    drive: Callable[..., Driver], tmp_path: Path
) -> None:
    labels = ["nass", "trüb"]
    rows = [
        {"id": "a", "text": "Rain all day.", "label": "NASS"},
        {"id": "b", "text": "Clouds all day.", "label": "Tru\u0308b"},
        {"id": "c", "text": "Rain at night.", "label": "ｎａｓｓ"},
    ]
    path = jsonl(tmp_path / "rows.jsonl", rows)
    shown = [[row["text"], label] for row, label in zip(rows, ["nass", "trüb", "nass"], strict=True)]
    for keys in (
        {"examples": path},
        {"examples": rows},
        {"gold": path, "examples_per_label": 2},
    ):
        driver = drive(kind="label", labels=labels, context_tokens=2000, **keys)
        before, _ = prompt(driver)
        for text, label in shown:
            assert f"{text}<|assistant|>The category that fits this text best is {label}" in before
        assert {row[1] for row in task_of(driver).job.identity["examples"]} == set(labels)


def test_a_moved_or_reordered_gold_file_changes_nothing(drive: Callable[..., Driver], tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "kind": "label",
        "labels": ["wet", "dry"],
        "examples_per_label": 2,
        "context_tokens": 2000,
    }
    first = drive(**keys, gold=jsonl(tmp_path / "gold.jsonl", GOLD)).task.job.fingerprint
    assert drive(**keys, gold=jsonl(tmp_path / "moved.jsonl", GOLD[::-1])).task.job.fingerprint == first


def test_a_half_filled_table_with_another_column_is_a_gold_file(
    drive: Callable[..., Driver], tmp_path: Path
) -> None:
    path = tmp_path / "review.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["id", "text", "person"])
        writer.writeheader()
        writer.writerows(
            {"id": row["id"], "text": row["text"], "person": row["label"] if n < 2 else ""}
            for n, row in enumerate(GOLD)
        )
    driver = drive(
        kind="label",
        labels=["wet", "dry"],
        gold=str(path),
        label_field="person",
        examples_per_label=4,
        context_tokens=2000,
    )
    assert task_of(driver).example_ids == {"g0", "g1"}


def test_long_examples_are_cut_to_the_budget_and_it_is_said(drive: Callable[..., Driver]) -> None:
    long = [
        {"text": f"{word} all day, " * 40, "label": label}
        for word, label in (("Rain", "wet"), ("Sun", "dry"))
    ]
    driver = drive(kind="label", labels=["wet", "dry"], examples=long, examples_tokens=100)
    assert any("2 of 2 examples were cut to fit 100 tokens" in note for note in driver.task.notes)
    before, _ = prompt(driver)
    assert before.count("…") == 2


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [{"id": "a", "text": "x", "label": "hot"}],
            "'a' .* has the label 'hot', which is none of 'wet', 'dry'",
        ),
        (
            [{"id": "a", "text": "x", "label": "wet"}, {"id": "a", "text": "y", "label": "dry"}],
            "'a' stands twice",
        ),
        (
            [{"id": "a", "text": "x", "label": "wet"}, {"id": "b", "text": "x ", "label": "dry"}],
            "'a' and 'b' .* same text",
        ),
        ([{"id": "a", "text": "x"}], "'a' .* nothing in the field 'label'"),
        ([{"id": "a", "text": " ", "label": "wet"}], "'a' .* has no text"),
        ([{"text": "x", "label": "wet"}], "line 1: the id field 'id' is missing"),
    ],
)
def test_faults_of_a_file_are_sentences(
    drive: Callable[..., Driver], tmp_path: Path, rows: list[dict[str, str]], words: str
) -> None:
    path = jsonl(tmp_path / "e.jsonl", rows)
    with pytest.raises(ConfigError, match=words):
        drive(kind="label", labels=["wet", "dry"], examples=path)


def test_a_missing_file_too_little_room_and_the_wrong_layout_are_sentences(
    drive: Callable[..., Driver], tmp_path: Path
) -> None:
    keys: dict[str, Any] = {"kind": "label", "labels": ["wet", "dry"]}
    with pytest.raises(ConfigError, match=r"cannot read its examples: .*none\.jsonl"):
        drive(**keys, examples=str(tmp_path / "none.jsonl"))
    long = [{"text": "Rain. " * 60, "label": "wet"}]
    with pytest.raises(
        ConfigError, match=r"the 1 examples .* leave -?\d+ of the context's 400 .* lower examples_tokens"
    ):
        drive(**keys, examples=long, context_tokens=400)
    with pytest.raises(ConfigError, match="instructions_first"):
        drive(**keys, examples=INLINE, layout="document_first")


def test_spaced_names_are_read_and_the_written_ones_exported(drive: Callable[..., Driver]) -> None:
    driver = drive(
        kind="label",
        labels=["card_arrival", "lostCard", "out-of-scope", "iPhone"],
        label_names="spaced",
        examples=[{"text": "Where is it?", "label": "card_arrival"}],
        reply=lambda step: Generation(1, scores=(-1.0, -2.0, -3.0, -4.0)),
    )
    answer = driver.answer("A text.")
    assert answer.value == "card_arrival"
    assert list(answer.probabilities or ()) == ["card_arrival", "lostCard", "out-of-scope", "iPhone"]
    asked = driver.asked[0].ask
    assert isinstance(asked, Score)
    assert [bytes(ids).decode().strip() for ids in asked.continuations] == [
        "card arrival",
        "lost Card",
        "out of scope",
        "iPhone",
    ]
    assert "best is card arrival" in prompt(driver)[0]
    assert task_of(driver).job.identity["task"]["labels"][0][0] == "card_arrival"
