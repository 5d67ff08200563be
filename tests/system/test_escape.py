"""Untrusted text in a report, judged by a real Markdown parser: what was put in comes out as text, and as
nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from pipeline.system.escape import escape, fold

_PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
_JOINER = "\u2060"
_TRICKS = (
    "[a](http://x.y)",
    "![i](x.png)",
    "<script>alert(1)</script>",
    "<img src=x onerror=y>",
    "| a | b |",
    "\n| - | - |\n",
    "# h",
    "\n# h\n",
    "\nh\n===\n",
    "\nh\n---\n",
    "`code`",
    "```\nblock\n```",
    "~~~",
    "* * *",
    "- item",
    "1. item",
    "> quote",
    "**b**",
    "_i_",
    "__b__",
    "~~s~~",
    "http://evil.example",
    "https://evil.example",
    "www.evil.example",
    "a@evil.example",
    "<http://x.y>",
    "<a@b.c>",
    "[x]: http://y",
    "[x]",
    "&lt;",
    "&#42;",
    "\\",
    "\\`",
    "\\|",
    "mailto:a@b.c",
    "javascript:alert(1)",
    "\t",
    "    code",
    "\r\n",
    "\u2028",
    "\u202e",
    "\x00",
    "\ud800",
    "$x$",
    "a_b_c",
    "a__b",
    "+ x",
    "- [ ] todo",
    "2) x",
    "</td></tr>",
    "<!--",
    "]]>",
    "<?",
    "ftp://x",
    "WWW.evil.example",
    "\ufeff",
    "=",
    "---",
)
_texts = st.one_of(
    st.text(), st.lists(st.one_of(st.sampled_from(_TRICKS), st.text(max_size=3)), max_size=8).map("".join)
)


def _flat(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _flat(token.children or [])


def _rendered(markdown: str, allowed: set[str]) -> list[str]:
    """The text of each inline run; fails when there is any other token than those allowed."""
    tokens = _PARSER.parse(markdown)
    assert {token.type for token in _flat(tokens)} <= allowed | {"inline", "text", "text_special"}
    return [
        "".join(child.content for child in token.children or []) for token in tokens if token.type == "inline"
    ]


@given(_texts)
def test_a_cell_stays_a_cell_and_shows_the_text(text: str) -> None:
    table = {
        f"{name}_{end}" for name in ("table", "thead", "tbody", "tr", "th", "td") for end in ("open", "close")
    }
    shown = _rendered(f"| id | n |\n| --- | --- |\n| {escape(text, 10**6)} | 1 |\n", table)
    assert shown == ["id", "n", *_expected(text), "1"]


@given(_texts)
def test_an_item_stays_an_item(text: str) -> None:
    items = {
        f"{name}_{end}" for name in ("bullet_list", "list_item", "paragraph") for end in ("open", "close")
    }
    assert _rendered(f"- {escape(text, 10**6)}\n- next\n", items) == [
        *(text for text in _expected(text) if text),
        "next",
    ]


@given(_texts)
def test_a_paragraph_stays_a_paragraph(text: str) -> None:
    shown = _rendered(f"{escape(text, 10**6)}\n\nnext", {"paragraph_open", "paragraph_close"})
    assert shown == [*(text for text in _expected(text) if text), "next"]


@given(_texts)
def test_nothing_that_renderers_take_for_markup_or_an_address(text: str) -> None:
    line = escape(text, 10**6)
    assert not re.search(r"[<>\n\r]|[A-Za-z]://|(?i:www\.)|[A-Za-z0-9._+-]@", line)
    assert not re.search(r"(?<!\\)(?:\\\\)*[`|\[\]*!~]", line.replace("\\\\", ""))
    assert line.encode("utf-8").decode("utf-8") == line


def _expected(text: str) -> list[str]:
    """What a reader should see: the folded text, with joiners where an address was broken."""
    folded = fold(text, 10**6)
    return [
        re.sub(r"(?i)@|:(?=//)|(?<=mailto):|(?<=xmpp):|(?<=www)\.", lambda found: _JOINER + found[0], folded)
    ]


@given(st.text(), st.integers(2, 50))
def test_folding_is_one_line_within_the_limit(text: str, limit: int) -> None:
    folded = fold(text, limit)
    assert len(folded) <= limit
    assert len(folded.splitlines()) <= 1
    assert "  " not in folded
    assert not re.search("[\x00-\x1f\u202a-\u202e\u2066-\u2069]", folded)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("doc_001", "doc_001"),
        ("2.13.0+cpu", "2.13.0+cpu"),
        ('it\'s a "test"', 'it\'s a "test"'),
        ("a|b", "a\\|b"),
        ("1. x", "1\\. x"),
        ("<b>", "&lt;b&gt;"),
        ("a\n\tb", "a b"),
        (None, "None"),
    ],
)
def test_readable_where_it_can_be(text: object, shown: str) -> None:
    assert escape(text) == shown


def test_long_texts_are_cut_with_a_sign() -> None:
    assert escape("x" * 300) == "x" * 199 + "…"
    assert len(escape("\n" * 10_000 + "x")) <= 200
