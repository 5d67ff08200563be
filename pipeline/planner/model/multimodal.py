"""What a model of several parts loads beside its decoder: for text alone it is dead weight, and it takes
memory all the same.
"""

from __future__ import annotations

from pipeline.errors import CannotPlan
from pipeline.planner.model.hf_config import HfConfigReader
from pipeline.planner.model.layers import Weight
from pipeline.planner.model.modules import linear, vector

_DECODER_ONLY = {"llama4", "qwen3_5"}  # the library loads just their decoder for text


def beside_decoder(c: HfConfigReader) -> list[Weight]:
    """Weights of towers that are loaded with the decoder. Raises CannotPlan for those that are not known
    here.
    """
    outer = str(c.outer.get("model_type") or "")
    if not outer or not c.family or outer in _DECODER_ONLY:
        return []
    if outer == "gemma3":
        return _siglip(HfConfigReader(c.outer["vision_config"])) + _projector(c)
    raise CannotPlan(
        f"cannot plan this layer kind: what model type {outer!r} has beside its {c.family} decoder is not "
        f"known here"
    )


def _siglip(v: HfConfigReader) -> list[Weight]:
    """A vision transformer (Zhai and others, SigLIP, 2023): biased projections, norms with scale and shift,
    learnt positions.
    """
    hidden, patch, channels = v.hidden, v.number("patch_size"), v.number("num_channels", default=3)
    layer = linear("vision", hidden, hidden, bias=True) * 4
    layer += linear("vision", v.intermediate, hidden, bias=True) + linear(
        "vision", hidden, v.intermediate, bias=True
    )
    layer += vector("vision", 2 * hidden, 2)
    positions = (v.number("image_size") // patch) ** 2
    outside = [
        Weight("vision", hidden, channels * patch**2),
        *vector("vision", hidden),
        Weight("vision", positions, hidden),
    ]
    return (
        layer * v.layers
        + outside
        + vector("vision", 2 * hidden)
        + (_pooling(v) if v.flag("vision_use_head", default=True) else [])
    )


def _pooling(v: HfConfigReader) -> list[Weight]:
    """A head that attends to all patches; torch's own attention module, which bitsandbytes passes over, and
    an MLP.
    """
    hidden = v.hidden
    attention = [
        Weight("vision", 3 * hidden, hidden),
        *vector("vision", 3 * hidden),
        Weight("vision", hidden, hidden),
        *vector("vision", hidden),
    ]
    mlp = linear("vision", v.intermediate, hidden, bias=True) + linear(
        "vision", hidden, v.intermediate, bias=True
    )
    return vector("vision", hidden) + attention + vector("vision", 2 * hidden) + mlp


def _projector(c: HfConfigReader) -> list[Weight]:
    """From the tower's width to the decoder's: a bare parameter, and a norm."""
    hidden = HfConfigReader(c.outer["vision_config"]).hidden
    return [Weight("vision", hidden, c.hidden), *vector("vision", hidden)]
