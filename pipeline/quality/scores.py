"""Matrices of label scores: their checks, log-softmax, and documents in blocks that fit in memory.

A score matrix has a row a document and a column a label; values are natural-log probabilities, normalized or
not: a constant added to a row changes nothing here.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import UsageError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FLOOR = -30.0
"""No label's normalized log-probability is taken for lower: below 1e-13 the number says nothing, and a fit
would chase it.
"""

_BLOCK_CELLS = 1 << 22


def matrix(scores: npt.ArrayLike, labels: Sequence[str]) -> Floats:
    """``scores`` as float64, (documents, labels). Raises UsageError when shape or values are not those of
    label scores.
    """
    found = np.asarray(scores, dtype=np.float64)
    if found.ndim != 2 or found.shape[1] != len(labels):
        raise UsageError(
            f"label scores have the shape {found.shape}; one row a document and {len(labels)} columns, "
            f"one a label, are needed"
        )
    bad = np.flatnonzero(~np.isfinite(found).all(axis=1))
    if bad.size:
        raise UsageError(
            f"the scores of {bad.size:,} documents are not finite numbers, first in row {bad[0]:,}: "
            f"{found[bad[0]].tolist()}"
        )
    return found


def log_softmax(values: Floats) -> Floats:
    """Rows minus their log-sum-exp: natural logs of probabilities that sum to 1."""
    shifted = values - values.max(axis=1, keepdims=True)
    normalized: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalized


def normalized(scores: Floats) -> Floats:
    """What calibration works on: log-softmax of the raw scores, no lower than FLOOR."""
    return np.maximum(log_softmax(scores), FLOOR)


def blocks(rows: int, columns: int) -> Iterator[slice]:
    """Slices over ``rows`` of at most some four million cells each, so that a million documents need no
    second matrix.
    """
    step = max(1, _BLOCK_CELLS // max(1, columns))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def label_numbers(gold: Sequence[str], labels: Sequence[str]) -> Ints:
    """The gold labels as column numbers. Raises UsageError that names one that is not a label of the task."""
    places = {label: place for place, label in enumerate(labels)}
    unknown = sorted({label for label in gold if label not in places})
    if unknown:
        shown = ", ".join(repr(label) for label in labels[:10]) + (", ..." if len(labels) > 10 else "")
        raise UsageError(f"{unknown[0]!r} is not one of the task's {len(labels)} labels ({shown})")
    return np.array([places[label] for label in gold], dtype=np.int64)


def has_extra() -> bool:
    """Whether what fits (scikit-learn) is installed."""
    return importlib.util.find_spec("sklearn") is not None


def extra(module: str) -> ModuleType | Any:
    """A module of the extra ``evaluate``. Raises UsageError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = (
            f"this needs {module.partition('.')[0]}, which is not installed ({error}); install it "
            f"with: pip install 'overnight[evaluate]'"
        )
        raise UsageError(message) from None
