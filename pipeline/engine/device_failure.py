"""Failures of a graphics card: which errors mean that it is lost to this process, and whether the cards that
a plan counts on are there at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from pipeline.engine.out_of_memory import is_out_of_memory
from pipeline.errors import DeviceLost

# Where the type does not tell: torch before it has a context, and libraries whose kernels could not be
# started, or ended early.
_TEXTS = (
    "no cuda gpus are available",
    "cuda driver initialization failed",
    "unexpected error from cudagetdevicecount",
    "cublas_status_execution_failed",
    "cublas_status_internal_error",
    "cublas_status_mapping_error",
    "cudnn_status_execution_failed",
    "cudnn_status_internal_error",
)


def is_device_lost(error: object) -> bool:
    """Whether nothing further can be computed in this process: the device failed, other than for memory."""
    if is_out_of_memory(error):
        return False
    return isinstance(error, torch.AcceleratorError | DeviceLost) or (
        isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _TEXTS)
    )


@contextmanager
def naming_the_device(cards: Sequence[str]) -> Iterator[None]:
    """Inside, a device that is lost raises DeviceLost, which names ``cards``."""
    try:
        yield
    except DeviceLost:
        raise
    except Exception as error:
        if not is_device_lost(error):
            raise
        raise DeviceLost(failure_of(cards, error)) from error


def failure_of(cards: Sequence[str], error: object) -> str:
    """What is said of a card that failed, in a sentence's beginning."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{_named(cards)} failed: {lines[0]}"


def require_cards(planned: Sequence[str]) -> None:
    """Raise DeviceLost where fewer cards are there than were ``planned`` for, by name: what was planned for a
    card is never computed elsewhere without a word.
    """
    there = torch.cuda.device_count() if planned and torch.cuda.is_available() else 0
    if there < len(planned):
        raise DeviceLost(
            f"{_named(planned)} {'is' if len(planned) == 1 else 'are'} what the plan counts on, and "
            f"{there or 'none'} can be used any more"
        )


def _named(cards: Sequence[str]) -> str:
    return f"the graphics card{'' if len(cards) < 2 else 's'} {' and '.join(cards)}".rstrip()
