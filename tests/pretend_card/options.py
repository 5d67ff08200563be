"""What a process's pretended cards are: the variables of the environment that begin with ``PRETEND_``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tests.pretend_card.named_cards import CARDS, Card, sized

VARIABLE = "PRETEND_CARD"  # what switches the whole of it on
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True)
class Options:
    """The cards of a process.

    PRETEND_CARD        a name (rtx4060, rtx3060, rtx3090, t4, rtx5060ti, h200) or a size, "8GiB";
                        "2x8GiB" for two, "rtx3090,rtx4060" for these in this order
    PRETEND_CONTEXT     what a process's CUDA context takes of each (450MiB)
    PRETEND_FOREIGN     what other programs hold (0)
    PRETEND_CAPABILITY  compute capability, instead of the named card's (8.9 where only a size is said)
    PRETEND_WORKSPACE   what cuBLAS takes for each stream that multiplies (8.125MiB, on capability 9.0 32MiB)
    PRETEND_GRAPH_NODE  what the driver keeps for a node of a captured graph (12KiB)
    PRETEND_STRICT      0: races are noted, not raised
    PRETEND_POISON      0: new memory is not filled with 0xFF
    PRETEND_DRY         1: large tensors are followed (memory, launches, waits), not computed; any model goes
    PRETEND_CLOCK       1: events have happened when the pretended clock says so, see ``clock.py``
    PRETEND_STACKS      1: the report says where the host waited
    PRETEND_LOG         a folder: every process leaves PID.json there, see ``report.py``
    PRETEND_FAIL        "after=N,kind=K": the N-th launch from now fails; once: oom, cublas, cudnn; for ever:
                        lost, assert, ecc, gone. "kind=gone,mark=PATH": processes that start later find no
                        card, as PATH is there then

    ``CUDA_VISIBLE_DEVICES`` chooses among them, as on real ones.
    """

    cards: tuple[Card, ...]
    context_bytes: int
    foreign_bytes: int
    workspace_bytes: int | None
    graph_node_bytes: int
    strict: bool
    poison: bool
    dry: bool
    clock: bool
    stacks: bool
    log: str | None
    fail: tuple[int, str] | None
    gone_mark: str | None


def options_of(environment: Mapping[str, str] = os.environ) -> Options:
    """The options that an environment says. Raises ValueError for a size or a name that is none."""

    def on(name: str, otherwise: str) -> bool:
        return environment.get(name, otherwise) == "1"

    workspace = environment.get("PRETEND_WORKSPACE")
    return Options(
        cards=_cards(environment.get(VARIABLE, "8GiB"), environment.get("PRETEND_CAPABILITY")),
        context_bytes=bytes_of(environment.get("PRETEND_CONTEXT", "450MiB")),
        foreign_bytes=bytes_of(environment.get("PRETEND_FOREIGN", "0")),
        workspace_bytes=None if workspace is None else bytes_of(workspace),
        graph_node_bytes=bytes_of(environment.get("PRETEND_GRAPH_NODE", "12KiB")),
        strict=on("PRETEND_STRICT", "1"),
        poison=on("PRETEND_POISON", "1"),
        dry=on("PRETEND_DRY", "0"),
        clock=on("PRETEND_CLOCK", "0"),
        stacks=on("PRETEND_STACKS", "0"),
        log=environment.get("PRETEND_LOG") or None,
        fail=_failure(environment.get("PRETEND_FAIL", "")),
        gone_mark=_said(environment.get("PRETEND_FAIL", "")).get("mark"),
    )


def is_pretended(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a process that starts with ``environment`` has cards."""
    mark = _said(environment.get("PRETEND_FAIL", "")).get("mark")
    return bool(environment.get(VARIABLE)) and not (mark and os.path.exists(mark))  # noqa: PTH110


def bytes_of(text: str) -> int:
    """``"7.5GiB"`` in bytes."""
    found = re.fullmatch(r"([\d.]+)\s*([KMG]?i?B)?", text.strip())
    if not found:
        raise ValueError(f"{text!r} is no size; 8GiB is one")
    return int(float(found[1]) * _UNITS[found[2] or ""])


def _cards(text: str, capability: str | None) -> tuple[Card, ...]:
    found: list[Card] = []
    for part in text.split(","):
        many = re.match(r"(\d+)x", part.strip())
        which = part.strip()[many.end() if many else 0 :]
        found += [_card(which, capability)] * (int(many[1]) if many else 1)
    return tuple(found)


def _card(text: str, capability: str | None) -> Card:
    if text not in CARDS:
        return sized(bytes_of(text), _version(capability or "8.9"))
    card = CARDS[text]
    return card if capability is None else card.with_capability(_version(capability))


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def _failure(text: str) -> tuple[int, str] | None:
    said = _said(text)
    return (int(said["after"]), said.get("kind", "lost")) if said else None


def _said(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",")) if text else {}
