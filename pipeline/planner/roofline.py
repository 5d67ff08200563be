"""How long things take: pure formulas over bytes, operations and rates. Seconds are floats, everything else
whole numbers.

The formulas are rooflines (Williams, Waterman, Patterson, 2009): the slower of arithmetic and memory sets the
time. Prefill multiplies every weight with many tokens and is bound by arithmetic; decoding reads every weight
for a few tokens and is bound by memory. No real kernel reaches the roof; ``prefill_share`` and
``decode_share`` say how near ours comes, and are what `bench` calibrates. Of a graphics card a pass is
counted in more detail (``planner/pass_time.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pipeline.planner.fused_products import FusedRows
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.pass_time import (
    COUNTED,
    REACHED_ARITHMETIC,
    REACHED_BANDWIDTH,
    UNRECORDED,
    CardPass,
    logits_bytes,
)
from pipeline.system.hardware import Rates

# On this project's test machine SmolLM2-135M prefills 360 tokens/s where the roof says about 510, and decodes
# one row at 8.8 tokens/s where the memory alone would allow 15 to 20.
PREFILL_SHARE, DECODE_SHARE = 0.7, 0.6


@dataclass(frozen=True, slots=True)
class Speed:
    """A machine and how near to its roofs the engine comes; ``card``: how a graphics card decodes, None where
    there is none.
    """

    rates: Rates
    prefill_share: float = PREFILL_SHARE
    decode_share: float = DECODE_SHARE
    card: CardPass | None = None

    @classmethod
    def of(
        cls, rates: Rates, *, on_card: bool, fused: FusedRows | None = None, recorded: bool = True
    ) -> Speed:
        """Of a machine that computes there. ``fused``: of weights in 4 bits; ``recorded``: whether a card's
        passes are replayed.
        """
        if not on_card:
            return cls(rates)
        return cls(
            rates, REACHED_ARITHMETIC, REACHED_BANDWIDTH, CardPass(COUNTED if recorded else UNRECORDED, fused)
        )

    @property
    def arithmetic(self) -> float:
        """Operations a second that prefill reaches. Raises ValueError where the rate is not known."""
        return _known(self.rates.matmul_per_second, "matrix product rate") * self.prefill_share

    @property
    def memory(self) -> float:
        """Bytes a second that decoding reads."""
        return _known(self.rates.memory_bytes_per_second, "memory bandwidth") * self.decode_share


def _known(value: float | None, name: str) -> float:
    if value is None:
        raise ValueError(f"the {name} of this machine is not known; measure it or describe it")
    return value


def prefill_operations(shape: ModelShape, tokens: int, past_tokens: int = 0) -> float:
    """Operations to read ``tokens`` tokens after ``past_tokens``: 2 N a token, and 4 d (n^2/2 + n past) a
    layer for attention.

    N is without look-up tables and without the head, which only the last token meets (Kaplan and others,
    2020, table 1, causal half). A layer with a window attends to no more than that.
    """
    head = shape.vocabulary * shape.hidden
    width = shape.query_heads * shape.head_dim
    attended = 0.0
    for layer in shape.kinds:
        if layer.numbers_per_token:
            attended += tokens * _mean_seen(tokens, past_tokens, layer.window)
    return 2.0 * max(shape.matmul_parameters - head, 0) * tokens + 2.0 * head + 4.0 * width * attended


def _mean_seen(tokens: int, past: int, window: int | None) -> float:
    """Tokens that a token attends to on average: half of the new ones and all earlier ones, or the window."""
    seen = past + tokens / 2
    return seen if window is None else min(seen, float(window))


def prefill_seconds(shape: ModelShape, tokens: int, speed: Speed, past_tokens: int = 0) -> float:
    """Time to read ``tokens`` tokens of one row. A calibrated rate, if there is one, takes the place of the
    machine's arithmetic.
    """
    rate, at = speed.rates.prefill_tokens_per_second, speed.rates.prefill_at_tokens
    if rate and not at:
        return tokens / rate
    if rate and at:
        return prefill_operations(shape, tokens, past_tokens) * (at / rate) / prefill_operations(shape, at)
    return prefill_operations(shape, tokens, past_tokens) / speed.arithmetic


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One decoding step of a batch: where its time goes. ``seconds`` is for the whole batch; each row gets
    one token. On a card ``beside_seconds`` are copies of weights in 16 bits, written and read, and logits;
    ``dispatch_seconds`` launches and waits.
    """

    weights_seconds: float
    cache_seconds: float
    compute_seconds: float
    unpack_seconds: float = 0.0
    transfer_seconds: float = 0.0
    beside_seconds: float = 0.0
    dispatch_seconds: float = 0.0

    @property
    def resident_seconds(self) -> float:
        """Were everything in the memory of the device that computes. Weights in 4 bits become plain numbers
        first.
        """
        moving = self.weights_seconds + self.cache_seconds + self.beside_seconds
        return self.unpack_seconds + self.dispatch_seconds + max(moving, self.compute_seconds)

    @property
    def hidden(self) -> bool:
        """Whether computing takes as long as what travels meanwhile."""
        return self.transfer_seconds <= self.resident_seconds

    @property
    def bound(self) -> str:
        """What sets the pace: the largest part, or the transfer where that is not hidden."""
        if not self.hidden:
            return "fetching what is not on the device"
        parts = {
            "computing": self.compute_seconds,
            "unpacking the weights": self.unpack_seconds,
            "reading weights from memory": self.weights_seconds,
            "reading the cache": self.cache_seconds,
            "copies of weights in 16 bits": self.beside_seconds,
            "launching kernels": self.dispatch_seconds,
        }
        return max(parts, key=lambda name: parts[name])

    @property
    def seconds(self) -> float:
        """Pipelined: a layer's bytes travel while the layer before it computes, so the slower of the two sets
        the pace.
        """
        return max(self.resident_seconds, self.transfer_seconds)

    def times(self, factor: float) -> DecodeStep:
        """Where only the sum was measured: the parts of computing keep their proportion."""
        return DecodeStep(
            self.weights_seconds * factor,
            self.cache_seconds * factor,
            self.compute_seconds * factor,
            self.unpack_seconds * factor,
            beside_seconds=self.beside_seconds * factor,
            dispatch_seconds=self.dispatch_seconds * factor,
        )

    @property
    def slowdown(self) -> float:
        """How many times slower than resident."""
        return self.seconds / self.resident_seconds


