"""The decoders by name, each over a model that is already loaded; several may use one model in turn.

An engine that is not for this model, or not for this plan, is replaced by static batches, and the sentence
that goes into the report says so and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pipeline.engine.decoder_choice import Decoder
from pipeline.engine.hf.base import LibraryEngine, PlainEngine, disagreement
from pipeline.engine.interface import Engine
from pipeline.engine.model.forward import Forward, attention_as
from pipeline.engine.model.loading import LoadedModel
from pipeline.engine.packed.attention import IMPLEMENTATION
from pipeline.engine.packed.engine import PackedEngine
from pipeline.engine.packed.support import sliding_window, spread, unsupported
from pipeline.engine.reuse.fingerprint import CacheAccess
from pipeline.engine.static.engine import StaticEngine, is_quantizable
from pipeline.engine.static.staged_prefill import REUSABLE, StagedPrefill, not_reusable
from pipeline.engine.streaming.engine import StreamedEngine
from pipeline.engine.streaming.load import StreamedModel
from pipeline.errors import ConfigError
from pipeline.records import Plan

_RECENT_SHARE = 8  # of a batch's tokens: documents kept in memory between two questions
_LIBRARY_WORDS = {
    "transformers": "generate of transformers",
    "continuous": "continuous batching of transformers",
}


def open_decoder(
    name: Decoder | Literal["static"],
    loaded: LoadedModel,
    plan: Plan,
    *,
    end_ids: Sequence[int],
    pad_id: int,
    caches: CacheAccess | None = None,
) -> tuple[Engine, str]:
    """The engine called ``name`` and what it is, for the report. ``static``: our own batches that run to
    their end together.

    An engine that has nothing to do leaves the model to the others. Without ``end_ids`` texts end by their
    length or by a loop. ``caches``: where persisted caches are looked for. Raises ConfigError where a
    quantized KV cache is not for this model.
    """
    if plan.placement == "quantized":
        _require_quantizable(loaded)
    attention = str(loaded.facts["attention"])
    if isinstance(loaded, StreamedModel):
        return _streamed(name, loaded, plan, end_ids, pad_id, caches, attention)
    static = PlainEngine(loaded.model, plan, end_ids=end_ids, pad_id=pad_id, attention=attention)
    _prepare_stages(static, loaded, plan, caches, attention)
    if plan.placement != "device":
        return static, f"static batches (the KV cache is {plan.placement})"
    if name == "static":
        return static, "static batches"
    with attention_as(loaded.model, attention):
        if name == "overnight":
            return _overnight(loaded, plan, end_ids, static, caches)
        return _library(name, loaded, plan, end_ids, pad_id, static, attention)


def _streamed(
    name: Decoder | Literal["static"],
    loaded: StreamedModel,
    plan: Plan,
    end_ids: Sequence[int],
    pad_id: int,
    caches: CacheAccess | None,
    attention: str,
) -> tuple[Engine, str]:
    """Packed passes where they are for the model, each of them a sweep; else micro-batches side by side in
    each layer.
    """
    static = StreamedEngine(
        loaded.model, loaded.hooks, plan, end_ids=end_ids, pad_id=pad_id, attention=attention
    )
    told = "micro-batches on streamed weights"
    if name == "static" or plan.placement != "device":
        return static, f"{told} (the KV cache is {plan.placement})" if plan.placement != "device" else told
    if name != "overnight":
        return static, f"{told}; {_LIBRARY_WORDS[name]} is not for streamed weights"
    with attention_as(loaded.model, attention):
        engine, kind = _overnight(loaded, plan, end_ids, static, caches)
    return engine, kind.replace(
        "static batches", told
    ) if engine is static else f"{kind}, on streamed weights"


def _require_quantizable(loaded: LoadedModel) -> None:
    if not is_quantizable(Forward(loaded.model)):
        raise ConfigError(
            "kv_cache.placement: quantized is for models whose layers are all full attention; this one "
            "has others. "
            "Use device, offloaded or disk, or auto."
        )


def _prepare_stages(
    static: PlainEngine, loaded: LoadedModel, plan: Plan, caches: CacheAccess | None, attention: str
) -> None:
    """Let static batches use the store, where caches of this family can be taken apart and put together
    again.
    """
    if caches is None:
        return
    if plan.placement not in REUSABLE:
        caches.session.notes.append(f"Persisted caches are not used while the KV cache is {plan.placement}.")
        return
    with attention_as(loaded.model, attention):
        reason = not_reusable(loaded.model, plan.dtype)
    if reason is not None:
        caches.session.notes.append(f"Persisted caches are off for this model in static batches: {reason}")
        return
    static.stages = StagedPrefill(
        Forward(loaded.model), caches.of(attention), plan.batch_tokens // _RECENT_SHARE
    )


def _overnight(
    loaded: LoadedModel, plan: Plan, end_ids: Sequence[int], static: StaticEngine, caches: CacheAccess | None
) -> tuple[Engine, str]:
    reason = unsupported(loaded.model, plan)
    if reason is not None:
        return (
            static,
            f"static batches; continuous batching and prefix reuse are off for this model: {reason}",
        )
    window = sliding_window(loaded.model.config)
    reuse = caches.of(IMPLEMENTATION) if caches else None
    engine = PackedEngine(loaded.model, plan, end_ids=end_ids, static=static, window=window, reuse=reuse)
    return engine, "continuous batching over packed passes"


def _library(
    name: Decoder,
    loaded: LoadedModel,
    plan: Plan,
    end_ids: Sequence[int],
    pad_id: int,
    static: PlainEngine,
    attention: str,
) -> tuple[Engine, str]:
    kind = _library_kind(name)
    reason = _unsuited(kind, loaded, plan, pad_id, attention)
    if reason is not None:
        return static, f"static batches; {_LIBRARY_WORDS[name]} is off for this model: {reason}"
    engine = kind(loaded.model, plan, end_ids=end_ids, pad_id=pad_id, static=static, attention=attention)
    return engine, f"texts by {_LIBRARY_WORDS[name]}, scores in static batches"


def _library_kind(name: Decoder) -> type[LibraryEngine]:
    if name == "transformers":
        from pipeline.engine.hf.generate import GenerateEngine

        return GenerateEngine
    from pipeline.engine.hf.generate_batch import ContinuousLibraryEngine

    return ContinuousLibraryEngine


def _unsuited(
    kind: type[LibraryEngine], loaded: LoadedModel, plan: Plan, pad_id: int, attention: str
) -> str | None:
    if not kind.spread and (reason := spread(loaded.model)) is not None:
        return reason
    static = PlainEngine(loaded.model, plan, end_ids=(), pad_id=pad_id, attention=attention)
    trial = kind(loaded.model, plan, end_ids=(), pad_id=pad_id, static=static, attention=attention)
    return disagreement(trial, loaded.model, plan)
