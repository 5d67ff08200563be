"""What a decoding pass costs a graphics card, and how long it takes by that: a prediction from counts, for
cards on which nothing was measured.

The time is what the card's memory and arithmetic take for what the pass moves and computes, the slower of
both, and beside that what it costs to get the kernels going: each launch, or one replay of a recorded pass
and its nodes, and each time the host waits. Activations of decoding are small enough for the card's cache and
are not counted; logits are.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.planner.fused_products import FusedRows
from pipeline.planner.model.layers import dtype_bytes
from pipeline.planner.model.shape import ModelShape

# What good kernels reach of the figures in a data sheet.
REACHED_BANDWIDTH, REACHED_ARITHMETIC = 0.8, 0.5
# What a launch costs where kernels are shorter than it, a replay and each of its nodes, and a host that waits
# for the card and then has to get going again.
LAUNCH_SECONDS, REPLAY_SECONDS, NODE_SECONDS, WAIT_SECONDS = 6e-6, 10e-6, 1e-6, 15e-6


@dataclass(frozen=True, slots=True)
class Dispatch:
    """How a pass gets to the card: kernels a layer and beside the layers, whether they are recorded once and
    replayed, and how often the host waits.
    """

    layer_launches: int
    pass_launches: int
    host_waits: int
    replayed: bool

    def seconds(self, layers: int) -> float:
        """Of a pass of ``layers`` layers."""
        kernels = layers * self.layer_launches
        waiting = self.host_waits * WAIT_SECONDS
        if self.replayed:
            nodes = kernels * NODE_SECONDS
            return REPLAY_SECONDS + nodes + self.pass_launches * LAUNCH_SECONDS + waiting
        return (kernels + self.pass_launches) * LAUNCH_SECONDS + waiting


# As counted on a pretended RTX 4060 (tests/pretend_card/test_bars.py), 32 rows of Qwen3-4B in nf4: recorded,
# and where a pass cannot be, as with streamed weights.
COUNTED = Dispatch(layer_launches=31, pass_launches=8, host_waits=1, replayed=True)
UNRECORDED = Dispatch(layer_launches=31, pass_launches=24, host_waits=1, replayed=False)
# More a layer where rows share a beginning: attention over it, and a join.
SHARED_LAUNCHES = 5


@dataclass(frozen=True, slots=True)
class CardPass:
    """How a card decodes: ``fused`` None where weights are not in 4 bits."""

    dispatch: Dispatch
    fused: FusedRows | None = None

    def copied_bytes(self, shape: ModelShape, dtype: str, rows: int) -> int:
        """Bytes of 16-bit copies of weights, written and read again."""
        return 0 if self.fused is None else self.fused.copied_bytes(shape, dtype, rows)


def logits_bytes(shape: ModelShape, dtype: str, rows: int) -> int:
    """Written by the head, read to be made float32, written and read once more."""
    return rows * shape.vocabulary * (2 * dtype_bytes(dtype) + 2 * 4)


def useful_bytes(shape: ModelShape, quantization: str, dtype: str, rows: int, tokens: int) -> int:
    """What no way of decoding can do without: the weights once, as they are kept, and the keys and values of
    ``rows`` rows of ``tokens`` once.
    """
    return shape.read_bytes_per_step(quantization, dtype, rows) + shape.kv_bytes(tokens, dtype, rows)
