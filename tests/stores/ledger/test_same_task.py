"""The same question to the same model, however the model is called; anything else is another question."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.stores.ledger.same_task import same_task
from pipeline.stores.ledger.task_diff import describe_change

FOLDER = {"weights": "abc"}
SNAPSHOT = {"repository": "o/n", "commit": "123"}
PACKAGED = {"model": "demo", "gguf": "9f"}


def identity(weights: dict[str, str] | None, **more: Any) -> dict[str, Any]:
    known = {} if weights is None else {"weights": weights}
    return {"model": {"tokenizer": "t", **known, **more}, "task": {"labels": ["a"]}, "prompt_format": 1}


@pytest.mark.parametrize(
    ("recorded", "asked", "same"),
    [
        # as versions before recorded it: with the spelling of the path
        (identity(FOLDER, id="m", revision=None), identity(FOLDER), True),
        (identity(FOLDER, id="m"), identity(FOLDER, id="./m"), True),
        (identity(FOLDER, id="m"), identity({"weights": "abd"}), False),
        # a snapshot before its weights were fetched, and afterwards; and its files as a folder
        (identity(SNAPSHOT), identity(SNAPSHOT | FOLDER), True),
        (identity(SNAPSHOT | FOLDER), identity(SNAPSHOT), True),
        (identity(SNAPSHOT | FOLDER), identity(FOLDER), True),
        (identity(SNAPSHOT), identity(SNAPSHOT | {"commit": "124"}), False),
        (identity(SNAPSHOT), identity(FOLDER), False),
        (identity(PACKAGED | FOLDER), identity(FOLDER), True),
        (identity(PACKAGED, id="demo"), identity(PACKAGED | FOLDER), True),
        # code that a model brings is part of it
        (identity(FOLDER | {"code": "x"}), identity(FOLDER | {"code": "y"}), False),
        (identity(FOLDER | {"code": "x"}), identity(FOLDER), False),
        # the tokenizer counts, and all the rest
        (identity(FOLDER), identity(FOLDER, tokenizer="u"), False),
        (identity(FOLDER), identity(FOLDER) | {"prompt_format": 2}, False),
        # where nothing is known of the weights, what they are called is all there is
        (identity(None, id="m"), identity(None, id="m"), True),
        (identity(None, id="m"), identity(None, id="n"), False),
        (identity(None, id="m", revision="a"), identity(None, id="m", revision="b"), False),
    ],
)
def test_what_counts(recorded: dict[str, Any], asked: dict[str, Any], *, same: bool) -> None:
    assert same_task(recorded, asked) is same
    assert (describe_change("topic", recorded, asked) == "task 'topic':") is same


def test_a_refusal_does_not_speak_of_what_does_not_count() -> None:
    said = describe_change("topic", identity(FOLDER, id="m"), identity({"weights": "abd"}))
    assert said.splitlines() == ["task 'topic':", '  model.weights.weights: "abc" → "abd"']
