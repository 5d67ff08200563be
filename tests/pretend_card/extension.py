"""The device itself: ``card`` is the compiled module, in processes started with PRETEND_CARD.

card.memory(0), card.counts(), card.reset_counts(), card.races(), card.forget_races(),
card.fail_after(n, kind)
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

if "torch" not in sys.modules:
    raise ImportError("import torch first: the device comes with it")

import torch

from tests.pretend_card.build import MODULE, built


def _loaded() -> Any:
    if not _is_pretending():
        raise ImportError(
            "this process has no pretended card: it was not started with PRETEND_CARD and boot/"
        )
    spec = importlib.util.spec_from_file_location(MODULE, built())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _is_pretending() -> bool:
    """Whether boot/ has stepped in; a device that comes behind torch would be half of one."""
    return "tests.pretend_card.importing" in sys.modules


card = _loaded()


def index_of(device: Any = None) -> int:
    """The number of a card, however it is named; the current one for None."""
    if device is None or (isinstance(device, int) and device < 0):
        return int(card.get_device())
    if isinstance(device, int):
        return device
    found = torch.device(device)
    return int(card.get_device()) if found.index is None else found.index
