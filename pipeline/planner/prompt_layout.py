"""What ``layout: auto`` means: whether prompts begin with the instructions or with the document. Pure
arithmetic on the configuration and the length of documents.

Instructions first: all prompts of a task share their beginning, which is read once; each task reads each
document. Document first: all tasks share the reading of a document; each reads its instructions again for
each document. With n questions about documents of D tokens and instructions of I tokens each, the first costs
n x D and the second D + n x I a document.

It is not only a matter of time: small models answer a question better that they know before they read (the
demo model's labels of AG News: 0.68 right with the instructions first, 0.53 with the document first), so a
little time is not worth it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pipeline.config import Config, TaskSection

Layout = Literal["instructions_first", "document_first"]

# The share of the tokens that must be left for it to be worth it; all of them where documents are kept
# because somebody asked for it.
_WORTH_SHARE = 2 / 3
_CHARACTERS_PER_TOKEN = 4
_OWN_WORDS_TOKENS = 40  # the program's own words around instructions, and the template's


def choose_layout(config: Config, document_tokens: float) -> Layout:
    """Document first where several questions about documents of this length, or a store that keeps them all
    for later ones, make it pay.
    """
    store = config.kv_cache.store
    if not store.quota or store.documents == "never":
        return "instructions_first"
    instructions = [tokens for task in config.tasks for tokens in _instructions_tokens(task)]
    if store.documents == "always":  # another question like these will come
        instructions.append(max(instructions))
    separately, together = len(instructions) * document_tokens, document_tokens + sum(instructions)
    share = 1.0 if store.documents == "always" else _WORTH_SHARE
    return "document_first" if together < share * separately else "instructions_first"


def tokens_of(characters: float) -> float:
    """About how many tokens a text has."""
    return characters / _CHARACTERS_PER_TOKEN


def questions_about_a_document(config: Config) -> int:
    """How many questions the tasks have about each."""
    return sum(1 for task in config.tasks for _ in _instructions_tokens(task))


def _instructions_tokens(task: TaskSection) -> Iterator[int]:
    """About how many tokens each question of a task adds to a document."""
    for texts, more in task.questions():
        yield _tokens(texts) + more


def _tokens(value: Any) -> int:
    return _OWN_WORDS_TOKENS + _characters(value) // _CHARACTERS_PER_TOKEN


def _characters(value: Any) -> int:
    """Of all texts in it, keys included."""
    if isinstance(value, dict):
        return sum(_characters(key) + _characters(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return sum(map(_characters, value))
    return len(value) if isinstance(value, str) else 0
