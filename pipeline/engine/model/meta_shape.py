"""The shape of a model, taken from the model itself: built on the meta device, where no number takes memory,
and asked once, so that the library's own cache says what it keeps.

Parameters, what bitsandbytes shrinks, and the cache of every layer are those of the modules that will be
loaded. What a configuration alone must say (heads, widths, experts a token) is read from it. A model that
keeps something in another way than is known here is refused, and one that takes too many steps to ask.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pipeline.config import ModelConfig
from pipeline.engine.model.blocks import block_paths, owner_of, stored_buffers
from pipeline.engine.model.meta import build_on_meta
from pipeline.errors import CannotPlan
from pipeline.planner.model.hf_config import HfConfigReader
from pipeline.planner.model.layers import Block, Layer, LayerKind, Module, Weight
from pipeline.planner.model.shape import ModelShape

_TOKENS = 2
# Calls of torch in which a model must be built and asked, half a minute at most. Llama 3.1 405B
# takes 13,301 of them, a Llama of a thousand layers 105,072 in 17 s.
_MOST_CALLS = 200_000
_KINDS: Mapping[str, LayerKind] = {"sliding_attention": "sliding", "chunked_attention": "chunked"}
_KEEP_NOTHING = ("moe", "mlp")
# Layers of a cache that are known here; others may keep what is not seen below.
_KNOWN_LAYERS = {
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
    "DummyLayer",
}
_ACTIVE_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts")


def plain_values(built: Any) -> dict[str, Any]:
    """Of a configuration that transformers has read. What a family calls by names of its own has the
    library's names, too.
    """
    found: dict[str, Any] = built.to_dict()
    return found | {name: found[own] for name, own in built.attribute_map.items() if own in found}


def meta_shape(built: Any, config: ModelConfig) -> ModelShape:
    """Of a configuration that transformers has read (``precision.architecture``), which stays as it is.

    Raises CannotPlan, ConfigError, and what else building or asking a model raises, of as many kinds as there
    are models.
    """
    c = HfConfigReader(plain_values(built))
    with _Bounded(c.family):
        # 16 bits, so that states which are kept in 32 stand out
        model, _ = build_on_meta(copy.deepcopy(built), config, "bfloat16", quantized=False)
        kinds = _kinds(model.eval(), c)
    weights = _Weights(model, c)
    attends = any(layer.numbers_per_token for layer in kinds)
    heads = [layer.heads for layer in kinds if layer.numbers_per_token and layer.kind != "latent"]
    return ModelShape(
        layers=len(kinds),
        query_heads=c.heads if attends else 1,
        kv_heads=max(heads, default=c.heads) if attends else 1,
        head_dim=_head_dim(c, kinds) if attends else c.hidden,
        hidden=c.hidden,
        intermediate=c.intermediate,
        vocabulary=c.number("vocab_size"),
        context_tokens=c.context_tokens,
        family=c.family,
        kinds=kinds,
        weights=tuple(weights.all()),
        layer_weights=tuple(weights.different_layers()),
        tied=weights.tied,
        keeps_scores=config.attention == "eager" or not getattr(model, "_supports_sdpa", False),
        blocks=tuple(weights.blocks()),
    )


class _Bounded(TorchFunctionMode):
    """Inside, torch is called so often and no more, whatever sizes a configuration names. Raises
    CannotPlan.
    """

    def __init__(self, family: str) -> None:
        super().__init__()
        self._family, self._left = family, _MOST_CALLS

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self._left -= 1
        if self._left < 0:
            raise CannotPlan(
                f"cannot plan model type {self._family!r}: a model of the sizes that its configuration names "
                f"takes more than {_MOST_CALLS:,} steps to build"
            )
        return function(*args, **(kwargs or {}))


def _head_dim(c: HfConfigReader, kinds: tuple[Layer, ...]) -> int:
    """Of MLA, the width of a query head, whose keys are unpacked from the latent."""
    if any(layer.kind == "latent" for layer in kinds):
        return c.number("qk_nope_head_dim") + c.number("qk_rope_head_dim")
    return c.head_dim


# ── cache ───────────────────────────────────────────────────────────────────────────────────────────────────


def _kinds(model: Any, c: HfConfigReader) -> tuple[Layer, ...]:
    """What the library's cache holds, layer by layer, after a prompt of two tokens."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    model.config.pad_token_id = None  # else it looks for padding among numbers that are not there
    with torch.inference_mode(), torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ids = torch.zeros(1, _TOKENS, dtype=torch.long)
        model(ids, use_cache=True, cache=cache)
    types = getattr(model.config.get_text_config(), "layer_types", None) or [""] * c.layers
    kept: list[Any] = list(cache.layers)[: c.layers]
    return tuple(_layer(layer, str(kind), c) for layer, kind in zip(kept, types, strict=True))


