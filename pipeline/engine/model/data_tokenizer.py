"""Copies of a tokenizer: one for which text is only data, one for text that stands in the middle of a prompt.

A control token is an added token that is not purely whitespace: the special ones (``<|im_end|>``) and others
that a model gives a meaning (``<think>``). The data copy has never heard of them: they are no longer added
tokens, so no normalizer, flag or overlap can form one from text; and where the model's own vocabulary lists
them, which ordinary text could reach (Unigram and WordPiece do), the entry keeps its id under a name that no
text has. Ordinary text is encoded as ever, in one call.

Both copies put no space before a text, as some tokenizers do at the start of one: here text always stands
after something, and ids of a followed by ids of b decode to a + b.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Backend

# how a vocabulary spells single bytes: data, even where listed as added
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def control_tokens(backend: Any) -> dict[int, str]:
    """Content of every control token by its id.

    A single character that the model's own vocabulary has is not one, though listed as added: text could not
    be written without it.
    """
    vocabulary = backend.get_vocab(with_added_tokens=False)
    return {
        number: token.content
        for number, token in backend.get_added_tokens_decoder().items()
        if token.content.strip()
        and not _BYTE_TOKEN.fullmatch(token.content)
        and not (len(token.content) == 1 and vocabulary.get(token.content) == number)
    }


def described(backend: Any) -> dict[str, Any]:
    """The tokenizer as plain values. Takes a while: the vocabulary is in it."""
    plain: dict[str, Any] = json.loads(backend.to_str())
    return plain


def has_prefix(plain: Mapping[str, Any]) -> bool:
    """Whether the tokenizer puts something before a text, or takes it away when decoding."""
    return any(
        _without_prefix(plain[part]) != plain[part] for part in ("normalizer", "pre_tokenizer", "decoder")
    )


def continuing_copy(plain: Mapping[str, Any]) -> Any:
    """The tokenizer for text in the middle of a prompt; control tokens are known."""
    return _copy(plain)


def data_copy(
    backend: Any, plain: Mapping[str, Any], control: Mapping[int, str]
) -> tuple[Any, dict[int, int]]:
    """The tokenizer that knows no control token, and its ids that differ from the original's (to the original
    ids).
    """
    added = [token for token in plain["added_tokens"] if token["id"] not in control]
    copy = _copy({**plain, "added_tokens": added, "model": _hidden(plain["model"], control)})
    # Added tokens that stayed (runs of spaces) are numbered anew where they lie beyond the model's own
    # vocabulary.
    kept = {
        number: backend.token_to_id(token.content)
        for number, token in copy.get_added_tokens_decoder().items()
    }
    return copy, {number: original for number, original in kept.items() if number != original}


def _copy(plain: Mapping[str, Any]) -> Any:
    parts = {part: _without_prefix(plain[part]) for part in ("normalizer", "pre_tokenizer", "decoder")}
    return Backend.from_str(json.dumps({**plain, **parts, "truncation": None, "padding": None}))


def _hidden(model: Mapping[str, Any], control: Mapping[int, str]) -> dict[str, Any]:
    """The model with its control entries renamed. The names are drawn at random: no text can be prepared to
    hold them.
    """
    names = {number: f"\ufdd0{secrets.token_hex(16)}" for number in control}
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # Unigram: [piece, score] by id
        return {
            **model,
            "vocab": [[names.get(number, piece), score] for number, (piece, score) in enumerate(vocabulary)],
        }
    hidden = {piece: names[number] for piece, number in vocabulary.items() if number in control}
    changed: dict[str, Any] = {
        **model,
        "vocab": {hidden.get(piece, piece): number for piece, number in vocabulary.items()},
    }
    if (
        model.get("unk_token") in hidden
    ):  # an unknown character still has its token; only its spelling in a text has not
        changed["unk_token"] = hidden[model["unk_token"]]
    if hidden and "merges" in model:
        changed["merges"] = [merge for merge in model["merges"] if hidden.keys().isdisjoint(_names_of(merge))]
    return changed


def _names_of(merge: Any) -> tuple[str, str, str]:
    left, right = merge if isinstance(merge, list) else merge.split(" ", 1)
    return left, right, left + right


def _without_prefix(part: Any) -> Any:
    """A normalizer, pre-tokenizer or decoder (as JSON) that neither adds nor removes a space at the start of
    a text.
    """
    if not isinstance(part, dict):
        return part
    changed = dict(part)
    for key in ("normalizers", "pretokenizers", "decoders"):
        if key in part:
            changed[key] = [_without_prefix(inner) for inner in part[key] if not _is_prefix(inner)]
    if part.get("type") == "ByteLevel" and "pretokenizers" not in part:
        changed["add_prefix_space"] = False
    if "prepend_scheme" in part:
        changed["prepend_scheme"] = "never"
    return None if _is_prefix(part) else changed


def _is_prefix(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    return kind == "Prepend" or (kind == "Strip" and part.get("content") == " ")
