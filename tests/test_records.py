"""What a text is."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from pipeline.records import is_blank


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \t\r\n",
        "\0\0",
        "\u200b\u200b",
        "\ufeff",
        "\u2060\u00ad\u200d\u200e\u202e\u2069",
        "\x1b\x07\x7f\x85",
        "\u3000\u2028\u00a0",
        "\U000e0001\U000e0061",
        "\ufe0f\u3164\u115f\u2800",
        "\0" * 10**6,
    ],
    ids=ascii,
)
def test_nothing_to_read(text: str) -> None:
    assert is_blank(text)


@pytest.mark.parametrize(
    "text", ["a", ".", "\0" * 100_000 + "x", "\u200b1\u200b", "語", "👩\u200d🚀", "\ufffd", "\u0301"]
)
def test_something_to_read(text: str) -> None:
    assert not is_blank(text)


def test_every_character_that_leaves_ink_is_read() -> None:
    kinds = {
        kind[0] for kind in map(unicodedata.category, map(chr, range(sys.maxunicode))) if kind[0] not in "CZ"
    }
    seen = {
        unicodedata.category(chr(number))[0]
        for number in range(sys.maxunicode)
        if not is_blank(chr(number)) and unicodedata.category(chr(number))[0] not in "CZ"
    }
    assert kinds == seen
