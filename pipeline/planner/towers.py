"""What a model of several parts loads beside its decoder: for text alone it is dead weight, and it takes memory all the same."""

from __future__ import annotations

from pipeline.errors import CannotPlan
from pipeline.planner.blocks import linear, vector
from pipeline.planner.layers import Weight
from pipeline.planner.reading import Reading

_DECODER_ONLY = {"llama4", "qwen3_5", "qwen3_5_moe"}  # the library loads just their decoder for text
_PARTS = ("vision_config", "audio_config", "image_config", "encoder", "vision_tower_config", "audio_encoder_config")


def beside_decoder(c: Reading) -> list[Weight]:
    """Weights of towers that are loaded with the decoder. Raises CannotPlan for those that are not known here."""
    outer = str(c.outer.get("model_type") or "")
    present = [part for part in _PARTS if c.outer.get(part)]
    if not present or outer in _DECODER_ONLY:
        return []
    if outer == "gemma3" and present == ["vision_config"]:
        return _siglip(Reading(c.outer["vision_config"])) + _projector(c)
    raise CannotPlan(f"cannot plan this layer kind: {', '.join(present)} of model type {outer!r}; use the text-only model of that family")


def _siglip(v: Reading) -> list[Weight]:
    """A vision transformer (Zhai and others, SigLIP, 2023): biased projections, norms with scale and shift, learnt positions."""
    hidden, patch, channels = v.hidden, v.number("patch_size"), v.number("num_channels", default=3)
    layer = linear("vision", hidden, hidden, bias=True) * 4
    layer += linear("vision", v.intermediate, hidden, bias=True) + linear("vision", hidden, v.intermediate, bias=True)
    layer += vector("vision", 2 * hidden, 2)
    positions = (v.number("image_size") // patch) ** 2
    outside = [Weight("vision", hidden, channels * patch**2), *vector("vision", hidden), Weight("vision", positions, hidden)]
    return layer * v.layers + outside + vector("vision", 2 * hidden)


def _projector(c: Reading) -> list[Weight]:
    """From the tower's width to the decoder's: a bare parameter, and a norm."""
    hidden = Reading(c.outer["vision_config"]).hidden
    return [Weight("vision", hidden, c.hidden), *vector("vision", hidden)]
