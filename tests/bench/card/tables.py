"""Measurements as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.bench.card.pairs import HOST_WAITS, LABEL_TRANSFERS, LAYER_LAUNCHES, LINK_SHARE, REPLAYED_LAUNCHES

_MIB = 2**20


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Of what ``measure`` found, part by part."""
    if "counts" in found:
        yield from _counts(found["counts"], found["before"])
    if "predictions" in found:
        yield from _predictions(found["predictions"], found["before"]["predictions"])
    if "nights" in found:
        yield from _nights(found["nights"])


def _counts(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    decode, was = now["decode"], before["decode"]
    yield f"Counted on a pretended card, {decode['rows']} rows, {decode['layers']} layers of Qwen3-4B in nf4:"
    yield f"  {'':44} {'before':>10} {'now':>10}  bar"
    rows = [
        ("launches a layer, eager", "layer_launches", str(LAYER_LAUNCHES)),
        ("launches a pass", "launches", f"{REPLAYED_LAUNCHES} beside a replay"),
        ("replays a pass", "replays", "1"),
        ("nodes of the replay", "nodes", ""),
        ("host waits a pass", "host_waits", str(HOST_WAITS)),
    ]
    for name, key, bar in rows:
        yield _row(name, was[key], decode[key], bar)
    share, had = (link_share(each["offloaded"]) for each in (now, before))
    yield _row("bytes to the card by those to be read", f"{had:.3f}", f"{share:.3f}", str(LINK_SHARE))
    written, wrote = (written_share(each["offloaded"]) for each in (now, before))
    yield _row("bytes from the card by those written", f"{wrote:.2f}", f"{written:.2f}", "")
    what = f"transfers, {now['labels']['documents']} documents x {now['labels']['labels']} labels"
    back = [each["labels"]["transfers"] for each in (before, now)]
    yield _row(what, *back, str(LABEL_TRANSFERS))
    yield "  kernels of a layer: " + ", ".join(f"{n} {name}" for name, n in decode["layer_kernels"].items())


def _row(name: str, was: Any, now: Any, bar: str) -> str:
    return f"  {name:44} {was:>10} {now:>10}  {bar}"


def link_share(offloaded: Mapping[str, Any]) -> float:
    """Bytes that a pass brings to the card, by the keys and values that it must read."""
    return float(offloaded["to_the_card_bytes"] / offloaded["to_be_read_bytes"])


def written_share(offloaded: Mapping[str, Any]) -> float:
    """Bytes that a pass takes back from the card, by the keys and values that are new."""
    return float(offloaded["from_the_card_bytes"] / offloaded["to_be_written_bytes"])


def _predictions(found: list[Mapping[str, Any]], before: list[Mapping[str, Any]]) -> Iterator[str]:
    was = {one["card"]: one["predicted_share"] for one in before}
    yield "Predicted, not measured: Qwen3-4B in nf4 at the planned batch, 1,000 tokens of each row cached"
    yield (
        f"  {'card':12} {'rows':>5} {'ms a pass':>10} {'tokens/s':>9} {'of bandwidth':>13} {'before':>7} "
        f"{'copied MiB':>11}  sets the pace"
    )
    for one in found:
        yield (
            f"  {one['card']:12} {one['rows']:>5} {1000 * one['predicted_seconds']:>10.1f} "
            f"{one['predicted_tokens_per_second']:>9,.0f} {one['predicted_share']:>13.0%} "
            f"{was[one['card']]:>7.0%} {one['copied_bytes'] / _MIB:>11,.0f}  {one['sets_the_pace']}"
        )


def _nights(found: list[Mapping[str, Any]]) -> Iterator[str]:
    yield "Dry nights: the card's fullest moment beside the plan's, MiB"
    for one in found:
        yield night_line(one)


def night_line(one: Mapping[str, Any]) -> str:
    """One pair of model and card."""
    pair = f"  {one['model']:12} {one['card_bytes'] / 2**30:>4.0f} GiB"
    for word in ("refused", "not loaded"):
        if word in one:
            return f"{pair}  {word}: {one[word]}"
    peak, plan = one["peak_bytes"], one["planned_bytes"]
    ooms = sum(part["out_of_memory"] for part in one["parts"])
    fullest = max(one["parts"], key=lambda part: part["peak_bytes"])["name"]
    return (
        f"{pair}  {peak / _MIB:>7,.0f} of {plan / _MIB:>7,.0f} ({peak / plan:.2f}), fullest in {fullest}; "
        f"{one['rows']} rows, {one['verdict']}; memory ran out {ooms} times, {len(one['races'])} races"
    )
