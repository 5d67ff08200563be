"""From a family's line in the table and a configuration to all weights and all layers of the model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from pipeline.errors import CannotPlan
from pipeline.planner.model.families import FAMILIES, Family
from pipeline.planner.model.hf_config import HfConfigReader
from pipeline.planner.model.layer_patterns import layer_types, sliding_window
from pipeline.planner.model.layers import Layer, LayerKind, Weight
from pipeline.planner.model.modules import vector
from pipeline.planner.model.multimodal import beside_decoder

_ATTENTION: dict[str, LayerKind] = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "hybrid": "hybrid",
}


@dataclass(frozen=True, slots=True)
class Parts:
    """All layers in order, all weights, those of each different layer; whether the head is the embedding, and
    the family was assumed.
    """

    kinds: tuple[Layer, ...]
    weights: tuple[Weight, ...]
    layer_weights: tuple[tuple[Weight, ...], ...]
    tied: bool
    assumed: bool = False


def assemble(c: HfConfigReader) -> Parts:
    """Everything a model holds. Raises CannotPlan for what is not known here; a rough reading takes an
    unknown family for a Llama.
    """
    _ = c.layers, c.hidden  # what no decoder is without is missed first
    family = FAMILIES.get(c.family)
    if family is None and c.family and not c.rough:
        raise CannotPlan(
            f"cannot plan this layer kind: the layers of model type {c.family!r} are not known here, and "
            f"a guess may be wrong by half; "
            f"known are {', '.join(sorted(FAMILIES))}"
        )
    if family is None:
        # The base class of configurations ties the head where neither the file nor the family says otherwise.
        family = replace(FAMILIES["llama"], tied=True)
    unknown = bool(c.family) and c.family not in FAMILIES
    types = ["full_attention"] * c.layers if unknown else layer_types(c, family.pattern, family.window)
    kinds: list[Layer] = []
    weights: Counter[Weight] = Counter()
    different: dict[tuple[Weight, ...], None] = {}
    for index, kind in enumerate(types):
        layer, found = _layer(c, family, kind, index)
        kinds.append(layer)
        weights.update(found)
        different[tuple(found)] = None
    tied = c.flag("tie_word_embeddings", default=family.tied)
    every = [
        *_before(c, family),
        *(replace(weight, copies=weight.copies * count) for weight, count in weights.items()),
        *_after(c, family, tied),
    ]
    return Parts(tuple(kinds), tuple(every), tuple(different), tied, assumed=c.family not in FAMILIES)


def _layer(c: HfConfigReader, family: Family, kind: str, index: int) -> tuple[Layer, list[Weight]]:
    found = family.layer_extra(c) if family.layer_extra else []
    layer = Layer("none")
    if kind in {"linear_attention", "conv", "hybrid"}:
        if family.recurrent is None:
            raise CannotPlan(f"cannot plan this layer kind: {kind} of model type {c.family!r}")
        weights, layer = family.recurrent(c)
        found += weights
    if kind in _ATTENTION:
        kept = _kept(c, family, kind)
        layer = replace(kept, state=layer.state, state_float32=layer.state_float32)
        found += family.attention(c)
    norms = family.norms if isinstance(family.norms, int) else family.norms(c)
    found += vector("norms", c.hidden * family.norm_numbers, norms)
    return layer, found + family.feed(c, index)


def _kept(c: HfConfigReader, family: Family, kind: str) -> Layer:
    if family.cache is not None:
        return family.cache(c)
    heads = family.cached_heads(c) if family.cached_heads else c.kv_heads
    window = None
    if kind == "sliding_attention":
        window = sliding_window(c, family.window) or c.maybe("sliding_window")
        if not window:
            raise CannotPlan(
                f"cannot plan model type {c.family!r}: it has sliding layers and no sliding_window"
            )
    elif kind == "chunked_attention":
        window = c.number("attention_chunk_size")
    return Layer(_ATTENTION[kind], heads, c.head_dim, c.head_dim, window)


def _before(c: HfConfigReader, family: Family) -> list[Weight]:
    embeddings = [Weight("embeddings", c.number("vocab_size"), c.hidden)]
    return embeddings + (family.outside(c) if family.outside else []) + ([] if c.rough else beside_decoder(c))


def _after(c: HfConfigReader, family: Family, tied: bool) -> list[Weight]:
    found = vector("norms", c.hidden * family.norm_numbers, 1 if family.final_norm else 0)
    vocabulary = c.number("vocab_size")
    if not tied:
        found.append(Weight("head", vocabulary, c.hidden))
    return found + (vector("head", vocabulary) if c.flag(family.head_bias) else [])
