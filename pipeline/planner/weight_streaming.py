"""Weights that pass through the device layer by layer: how many of them stay there, and how many rows take
part in each sweep.

Every byte that rows take for their caches is a byte of weights that is read again for each sweep, and every
row that takes part shares those readings. So both are chosen together, by the tokens a second that they give
(the trade that Sheng et al., FlexGen, 2023, search).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.planner.budget import FAR_CACHE_SHARE, SHORTEST_TOKENS, Need, Place, Room, Wish
from pipeline.planner.fused_products import FusedRows
from pipeline.planner.memory import streamed_pass_bytes
from pipeline.planner.model.layers import dtype_bytes
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.roofline import Speed, decode_step, fetch_seconds
from pipeline.records import Grain
from pipeline.system.hardware import Rates

# The most rows in one sweep: beyond these none gained a tenth on any machine that was looked at.
_MOST_ROWS = 512
_LARGEST_MICRO_BATCH, _USUAL_MICRO_BATCH = 256, 32
_HEAD_PIECE_BYTES = 8 * 2**20
# A larger batch, or smaller units, are taken for more speed than this: caches, latency and switching are not
# free.
_WORTH = 1.05


@dataclass(frozen=True, slots=True)
class Sweep:
    """``weights`` are bytes by place, ``working_bytes`` what the device holds of the units (``grain``) in use
    and on their way.

    ``pass_bytes``: of a micro-batch. ``swept_bytes``: what a sweep fetches; tables of which single rows are
    read are not among them. ``rows`` is the most that pays.
    """

    weights: dict[Place, int]
    grain: Grain
    working_bytes: int
    pass_bytes: int
    swept_bytes: int
    rows: int
    micro_batch_rows: int

    def link_bytes_per_second(self, rates: Rates, *, on_card: bool) -> float | None:
        """At which what is swept arrives, from disk and RAM side by side; None where nothing is, or a rate is
        not known.
        """
        in_ram = self.weights["ram"]
        seconds = fetch_seconds(max(0, self.swept_bytes - in_ram), in_ram, rates, on_card=on_card)
        return self.swept_bytes / seconds if seconds else None


def micro_batch_rows(shape: ModelShape, dtype: str, chunk_tokens: int, row_tokens: int) -> int:
    """Rows of one piece of a sweep, a power of two: as many as decode in the memory that a prefill chunk
    takes.
    """
    allowed = shape.activation_bytes(chunk_tokens, dtype, 1, max(0, row_tokens - chunk_tokens))
    rows = _USUAL_MICRO_BATCH
    while (
        rows < _LARGEST_MICRO_BATCH
        and shape.activation_bytes(2 * rows, dtype, 2 * rows, row_tokens) <= allowed
    ):
        rows *= 2
    return rows


def best_sweep(
    shape: ModelShape, need: Need, have: Room, wish: Wish, cache: Place, rates: Rates, chunk_tokens: int
) -> Sweep | None:
    """The fastest split of the device's memory between weights that stay and caches of rows; None where not
    even one row fits.

    Several cards count as the first of them alone: a sweep passes through one.
    """
    sweeps = list(_sweeps(shape, need, have, wish, cache, chunk_tokens))
    if wish.rows and sweeps:  # as many as asked for, if they fit
        sweeps = [sweep for sweep in sweeps if sweep.rows == sweeps[-1].rows]
    paces = [
        tokens_per_second(shape, have, wish, rates, sweep.rows, wish.row_tokens, sweep) for sweep in sweeps
    ]
    return next(
        (sweep for sweep, pace in zip(sweeps, paces, strict=True) if pace * _WORTH >= max(paces)), None
    )


def _sweeps(
    shape: ModelShape, need: Need, have: Room, wish: Wish, cache: Place, chunk_tokens: int
) -> Iterator[Sweep]:
    """Numbers of rows (1, 2, 3, 4, 6, 8, 12, ...), with layers as units and with single modules, as far as
    they fit.
    """
    micro, most = micro_batch_rows(shape, wish.dtype, chunk_tokens, wish.row_tokens), wish.rows or _MOST_ROWS
    grains = _working_bytes(shape, wish)
    for rows in sorted(
        {most, *(rows for power in range(10) for rows in (2**power, 3 * 2**power) if rows < most)}
    ):
        for grain, working in grains.items():
            found = _with_rows(
                shape, need, have, wish, cache, rows, grain, working, min(micro, most), chunk_tokens
            )
            if found is not None:
                yield found


def _with_rows(
    shape: ModelShape,
    need: Need,
    have: Room,
    wish: Wish,
    cache: Place,
    rows: int,
    grain: Grain,
    working: int,
    micro: int,
    chunk_tokens: int,
) -> Sweep | None:
    """As many weights as ``rows`` of the longest rows leave room for."""
    on_device = need.row_bytes if cache == "device" else need.near_bytes
    least = (
        shape.kv_bytes(min(wish.context_tokens, SHORTEST_TOKENS), wish.kept_dtype) if cache == "device" else 0
    )
    caches = int(max(rows * on_device, least) / have.cache_share)
    far = int(rows * need.row_bytes / FAR_CACHE_SHARE) if cache == "ram" else 0
    if far > have.ram_bytes or (cache == "disk" and rows * need.far_bytes > have.disk_bytes):
        return None
    # A pass holds a chunk of prompts, or a token of each row.
    together = min(micro, rows)
    tokens = max(together, min(chunk_tokens, rows * wish.row_tokens))
    reading = streamed_pass_bytes(
        shape, wish.dtype, tokens, together, max(0, wish.row_tokens - tokens // together), have.on_card
    )
    alone = shape.scores_bytes(tokens, wish.dtype, 1, max(0, wish.context_tokens - tokens))
    passing = max(reading, alone if have.on_card else 0) + need.unpacked_bytes - need.matrix_bytes
    left = min(have.first_device_bytes - passing - caches, have.device_weights_bytes) - working
    if left < 0:
        return None
    # Tables are on the disk, and rows of them are read as they are needed; a tied one is the head, too, and
    # is swept in pieces.
    tables = (
        0
        if shape.tied
        else sum(
            weight.stored_bytes("none", wish.dtype)
            for weight in shape.weights
            if weight.module == "embeddings"
        )
    )
    swept = need.weights_bytes - tables
    stays = swept if left >= swept else left - left % max(need.layer_bytes, 1)
    in_ram = min(swept - stays, max(0, min(have.ram_bytes - far, have.ram_weights_bytes)))
    weights: dict[Place, int] = {"device": stays, "ram": in_ram, "disk": need.weights_bytes - stays - in_ram}
    return Sweep(weights, grain, working, passing, swept - stays, rows, micro)


def _working_bytes(shape: ModelShape, wish: Wish) -> dict[Grain, int]:
    """By unit: the one in use in plain numbers (4 bits), itself, and the one on its way; and norms, which
    always stay.

    The head comes in pieces.
    """
    quantization, dtype = wish.quantization, wish.dtype
    piece = min(_HEAD_PIECE_BYTES, shape.vocabulary * shape.hidden * dtype_bytes(dtype))
    norms = sum(
        weight.stored_bytes(quantization, dtype) for weight in shape.weights if weight.module == "norms"
    )
    layer, module = (
        shape.largest_layer_bytes(quantization, dtype),
        shape.largest_module_bytes(quantization, dtype),
    )
    plain_layer = shape.plain_layer_bytes(dtype) if quantization == "nf4" else 0
    plain_matrix = shape.largest_matrix_bytes(dtype) if quantization == "nf4" else 0
    return {
        "layer": 2 * max(layer, piece) + plain_layer + norms,
        "module": 2 * max(module, piece) + plain_matrix + norms,
    }


def tokens_per_second(
    shape: ModelShape,
    have: Room,
    wish: Wish,
    rates: Rates,
    rows: int,
    tokens: int,
    sweep: Sweep | None = None,
) -> float:
    """Of ``rows`` rows of ``tokens`` that decode together, with all weights on the device or in sweeps. Where
    no rates are known, the rows: more are better.
    """
    if rates.memory_bytes_per_second is None or rates.matmul_per_second is None:
        return float(rows)
    step = decode_step(
        shape,
        speed_of(rates, have, wish, sweep),
        quantization=wish.quantization,
        dtype=wish.dtype,
        rows=rows,
        tokens=tokens,
        transferred_bytes=sweep.swept_bytes if sweep else 0,
        link_bytes_per_second=sweep.link_bytes_per_second(rates, on_card=have.on_card) if sweep else None,
    )
    return rows / step.seconds


def speed_of(rates: Rates, have: Room, wish: Wish, sweep: Sweep | None) -> Speed:
    """Of the machine under this plan. Streamed weights are unpacked before they are multiplied, whatever the
    rows.
    """
    unpacked = FusedRows({}, "streamed weights are unpacked a unit at a time")
    fused = unpacked if sweep and wish.quantization == "nf4" else wish.fused
    return Speed.of(rates, on_card=have.on_card, fused=fused, recorded=sweep is None)
