"""The examples that a label task shows to the model: which, how they read, and what of them is part of the
task's identity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.errors import ConfigError
from pipeline.prompts import Tokenizer, Turn, count_tokens
from pipeline.quality.examples import Example, Examples, choose_examples
from pipeline.records import digest
from pipeline.tasks.label.section import LabelTask

IDENTITY_LEAVES_OUT = frozenset(
    {"examples", "gold", "label_field", "examples_per_label", "examples_tokens", "examples_seed"}
)
"""Keys of the configuration whose effect is what is shown, which enters the identity itself: a moved file
changes no answer.
"""


def choose(config: LabelTask, given: Sequence[Example], tokenizer: Tokenizer) -> Examples | None:
    """``examples_per_label`` of those given, or all, within ``examples_tokens``; None where there are none.
    Raises ConfigError.
    """
    if not given:
        return None
    chosen = choose_examples(
        given,
        list(config.labels),
        config.examples_per_label or len(given),
        budget_tokens=config.examples_tokens,
        count_tokens=lambda text: count_tokens(tokenizer, text),
        seed=config.examples_seed,
    )
    if not chosen.shown:
        raise ConfigError(
            f"task {config.name!r}: examples_tokens = {config.examples_tokens:,} holds not one example a "
            f"label; raise it"
        )
    return chosen


def turns(shown: Sequence[Example], names: Mapping[str, str], cue: str) -> tuple[Turn, ...]:
    """The examples as an earlier part of the conversation: the model has answered each as it is to answer the
    document.
    """
    return tuple((example.text.strip(), f"{cue} {names[example.label]}") for example in shown)


def identity(shown: Sequence[Example]) -> list[list[str]]:
    """``[id, label, digest of the text shown]`` of each example, in the order in which they are shown."""
    return [[example.id, example.label, digest(example.text)] for example in shown]