def _layer(cached: Any, kind: str, c: HfConfigReader) -> Layer:
    if type(cached).__name__ not in _KNOWN_LAYERS:
        raise CannotPlan(f"cannot plan this layer kind: {type(cached).__name__} of model type {c.family!r}")
    states = list(_states(cached))
    small = sum(state.numel() for state in states if state.dtype != torch.float32)
    large = sum(state.numel() for state in states if state.dtype == torch.float32)
    keys: Any = getattr(cached, "keys", None)
    values: Any = getattr(cached, "values", None)
    if keys is None or not keys.numel():
        if not states and kind not in _KEEP_NOTHING:
            raise CannotPlan(
                f"cannot plan this layer kind: a layer of {c.family!r} leaves nothing in its cache"
            )
        named: LayerKind = "convolution" if kind == "conv" else "recurrent"
        return Layer(named if states else "none", state=small, state_float32=large)
    if keys.shape[-2] != _TOKENS:
        raise CannotPlan(f"cannot plan this layer kind: {c.family!r} caches more than the tokens it is given")
    window = getattr(cached, "sliding_window", None)
    called: LayerKind = "latent" if c.maybe("kv_lora_rank") else _KINDS.get(kind, "full")
    if called == "full" and window:
        called = "sliding"
    return Layer(
        "hybrid" if states else called,
        keys.shape[1],
        keys.shape[-1],
        values.shape[-1],
        window,
        small,
        large,
    )


def _states(cached: Any) -> Iterator[torch.Tensor]:
    for name in ("conv_states", "recurrent_states"):
        held = getattr(cached, name, None)
        for state in held.values() if isinstance(held, Mapping) else [held]:
            if isinstance(state, torch.Tensor):
                yield state


# ── weights ─────────────────────────────────────────────────────────────────────────────────────────────────


