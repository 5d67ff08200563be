"""Text that others wrote, made fit to stand inside a Markdown report or a spreadsheet: shown as it is, never
obeyed.
"""

from __future__ import annotations

import re

_FOLDED = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]+")
# can show a text in another order than it has
_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MARKS = re.compile(r"[&<>\\`*\[\]|~$!{}^]|_(?<![0-9A-Za-z]_)|_(?![0-9A-Za-z])")
_BLOCK_START = re.compile(r"^(?:[-+#=:]|(?P<number>\d{1,9})(?P<mark>[.)])(?=\s|$))")
_JOINER = "\u2060"  # word joiner: invisible, breaks what renderers would take for an address
_FORMULA = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
    "\n",
    "\uff1d",
    "\uff0b",
    "\uff0d",
    "\uff20",
)  # the last are full-width
_PLAIN_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_ADDRESS = re.compile(r"(?i)@|:(?=//)|(?<=mailto):|(?<=xmpp):|(?<=www)\.")


def escape(value: object, limit: int = 200) -> str:
    """``value`` as one line of Markdown or HTML text (not of an attribute).

    No link, image, script, heading, list, table cell or code span can come of it. White space and control
    characters are folded into single spaces; longer texts end in "…" after ``limit`` characters.
    """
    text = escape_exactly(fold(value, limit))
    return _BLOCK_START.sub(
        lambda found: f"{found['number']}\\{found['mark']}" if found["number"] else "\\" + found[0], text
    )


def fold(value: object, limit: int = 200) -> str:
    """``value`` on one line of at most ``limit`` characters, without anything that only steers the
    display.
    """
    head = str(value)[: 8 * limit]
    text = _FOLDED.sub(" ", _SURROGATE.sub("\ufffd", _DIRECTION.sub("", head))).strip()
    return text if len(text) <= limit and len(head) == len(str(value)) else text[: limit - 1] + "…"


def escape_exactly(text: str) -> str:
    """Every mark of Markdown and HTML inside a line as itself; addresses broken, so that no renderer makes
    links of them.
    """
    marked = _MARKS.sub(lambda found: _ENTITIES.get(found[0], "\\" + found[0]), text)
    return _ADDRESS.sub(lambda found: _JOINER + found[0], marked)


def spreadsheet_text(text: str) -> str:
    """``text`` for a cell of a CSV file: what a spreadsheet would take for a formula gets an apostrophe in
    front, but for plain numbers.
    """
    return "'" + text if text.startswith(_FORMULA) and not _PLAIN_NUMBER.fullmatch(text) else text


def from_spreadsheet(text: str) -> str:
    """What ``spreadsheet_text`` was given, for a cell that comes back from a person. A text that began with
    an apostrophe and a mark of a formula by itself cannot be told from it.
    """
    return text[1:] if text.startswith("'") and text[1:].startswith(_FORMULA) else text
