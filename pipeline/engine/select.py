"""The engine on a model that is loaded: packed passes where they are for the model and the plan, else static
batches, with the sentence that goes into the report and says why. Several engines may use one model in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.engine.interface import Engine
from pipeline.engine.model.forward import Forward, attention_as
from pipeline.engine.model.loading import LoadedModel
from pipeline.engine.packed.attention import IMPLEMENTATION
from pipeline.engine.packed.engine import PackedEngine
from pipeline.engine.packed.support import sliding_window, unsupported
from pipeline.engine.reuse.fingerprint import CacheAccess
from pipeline.engine.static.engine import StaticEngine, is_quantizable
from pipeline.engine.static.plain import PlainEngine
from pipeline.engine.static.staged_prefill import REUSABLE, StagedPrefill, not_reusable
from pipeline.engine.streaming.engine import StreamedEngine
from pipeline.engine.streaming.load import StreamedModel
from pipeline.errors import ConfigError
from pipeline.records import Plan

_RECENT_SHARE = 8  # of a batch's tokens: documents kept in memory between two questions


def select_engine(
    loaded: LoadedModel,
    plan: Plan,
    *,
    end_ids: Sequence[int],
    pad_id: int,
    caches: CacheAccess | None = None,
) -> tuple[Engine, str]:
    """The engine for ``loaded`` under ``plan``, and what it is, for the report. On streamed weights each
    packed pass is a sweep.

    An engine that has nothing to do leaves the model to the others. Without ``end_ids`` texts end by their
    length or by a loop. ``caches``: where persisted caches are looked for. Raises ConfigError where a
    quantized KV cache is not for this model.
    """
    static, told = static_engine(loaded, plan, end_ids=end_ids, pad_id=pad_id, caches=caches)
    if plan.placement != "device":
        return static, told
    with attention_as(loaded.model, str(loaded.facts["attention"])):
        reason = loaded.trials.reason_against("packed passes", lambda: unsupported(loaded.model, plan))
        if reason is not None:
            return static, f"{told}; continuous batching and prefix reuse are off for this model: {reason}"
        packed = _packed(loaded, plan, end_ids, static, caches)
    kind = "continuous batching over packed passes"
    if loaded.input_device.type != "cpu":  # there is only one way there
        kind += f", {packed.attention}"
    if isinstance(loaded, StreamedModel):
        return packed, f"{kind}, on streamed weights"
    return packed, f"{kind}; {packed.record_decoding()}" if loaded.input_device.type == "cuda" else kind


def static_engine(
    loaded: LoadedModel,
    plan: Plan,
    *,
    end_ids: Sequence[int],
    pad_id: int,
    caches: CacheAccess | None = None,
) -> tuple[StaticEngine, str]:
    """Batches that run to their end together, which take any model and plan, and what they are. On streamed
    weights several of them go side by side through each layer. Raises as ``select_engine``.
    """
    if plan.placement == "quantized":
        _require_quantizable(loaded)
    attention = str(loaded.facts["attention"])
    where = "" if plan.placement == "device" else f" (the KV cache is {plan.placement})"
    if isinstance(loaded, StreamedModel):
        streamed = StreamedEngine(
            loaded.model,
            loaded.hooks,
            plan,
            end_ids=end_ids,
            pad_id=pad_id,
            attention=attention,
            kv_folder=loaded.kv_folder,
        )
        return streamed, f"micro-batches on streamed weights{where}"
    static = PlainEngine(
        loaded.model, plan, end_ids=end_ids, pad_id=pad_id, attention=attention, kv_folder=loaded.kv_folder
    )
    _prepare_stages(static, loaded, plan, caches, attention)
    return static, f"static batches{where}"


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
        reason = loaded.trials.reason_against(
            "stored prefixes in static batches", lambda: not_reusable(loaded.model, plan.dtype)
        )
    if reason is not None:
        caches.session.notes.append(f"Persisted caches are off for this model in static batches: {reason}")
        return
    static.stages = StagedPrefill(
        Forward(loaded.model), caches.of(attention), plan.batch_tokens // _RECENT_SHARE
    )


def _packed(
    loaded: LoadedModel, plan: Plan, end_ids: Sequence[int], static: StaticEngine, caches: CacheAccess | None
) -> PackedEngine:
    window = sliding_window(loaded.model.config)
    reuse = caches.of(IMPLEMENTATION) if caches else None
    return PackedEngine(loaded.model, plan, end_ids=end_ids, static=static, window=window, reuse=reuse)
