"""Products with weights in 4 bits: up to how many rows a card reads them as they lie, and what they cost
beyond.

Fused, a product reads its weight once in 4 bits. Otherwise bitsandbytes writes a copy of the weight in 16
bits and reads that: with what it unpacks, nine times the bytes, in every pass. Which of both is the library's
choice; the engine asks it (``pipeline.engine.model.fused_products``) and hands the answers over as numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.planner.model.layers import Weight, dtype_bytes
from pipeline.planner.model.shape import ModelShape


@dataclass(frozen=True, slots=True)
class FusedRows:
    """``rows``: by (out, in) of a weight, the most rows of a fused product; ``origin`` says who says so."""

    rows: Mapping[tuple[int, int], int]
    origin: str

    def fuses(self, weight: Weight, rows: int) -> bool:
        """Whether ``rows`` rows are multiplied with ``weight`` as it lies. A shape that was not asked for is
        not.
        """
        return rows <= self.rows.get((weight.rows, weight.columns), 0)

    def limits(self) -> tuple[int, ...]:
        """Numbers of rows beyond which some product is no longer fused, ascending."""
        return tuple(sorted(set(self.rows.values())))

    def copied_bytes(self, shape: ModelShape, dtype: str, rows: int) -> int:
        """Bytes that a pass of ``rows`` rows over weights in 4 bits writes and reads beside them: copies in
        ``dtype``.
        """
        copied = sum(
            weight.parameters for weight in shape.weights if weight.shrinks and not self.fuses(weight, rows)
        )
        return 2 * copied * dtype_bytes(dtype)
