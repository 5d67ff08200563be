"""Weights that pass through the device layer by layer: how many of them stay there, and how many rows take part in each sweep.

Every byte that rows take for their caches is a byte of weights that is read again for each sweep, and every row that takes part shares
those readings. So both are chosen together, by the tokens a second that they give (the trade that Sheng et al., FlexGen, 2023, search).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.planner.hardware import Rates
from pipeline.planner.layers import dtype_bytes
from pipeline.planner.rooms import CACHE_SHARE, Need, Place, Room, Wish
from pipeline.planner.shape import ModelShape
from pipeline.planner.throughput import Speed, decode_step, fetch_seconds

Grain = Literal["layer", "module"]
# The most rows in one sweep: beyond these none gained a tenth on any machine that was looked at.
_MOST_ROWS = 512
_LARGEST_MICRO_BATCH, _USUAL_MICRO_BATCH = 256, 32
_HEAD_PIECE_BYTES = 8 * 2**20
# A larger batch is taken for at least this much more speed: its caches and its latency are not free.
_WORTH = 1.05


@dataclass(frozen=True, slots=True)
class Sweep:
    """``weights`` are bytes by place, ``working_bytes`` what the device holds of the units (``grain``) in use and on their way.

    ``swept_bytes``: what a sweep fetches; tables of which single rows are read are not among them. ``rows`` is the most that pays.
    """

    weights: dict[Place, int]
    grain: Grain
    working_bytes: int
    swept_bytes: int
    rows: int
    micro_batch_rows: int


def micro_batch_rows(shape: ModelShape, dtype: str, chunk_tokens: int, row_tokens: int) -> int:
    """Rows of one piece of a sweep, a power of two: as many as decode in the memory that a prefill chunk takes."""
    allowed = shape.activation_bytes(chunk_tokens, dtype, 1, max(0, row_tokens - chunk_tokens))
    rows = _USUAL_MICRO_BATCH
    while rows < _LARGEST_MICRO_BATCH and shape.activation_bytes(2 * rows, dtype, 2 * rows, row_tokens) <= allowed:
        rows *= 2
    return rows


def best_sweep(
    shape: ModelShape, need: Need, have: Room, wish: Wish, cache: Place, rates: Rates, chunk_tokens: int
) -> Sweep | None:  # fmt: skip
    """The fastest split of the device's memory between weights that stay and caches of rows; None where not even one row fits."""
    micro = micro_batch_rows(shape, wish.dtype, chunk_tokens, wish.row_tokens)
    known = rates.memory_bytes_per_second is not None and rates.matmul_per_second is not None
    best: tuple[float, Sweep] | None = None
    rows = 1
    while rows <= (wish.rows or _MOST_ROWS):
        found = _with_rows(shape, need, have, wish, cache, rows, micro)
        if found is None:
            break
        pace = _tokens_per_second(shape, have, wish, found, rates) if known else float(rows)
        if best is None or pace >= best[0] * _WORTH or wish.rows:
            best = (pace, found)
        if rows == wish.rows:
            break
        rows = min(2 * rows, wish.rows or 2 * rows)
    return best[1] if best else None


def _with_rows(shape: ModelShape, need: Need, have: Room, wish: Wish, cache: Place, rows: int, micro: int) -> Sweep | None:
    """As many weights as ``rows`` of the longest rows leave room for; layers as units, or single modules where those are too large."""
    on_device = need.row_bytes if cache == "device" else need.near_bytes
    # A single row was always promised its whole length; of many, storage that grows by doubling needs as much again.
    caches = on_device if rows == 1 else int(rows * on_device / CACHE_SHARE)
    far = need.row_bytes * rows if cache == "ram" else 0
    if far > have.ram_bytes or (cache == "disk" and need.far_bytes * rows > have.disk_bytes):
        return None
    # Tables are on the disk, and rows of them are read as they are needed; a tied one is the head, too, and is swept in pieces.
    tables = 0 if shape.tied else sum(weight.stored_bytes("none", wish.dtype) for weight in shape.weights if weight.module == "embeddings")
    for grain, working in _working_bytes(shape, need, wish).items():
        left = min(have.device_bytes - need.activation_bytes - caches, have.device_weights_bytes - need.unpacked_bytes) - working
        if left < 0:
            continue
        swept = need.weights_bytes - tables
        stays = min(swept, left - left % max(need.layer_bytes, 1) if left < swept else swept)
        in_ram = min(swept - stays, max(0, min(have.ram_bytes - far, have.ram_weights_bytes)))
        on_disk = need.weights_bytes - stays - in_ram
        if on_disk > have.disk_bytes:
            return None
        weights: dict[Place, int] = {"device": stays, "ram": in_ram, "disk": on_disk}
        return Sweep(weights, grain, working, swept - stays, rows, min(micro, rows) if rows > 1 else micro)
    return None


def _working_bytes(shape: ModelShape, need: Need, wish: Wish) -> dict[Grain, int]:
    """By unit: the one in use in plain numbers (4 bits), itself, and the one on its way. The head comes in pieces.

    The largest matrix in plain numbers is among the activations already.
    """
    shrinking = [weight for weight in shape.weights if weight.shrinks]
    stored = max((weight.stored_bytes(wish.quantization, wish.dtype) // weight.copies for weight in shrinking), default=0)
    plain = 0
    if wish.quantization == "nf4":
        shrunk = sum(weight.parameters for weight in shrinking)
        plain = max(0, shrunk * dtype_bytes(wish.dtype) // max(shape.layers, 1) - need.unpacked_bytes)
    piece = min(_HEAD_PIECE_BYTES, shape.vocabulary * shape.hidden * dtype_bytes(wish.dtype))
    return {"layer": 2 * max(need.layer_bytes, piece) + plain, "module": 2 * max(stored, piece)}


def _tokens_per_second(shape: ModelShape, have: Room, wish: Wish, sweep: Sweep, rates: Rates) -> float:
    from_disk = max(0, sweep.swept_bytes - sweep.weights["ram"])
    seconds = fetch_seconds(from_disk, sweep.weights["ram"], rates, on_card=have.on_card)
    step = decode_step(
        shape, Speed(rates), quantization=wish.quantization, dtype=wish.dtype, rows=sweep.rows, tokens=wish.row_tokens,
        transferred_bytes=sweep.swept_bytes, link_bytes_per_second=sweep.swept_bytes / seconds if seconds else None,
    )  # fmt: skip
    return sweep.rows / step.seconds
