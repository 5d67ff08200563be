"""Which weights in 4 bits are unpacked once, when they are loaded: on a card those that decoding as many rows
as fit would copy to 16 bits in every pass, on a processor all of them where memory is plenty.

Such a pass reads a weight in 4 bits, writes it in 16 and reads that: four and a half bytes a number. Unpacked
once, it takes two bytes to read, and two of the card's memory instead of half a one, which rows then lack.
So both are weighed by the tokens a second that they give, by the prediction. The numbers are the same: the
copy is what bitsandbytes multiplies with.

A processor has no product in 4 bits for float32: it unpacks all weights in every pass, which is a third more
time at 32 rows of the demo model (147 ms instead of 110, one core of an AVX512 processor).
"""

from __future__ import annotations

from dataclasses import replace

from pipeline.planner.budget import Need, Room, Wish
from pipeline.planner.model.layers import dtype_bytes
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.paying_rows import paying_rows, tokens_per_second
from pipeline.planner.placement import settle
from pipeline.system.hardware import Rates

Shapes = tuple[tuple[int, int], ...]
# Memory is given for no less than this: a prediction is not so sure that a percent would count.
_WORTH = 1.05
# Of the memory that a processor has left beside everything, no more than this part goes there.
_SPARE_PART = 0.5


def unpacked_weights(shape: ModelShape, have: Room, wish: Wish, rates: Rates) -> Shapes:
    """(out, in) of the weights to unpack; none where it does not pay, nothing is known of the card, or
    a card computes with numbers of 32 bits. Of the documents it depends on the longest row alone, as the
    plan.
    """
    if not have.on_card:
        return _in_spare_memory(shape, have, wish, rates)
    known = rates.memory_bytes_per_second is not None and rates.matmul_per_second is not None
    if not known or wish.fused is None or dtype_bytes(wish.dtype) != 2:
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


def _in_spare_memory(shape: ModelShape, have: Room, wish: Wish, rates: Rates) -> Shapes:
    if wish.quantization != "nf4" or wish.dtype != "float32" or wish.must_stream:
        return ()
    shapes = tuple(sorted({(weight.rows, weight.columns) for weight in shape.weights if weight.shrinks}))
    chunk = wish.chunk_tokens or have.chunk_tokens
    packed, plain = (Need.of(each, wish, chunk, on_card=False) for each in (shape, shape.unpacked(shapes)))
    left, more = have.device_bytes - packed.together_bytes, plain.weights_bytes - packed.weights_bytes
    where = settle(shape.unpacked(shapes), plain, have, wish, rates, [])
    resident = where.verdict == "resident" and where.sweep is None
    return shapes if resident and more <= left * _SPARE_PART else ()


def _pace(shape: ModelShape, have: Room, wish: Wish, rates: Rates) -> float:
    """Tokens a second of all rows that fit; 0 where the card does not hold everything."""
    need = Need.of(shape, wish, wish.chunk_tokens or have.chunk_tokens, have.on_card, have.devices)
    where = settle(shape, need, have, wish, rates, [])
    rows = where.rows(shape, have, wish)
    if where.verdict != "resident" or where.cache_place != "device" or not rows:
        return 0.0
    return tokens_per_second(shape, have, wish, rates, paying_rows(shape, have, wish, rates, rows))