class _Weights:
    """Every parameter of a model in the planner's words."""

    def __init__(self, model: Any, c: HfConfigReader) -> None:
        self._model, self._c = model, c
        self._head = model.get_output_embeddings()
        self._owners = dict(model.named_modules())
        inputs = model.get_input_embeddings()
        self.tied = (self._head is not None and self._head.weight is inputs.weight) or _ties(model)
        self._found = {name: self._weight(name, parameter) for name, parameter in self._parameters()}
        self._prefix = _layers_prefix(model, c.layers)

    def all(self) -> list[Weight]:
        """Equal ones together, in the model's order."""
        return _together(self._found.values())

    def different_layers(self) -> list[tuple[Weight, ...]]:
        """The weights of each layer that differs from those before it."""
        layers: dict[str, list[Weight]] = {}
        for name, weight in self._found.items():
            if name.startswith(self._prefix):
                number = name[len(self._prefix) :].split(".")[0]
                layers.setdefault(number, []).append(weight)
        return list(dict.fromkeys(tuple(_together(layer)) for layer in layers.values()))

    def blocks(self) -> list[Block]:
        """What goes to a device together, in the model's order; a tied one behind the block it follows."""
        inside: dict[str, list[Weight]] = {path: [] for path in block_paths(self._model)}
        for name, weight in self._found.items():
            inside[owner_of(name, inside)].append(weight)
        buffers: Counter[str] = Counter()
        for name, tensor in stored_buffers(self._model):
            buffers[owner_of(name, inside)] += tensor.numel() * tensor.element_size()
        tied = {owner_of(own, inside): owner_of(other, inside) for own, other in self._ties().items()}
        return [
            Block(
                path,
                tuple(_together(weights)),
                path.startswith(self._prefix),
                buffers[path],
                "" if weights or tied.get(path) == path else tied.get(path, ""),
            )
            for path, weights in inside.items()
        ]

    def _ties(self) -> dict[str, str]:
        return dict(getattr(self._model, "all_tied_weights_keys", {}) or {})

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        tied = self._ties()
        for name, parameter in self._model.named_parameters():
            if name not in tied:
                yield name, parameter

    def _weight(self, name: str, parameter: Any) -> Weight:
        path, _, own = name.rpartition(".")
        owner = self._owners[path]
        if isinstance(owner, torch.nn.Embedding) and "vision" not in name:
            return Weight("embeddings", *_two(parameter))
        if owner is self._head:
            return Weight("head", *_two(parameter))
        if _is_experts(owner):
            return self._experts(own, parameter)
        shrinks = own == "weight" and _is_product(owner) and parameter.ndim == 2
        rows, columns = _two(parameter)
        if shrinks and type(owner) is not torch.nn.Linear:  # Conv1D keeps (in, out)
            rows, columns = columns, rows
        return Weight(_module(name, owner), rows, columns, shrinks=shrinks)

    def _experts(self, own: str, parameter: Any) -> Weight:
        """Seen as (out, in), whichever way they are kept; biases are (experts x out, 1)."""
        count, first = parameter.shape[0], parameter.shape[1]
        active = min(self._c.maybe(*_ACTIVE_KEYS) or count, count)
        if parameter.ndim == 2:
            return Weight("experts", count * first, experts=count, active=active)
        out, inside = first, parameter.shape[2]
        hidden = self._c.hidden
        wants_hidden_inside = "down" not in own
        if (inside if wants_hidden_inside else out) != hidden:
            out, inside = inside, out
        return Weight("experts", count * out, inside, experts=count, active=active)


def _ties(model: Any) -> bool:
    return bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False)) and bool(
        getattr(model, "all_tied_weights_keys", {})
    )


def _is_experts(owner: Any) -> bool:
    """Whether a module holds the experts of a layer as parameters of three dimensions."""
    return any(parameter.ndim == 3 for parameter in owner.parameters(recurse=False)) and not isinstance(
        owner, torch.nn.Conv1d
    )


def _is_product(owner: Any) -> bool:
    """What transformers exchanges for bitsandbytes' own: exactly nn.Linear or Conv1D."""
    from transformers.pytorch_utils import Conv1D

    return type(owner) is torch.nn.Linear or isinstance(owner, Conv1D)


def _module(name: str, owner: Any) -> Module:
    low = name.lower()
    if "vision" in low or "multi_modal" in low:
        return "vision"
    if "norm" in type(owner).__name__.lower() or "norm" in low.rpartition(".")[0].rpartition(".")[2]:
        return "norms"
    if "router" in low or low.endswith((".gate.weight", ".gate.bias")):
        return "router"
    if any(word in low for word in ("mlp", "feed_forward", "ffn", ".fc1", ".fc2", "expert")):
        return "mlp"
    recurrent = any(word in low for word in ("mamba", "linear_attn", "conv", "mixer"))
    return "recurrent" if recurrent else "attention"


def _two(parameter: Any) -> tuple[int, int]:
    """(rows, columns): of a vector its numbers and one; of more dimensions the first against the rest."""
    rows = parameter.shape[0] if parameter.ndim else 1
    return rows, parameter.numel() // max(rows, 1)


def _together(weights: Iterable[Weight]) -> list[Weight]:
    return [replace(weight, copies=count) for weight, count in Counter(weights).items()]


def _layers_prefix(model: Any, count: int) -> str:
    """Path of the outermost list of as many modules as there are layers, with its dot; an impossible one
    where there is none.
    """
    with contextlib.suppress(StopIteration):
        return next(
            f"{path}."
            for path, module in model.named_modules()
            if isinstance(module, torch.nn.ModuleList) and len(module) == count and "vision" not in path
        )
    return "\0"
