"""Whether a way of computing is for a model, found when it is loaded by reading a few tokens both plainly and
that way: one bound for the logits, one wording of the reasons, and each way is tried once a load.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from pipeline.engine.device_failure import is_device_lost
from pipeline.engine.out_of_memory import free_memory

VOCABULARY = 1000  # tokens of trials are among the first so many, which every vocabulary has


class Agreement(NamedTuple):
    """Largest difference of logits from those of a plain reading, and the largest of the latter."""

    difference: float
    scale: float


def compared(found: torch.Tensor, plain: torch.Tensor) -> Agreement:
    """How well ``found`` agrees with ``plain``: logits of one shape, in float32."""
    difference = float((found - plain).abs().max())
    return Agreement(difference if math.isfinite(difference) else math.inf, float(plain.abs().max()))


def trial_tokens(count: int, vocabulary: int) -> list[int]:
    """``count`` token ids to try a model of ``vocabulary`` tokens with."""
    return [3 + 7 * number % (min(vocabulary, VOCABULARY) - 3) for number in range(count)]


def reason_against(compare: Callable[[], Agreement], *, exact: bool) -> str | None:
    """Why the way that ``compare`` tries is not for the model; None when it is. ``exact``: numbers are of 32
    bits, so that more than their rounding is a difference.

    Whatever is raised is a reason: families are many, and the plain way is always there. Only a lost device
    leaves no way, and is raised.
    """
    try:
        agreement = compare()
    except Exception as error:  # as the docstring says
        if is_device_lost(error):
            raise
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    else:
        bound = (1e-3 if exact else 0.05) * max(1.0, agreement.scale)
        return None if agreement.difference <= bound else f"its logits differ by {agreement.difference:.2g}"
    free_memory()
    return reason


@dataclass(slots=True)
class Trials:
    """What trials of one loaded model have said, by the name of the way that was tried."""

    reasons: dict[str, str | None] = field(default_factory=dict)

    def reason_against(self, way: str, trial: Callable[[], str | None]) -> str | None:
        """Why ``way`` is not for the model, None when it is; ``trial`` is asked the first time only."""
        if way not in self.reasons:
            self.reasons[way] = trial()
        return self.reasons[way]
