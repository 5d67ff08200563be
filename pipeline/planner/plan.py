"""From a model's shape, a machine and a configuration to a frozen Plan and the Forecast that it follows
from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pipeline.config import Config
from pipeline.errors import ConfigError, DoesNotFit
from pipeline.planner.budget import (
    SHORTEST_TOKENS,
    USABLE_SHARE,
    Place,
    StoreWish,
    Wish,
)
from pipeline.planner.forecast import Forecast
from pipeline.planner.memory import PROCESS_BYTES
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.prompt_layout import questions_about_a_document
from pipeline.records import KvPlacement, Plan, Streaming, WeightMap
from pipeline.system.hardware import Hardware
from pipeline.system.units import amount

_Known = TypeVar("_Known")
# What a placement asks for: where the cache is, and in which numbers if not as computed.
_CACHES: dict[str, tuple[Place | None, str | None]] = {
    "auto": (None, None),
    "device": ("device", None),
    "offloaded": ("ram", None),
    "disk": ("disk", None),
    "quantized": ("device", "float8"),
}
_PLACEMENTS: dict[Place, KvPlacement] = {"device": "device", "ram": "offloaded", "disk": "disk"}


def usable(config: Config, hardware: Hardware) -> Hardware:
    """The machine as far as the configuration lets it be used: ``device_map``, and what ``max_memory`` says
    of cards. Without any card that is of no account; raises ConfigError where one is named beside others
    that is not there.
    """
    cards = hardware.gpu_bytes if config.model.device_map == "auto" else ()
    asked = config.model.max_memory or {}
    listed = [device for device in asked if isinstance(device, int)]
    absent = [device for device in listed if device >= len(cards)]
    if cards and absent:
        raise ConfigError(
            f"model.max_memory names graphics card {absent[0]}; this machine has {len(cards)}, counted from 0"
        )
    if not cards or not listed:
        return replace(hardware, gpu_bytes=cards)
    return replace(  # cards that are not named are not used
        hardware,
        gpu_bytes=tuple(min(cards[device], int(asked[device] / USABLE_SHARE)) for device in listed),
        gpu_names=_named(hardware.gpu_names, listed),
        gpu_processors=_named(hardware.gpu_processors, listed),
    )


def _named(of_cards: tuple[_Known, ...], listed: Sequence[int]) -> tuple[_Known, ...]:
    """What is known of the cards that are ``listed``, in their order; nothing where it is not known of
    all.
    """
    return tuple(of_cards[device] for device in listed) if max(listed) < len(of_cards) else ()


def wish_of(
    config: Config,
    most_tokens: int,
    resolved: Mapping[str, Any],
    *,
    process_bytes: int = PROCESS_BYTES,
    stored_dtype: str | None = None,
) -> Wish:
    """What the configuration asks for of a model that reads ``most_tokens``. Raises ConfigError."""
    place, cache_dtype = _CACHES[config.kv_cache.placement]
    store = config.kv_cache.store
    return Wish(
        quantization=config.model.quantization,
        dtype=str(resolved["dtype"]),
        context_tokens=_context(config, most_tokens),
        rows=config.engine.batch_rows,
        chunk_tokens=config.engine.prefill_chunk_tokens,
        questions_asked=questions_about_a_document(config),
        store=StoreWish(store.quota, store.documents, store.format),
        process_bytes=process_bytes,
        stored_dtype=stored_dtype,
        layout=resolved["layout"],
        cache_place=place,
        cache_dtype=cache_dtype,
        may_stream=config.engine.weights != "resident",
        must_stream=config.engine.weights == "streamed",
        most_weights_in_ram=(config.model.max_memory or {}).get("cpu"),
    )


def plan_of(
    config: Config, shape: ModelShape, hardware: Hardware, resolved: Mapping[str, Any], forecast: Forecast
) -> Plan:
    """The decisions of ``forecast`` as the engine obeys them. Raises DoesNotFit."""
    machine = usable(config, hardware)
    on_card, context, dtype = bool(machine.gpu_bytes), forecast.context_tokens, str(resolved["dtype"])
    rows = config.engine.batch_rows or forecast.most_rows
    tokens = config.engine.batch_tokens or forecast.batch_tokens
    sweep = forecast.sweep
    if tokens < min(context, SHORTEST_TOKENS) or (not forecast.fits and _refuses(forecast, shape)):
        raise DoesNotFit(_sentence(shape, forecast, context, dtype))
    reasons = [
        *forecast.reasons,
        *_about_context(config, shape, context),
        *_about_cache(config, forecast, on_card),
    ]
    if shape.assumed and shape.family:
        reasons.append(
            f"a model of the family {shape.family} could not be built without its weights; its memory is "
            f"reckoned as that of a Llama of its widths"
        )
    return Plan(
        dtype=dtype,
        quantization=config.model.quantization,
        placement=_placement(config, forecast),
        layout=resolved["layout"],
        context_tokens=context,
        max_batch_rows=rows,
        batch_tokens=max(tokens, min(context, SHORTEST_TOKENS)),
        prefill_chunk_tokens=forecast.chunk_tokens,
        kv_bytes_per_token=shape.kv_bytes_per_token(dtype),
        threads=config.engine.threads or hardware.cores,
        lossy_last_resort=config.kv_cache.lossy_last_resort,
        pass_logits=forecast.pass_logits,
        recording_bytes=forecast.recording_bytes if on_card else None,
        unpacked=forecast.unpacked,
        streaming=Streaming(
            sweep.weights["device"], sweep.weights["ram"], sweep.grain, sweep.micro_batch_rows
        )
        if sweep
        else None,
        cards=_cards(hardware) if on_card else (),
        weights=_weight_map(config, shape, forecast),
        reasons=tuple(reasons),
    )


def _cards(hardware: Hardware) -> tuple[str, ...]:
    """All cards of a machine, by name."""
    names = dict(enumerate(hardware.gpu_names))
    return tuple(names.get(card, f"number {card}") for card in range(len(hardware.gpu_bytes)))


def _weight_map(config: Config, shape: ModelShape, forecast: Forecast) -> WeightMap | None:
    """The forecast's, under the names that devices have; None where nobody knows what the model's parts are
    called.
    """
    split = forecast.split
    if split is None or shape.assumed:
        return None
    named = [device for device in config.model.max_memory or {} if isinstance(device, int)]
    names = {str(place): str(card) for place, card in enumerate(named)}  # the second in use may be card 3
    devices = {path: names.get(device, device) for path, device in split.devices.items()}
    if len(set(devices.values())) == 1:
        devices = {"": next(iter(devices.values()))}
    bytes_by_device = {names.get(device, device): bytes_ for device, bytes_ in split.bytes_by_device.items()}
    return WeightMap(devices, bytes_by_device)


def _refuses(forecast: Forecast, shape: ModelShape) -> bool:
    """Whether it is certain enough to refuse: of a family that is known, and not for want of room for the
    longest possible row alone.
    """
    return not (shape.assumed and shape.family) and not forecast.cache_room_bytes


def _sentence(shape: ModelShape, forecast: Forecast, context: int, dtype: str) -> str:
    least = min(context, SHORTEST_TOKENS)
    left = f"the KV cache of one prompt of {least} tokens needs {amount(shape.kv_bytes(least, dtype))}, "
    left += f"{amount(forecast.cache_room_bytes)} are left for it beside the weights and a pass"
    remedies = (
        "use a smaller model, quantization nf4, kv_cache.placement offloaded, or a smaller "
        "model.context_tokens"
    )
    steps = "; ".join(forecast.next_steps)
    return f"{left} ({forecast.reasons[-1]}); {remedies}" + (
        f". {steps[:1].upper()}{steps[1:]}" if steps else ""
    )


def weights_bytes(shape: ModelShape, quantization: str, dtype: str) -> int:
    """Bytes of the weights in memory: what 4- and 8-bit do not shrink stays in ``dtype`` (see
    planner/layers.py).
    """
    return shape.weights_bytes(quantization, dtype)


def _context(config: Config, most_tokens: int) -> int:
    wanted = config.model.context_tokens
    if wanted is not None and wanted > most_tokens:
        raise ConfigError(
            f"model.context_tokens is {wanted:,}, the model itself reads at most {most_tokens:,}"
        )
    return wanted or most_tokens


def _about_context(config: Config, shape: ModelShape, context: int) -> list[str]:
    own = f" (the model's own limit is {shape.context_tokens:,})" if config.model.context_tokens else ""
    return [f"prompts up to {context:,} tokens{own}"]


def _about_cache(config: Config, forecast: Forecast, on_card: bool) -> list[str]:
    if config.kv_cache.placement == "auto":
        known = on_card or forecast.cache_place != "device"
        return [] if known else ["KV cache on the device: without a GPU there is nothing to offload from"]
    return [f"KV cache {config.kv_cache.placement}, as configured"]


def _placement(config: Config, forecast: Forecast) -> KvPlacement:
    """The user's word; ``auto`` takes what the forecast found, which never changes an answer."""
    asked = config.kv_cache.placement
    return _PLACEMENTS[forecast.cache_place] if asked == "auto" else asked