def decode_step(
    shape: ModelShape,
    speed: Speed,
    *,
    quantization: str,
    dtype: str,
    rows: int,
    tokens: int,
    transferred_bytes: int = 0,
    link_bytes_per_second: float | None = None,
) -> DecodeStep:
    """One token for each of ``rows`` rows of ``tokens``: weights once, every row's cache, 2 N operations a
    row (Pope and others, 2022).

    ``transferred_bytes`` come over a link at each step: offloaded weights, or an offloaded cache. nf4 is
    unpacked first where ``dequantize_weights_per_second`` says that this takes time (on CPUs it does).
    """
    step = _resident_step(shape, speed, quantization, dtype, rows, tokens)
    rates = speed.rates
    if rates.decode_tokens_per_second and (rates.decode_at_rows or rows == 1):
        at_rows = rates.decode_at_rows or 1
        there = _resident_step(shape, speed, quantization, dtype, at_rows, rates.decode_at_tokens or tokens)
        step = step.times(at_rows / rates.decode_tokens_per_second / there.resident_seconds)
    transfer = (
        transferred_bytes / link_bytes_per_second if transferred_bytes and link_bytes_per_second else 0.0
    )
    return replace(step, transfer_seconds=transfer)


def _resident_step(
    shape: ModelShape, speed: Speed, quantization: str, dtype: str, rows: int, tokens: int
) -> DecodeStep:
    """By the formulas alone, with everything on the device."""
    weights = shape.read_bytes_per_step(quantization, dtype, rows) / speed.memory
    cache = shape.kv_bytes(tokens, dtype, rows) / speed.memory
    compute = 2.0 * shape.matmul_parameters * rows / speed.arithmetic
    step = DecodeStep(weights, cache, compute, unpack_seconds(shape, speed.rates, quantization))
    if speed.card is None:
        return step
    copied = speed.card.copied_bytes(shape, dtype, rows) if quantization == "nf4" else 0
    beside = (copied + logits_bytes(shape, dtype, rows)) / speed.memory
    return replace(step, beside_seconds=beside, dispatch_seconds=speed.card.dispatch.seconds(shape.layers))


def unpack_seconds(shape: ModelShape, rates: Rates, quantization: str) -> float:
    """Time to turn all weights in 4 bits into plain numbers once; 0 where products take them as they are, or
    no rate is known.
    """
    rate = rates.dequantize_weights_per_second
    return (
        sum(weight.parameters for weight in shape.weights if weight.shrinks) / rate
        if quantization == "nf4" and rate
        else 0.0
    )


def fetch_seconds(disk_bytes: int, ram_bytes: int, rates: Rates, *, on_card: bool) -> float | None:
    """Time for bytes that travel to the device: the disk and the link to a card work side by side. None: a
    rate is not known.
    """
    disk = _over(disk_bytes, rates.disk_read_bytes_per_second)
    link_rate = rates.to_device_pinned_bytes_per_second or rates.to_device_bytes_per_second
    link = (
        _over(disk_bytes + ram_bytes, link_rate)
        if on_card
        else _over(ram_bytes, rates.memory_bytes_per_second)
    )
    return None if disk is None or link is None else max(disk, link)


def _over(size_bytes: int, bytes_per_second: float | None) -> float | None:
    if not size_bytes:
        return 0.0
    return size_bytes / bytes_per_second if bytes_per_second else None


def transfer_seconds(moved_bytes: int, bytes_per_second: float) -> float:
    """One way: bytes by bandwidth."""
    return moved_bytes / bytes_per_second


def load_seconds(stored_bytes: int, rates: Rates) -> float:
    """Time to bring weights of ``stored_bytes`` (as they lie on the disk) to the device: the slower of disk
    and link.
    """
    disk = stored_bytes / _known(rates.disk_read_bytes_per_second, "disk read rate")
    link = stored_bytes / rates.to_device_bytes_per_second if rates.to_device_bytes_per_second else 0.0
    return max(disk, link)


@dataclass(frozen=True, slots=True)
class Duration:
    """A workload's time. The range is one standard error of the sample either way; it knows nothing of wrong
    rates.
    """

    prefill_seconds: float
    decode_seconds: float
    documents: int
    relative_error: float

    @property
    def seconds(self) -> float:
        """All documents."""
        return self.prefill_seconds + self.decode_seconds

    @property
    def range_seconds(self) -> tuple[float, float]:
        """One standard error below and above."""
        return self.seconds * (1 - self.relative_error), self.seconds * (1 + self.relative_error)

    @property
    def documents_per_hour(self) -> float:
        """Infinite where there is nothing to do."""
        return self.documents / self.seconds * 3600 if self.seconds else math.inf
