"""Parts of a loaded model that a card computes in fewer launches, put in place of the library's where they
give the same numbers.

At a few dozen rows a launch costs more than what it computes: a decoder layer of the library is about 60 of
them beside its products and its attention, 12 with these parts. On a processor, where a launch is a call, the
library's parts stay.
"""

from __future__ import annotations

from typing import Any

from pipeline.engine.model.forward import input_device
from pipeline.engine.model.fused_norm import fuse_norms
from pipeline.engine.model.fused_rotary import fuse_rotary


def fuse(model: Any) -> str:
    """Put them in place, and say which are, for the report. Weights must be loaded; those that a hook brings
    stay as they are.
    """
    device = input_device(model)
    if device.type != "cuda":
        return "none"
    parts = [f"{count} norms"] if (count := fuse_norms(model)) else []
    if fuse_rotary(model, device):
        parts.append("rotary embedding")
    return ", ".join(parts) or "none"
