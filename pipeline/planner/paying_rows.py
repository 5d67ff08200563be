"""How many of the rows that fit are worth decoding together on a card whose 4-bit products change their way
at some numbers of rows.

A row beyond what a product takes fused costs a copy of that weight in 16 bits in every pass: a few rows more
then decode slower than fewer did, many more pay for it.
"""

from __future__ import annotations

from pipeline.planner.budget import Room, Wish
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.weight_streaming import tokens_per_second
from pipeline.system.hardware import Rates


def paying_rows(shape: ModelShape, have: Room, wish: Wish, rates: Rates, fit: int) -> int:
    """Of ``fit`` rows of a typical length as many as give most tokens a second, by the prediction: all, or as
    many as some product takes fused. All where the user has said how many, or nothing is known of products or
    rates.
    """
    if wish.rows is not None or wish.fused is None:
        return fit
    fewer = [limit for limit in wish.fused.limits() if 0 < limit < fit]
    tokens = wish.typical_tokens
    return max([*fewer, fit], key=lambda rows: tokens_per_second(shape, have, wish, rates, rows, tokens))
