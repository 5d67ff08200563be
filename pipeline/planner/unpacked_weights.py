"""Which weights in 4 bits are unpacked once, when they are loaded: those that decoding as many rows as fit
would copy to 16 bits in every pass.

Such a pass reads a weight in 4 bits, writes it in 16 and reads that: four and a half bytes a number. Unpacked
once, it takes two bytes to read, and two of the card's memory instead of half a one, which rows then lack.
So both are weighed by the tokens a second that they give, by the prediction. The numbers are the same: the
copy is what bitsandbytes multiplies with.
"""

from __future__ import annotations

from dataclasses import replace

from pipeline.planner.budget import Need, Room, Wish
from pipeline.planner.model.layers import dtype_bytes
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.paying_rows import paying_rows
from pipeline.planner.placement import settle
from pipeline.planner.weight_streaming import tokens_per_second
from pipeline.system.hardware import Rates

Shapes = tuple[tuple[int, int], ...]
# Memory is given for no less than this: a prediction is not so sure that a percent would count.
_WORTH = 1.05


def unpacked_weights(shape: ModelShape, have: Room, wish: Wish, rates: Rates) -> Shapes:
    """(out, in) of the weights to unpack; none where it does not pay, nothing is known of the card, or
    numbers of 32 bits are computed with. Of the documents it depends on the longest row alone, as the plan.
    """
    known = rates.memory_bytes_per_second is not None and rates.matmul_per_second is not None
    if not known or wish.fused is None or not have.on_card or dtype_bytes(wish.dtype) != 2:
        return ()
    longest = replace(wish, loads=())
    best: Shapes = ()
    least = _pace(shape, have, longest, rates) * _WORTH
    for limit in wish.fused.limits():
        shapes = tuple(sorted(name for name, rows in wish.fused.rows.items() if rows <= limit))
        pace = _pace(shape.unpacked(shapes), have, longest, rates)
        if least and pace > least:
            best, least = shapes, pace
    return best


def _pace(shape: ModelShape, have: Room, wish: Wish, rates: Rates) -> float:
    """Tokens a second of all rows that fit; 0 where the card does not hold everything."""
    need = Need.of(shape, wish, have.chunk_tokens(shape, wish), have.on_card, have.devices)
    where = settle(shape, need, have, wish, rates, [])
    rows = where.rows(shape, have, wish)
    if where.verdict != "resident" or where.cache_place != "device" or not rows:
        return 0.0
    paying = paying_rows(shape, have, wish, rates, rows)
    return tokens_per_second(shape, have, wish, rates, paying, wish.typical_tokens)
