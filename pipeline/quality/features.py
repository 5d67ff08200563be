"""The model's states at the end of the prompts (``features``) as evidence for calibration: standardized, in
as few numbers as possible.

A linear map with an L2 penalty that is fitted on n documents lies in the space that their rows span, so
fitting in n rotated coordinates gives the same map as fitting in all of them (the representer theorem), and
takes a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.quality.scores import Floats, Ints

FEATURE_BYTES = 2
"""Of one feature as the ledger keeps it: float16."""

_LEAST_SPREAD = 1e-4
"""Of the largest spread: columns that vary less are the model's constants, or rounding."""


@dataclass(frozen=True, slots=True)
class Features:
    """Features of documents: ``values`` (documents, features), those of rows ``places`` of the score matrix,
    ascending.

    All documents, or in a large run a sample of them that holds every gold document.
    """

    places: Ints
    values: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Reduced:
    """Documents in other coordinates: ``values`` (documents, coordinates); the way back to plain features."""

    values: Floats
    basis: Floats
    mean: Floats

    def back(self, weights: Floats) -> tuple[Floats, Floats]:
        """From weights on the coordinates (labels, coordinates) to weights on features (labels, features) and
        what they add to the bias.
        """
        plain: Floats = weights @ self.basis
        return plain, -plain @ self.mean


def reduced(features: Features, gold_places: Ints) -> Reduced | None:
    """The gold documents' features, standardized over all documents given, their rows of about unit length;
    None where they are all alike.

    Raises KeyError for gold documents without features.
    """
    found = np.searchsorted(features.places, gold_places)
    if (found >= len(features.places)).any() or (features.places[found] != gold_places).any():
        raise KeyError("a gold document has no features")
    plain = standardized(features)
    if plain is None:
        return None
    left, sizes, right = np.linalg.svd(plain.values[found], full_matrices=False)
    used = sizes > 1e-9 * sizes.max(initial=0.0)
    return Reduced(left[:, used] * sizes[used], right[used] @ plain.basis, plain.mean) if used.any() else None


def standardized(features: Features) -> Reduced | None:
    """All documents in standardized columns, their rows of about unit length; None where they are all
    alike.
    """
    mean = features.values.mean(axis=0, dtype=np.float64)
    spread = features.values.std(axis=0, dtype=np.float64)
    kept = spread > _LEAST_SPREAD * max(spread.max(initial=0.0), 1e-12)
    if not kept.any():
        return None
    weights = np.zeros_like(spread)
    weights[kept] = 1 / (spread[kept] * np.sqrt(kept.sum()))
    basis = np.diag(weights)[kept]
    return Reduced((features.values.astype(np.float64) - mean)[:, kept] * weights[kept], basis, mean)


def unpacked(rows: Sequence[bytes]) -> npt.NDArray[np.float32] | None:
    """Features as the ledger keeps them (little-endian float16), (documents, features); None unless all have
    them, equally many.
    """
    sizes = {len(row) for row in rows}
    if len(sizes) != 1 or not (size := sizes.pop()) or size % FEATURE_BYTES:
        return None
    return (
        np.frombuffer(b"".join(rows), dtype="<f2")
        .reshape(len(rows), size // FEATURE_BYTES)
        .astype(np.float32)
    )
