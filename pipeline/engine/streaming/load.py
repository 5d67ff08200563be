"""From a configuration to a model whose weights are streamed: when that is what is wanted, and everything
that has to be there for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.config import Config
from pipeline.engine.model.device_map import DeviceMap, allowed_bytes, plan_device_map
from pipeline.engine.model.forward import lay_out_for_head
from pipeline.engine.model.library_logging import quiet_libraries
from pipeline.engine.model.loading import LoadedModel
from pipeline.engine.model.location import Location, fetch_weights
from pipeline.engine.model.peak_memory import PeakMemory, give_large_blocks_back
from pipeline.engine.streaming.layer_hooks import LayerHooks
from pipeline.engine.streaming.meta_model import build_skeleton, plain_products
from pipeline.engine.streaming.prepared_weights import Wanted, prepare
from pipeline.engine.streaming.tiers import plan_tiers
from pipeline.engine.streaming.weight_prefetcher import WeightPrefetcher, require_plain_head
from pipeline.errors import ConfigError, DoesNotFit
from pipeline.records import Plan, Streaming
from pipeline.system.hardware import available_ram_bytes
from pipeline.system.units import amount


@dataclass(frozen=True, slots=True)
class StreamedModel(LoadedModel):
    """A model whose layers have their weights only while they compute."""

    hooks: LayerHooks

    @property
    def input_device(self) -> torch.device:
        """Where token ids go."""
        return self.hooks.weights.device


def why_streamed(config: Config, location: Location, plan: Plan) -> str | None:
    """Why weights are to be streamed, as a sentence; None where they are to be loaded whole or offloaded by
    the library.

    Quantized weights are streamed where they do not fit, because the library keeps them on the device or not
    at all. Plain ones are offloaded by the library as long as the page cache can hold them, which is faster
    then: its pages are used where they lie.
    """
    asked = config.engine.weights
    if asked == "resident":
        return None
    if asked == "streamed":
        return "weights are streamed, as configured"
    if plan.streaming is not None and plan.quantization == "none":
        return (
            "weights do not fit, and by the plan the page cache cannot hold what would be offloaded to "
            "the disk"
        )
    if plan.streaming is not None:
        return (
            f"weights in {plan.quantization} do not fit beside what computes with them, and only "
            f"streaming keeps them quantized elsewhere"
        )
    try:
        placement = plan_device_map(config.model, location, plan.dtype, plan.weights)
    except DoesNotFit:
        if config.model.quantization == "none":
            raise
        return (
            f"weights in {config.model.quantization} do not fit on the device, and only streaming "
            f"keeps them quantized elsewhere"
        )
    on_disk, in_ram = (placement.bytes_by_device.get(place, 0) for place in ("disk", "cpu"))
    cached = max(0, available_ram_bytes() - in_ram)
    if on_disk > cached:
        return (
            f"{amount(on_disk)} of weights are on disk and {amount(cached)} of page cache cannot hold "
            f"them: they are read for each sweep"
        )
    return None


def open_streamed(
    config: Config,
    location: Location,
    dtype: str,
    weights: Mapping[str, str],
    say: Callable[[str], None],
    reason: str,
    planned: Streaming | None = None,
) -> StreamedModel:
    """Prepare the weights if need be, and build the model around them. ``planned``: which of them stay; None:
    as many as fit.

    Raises ConfigError, DoesNotFit or StoppedEarly.
    """
    try:
        return _open(config, location, dtype, weights, say, reason, planned)
    except (ConfigError, DoesNotFit) as error:
        if config.engine.weights == "streamed" or config.model.quantization != "none":
            raise
        raise type(error)(
            f"{error}; with engine.weights: resident the library offloads them instead, which is slower"
        ) from error


def _open(
    config: Config,
    location: Location,
    dtype: str,
    weights: Mapping[str, str],
    say: Callable[[str], None],
    reason: str,
    planned: Streaming | None,
) -> StreamedModel:
    quiet_libraries()
    fetch_weights(location, say)
    started = time.monotonic()
    device, device_bytes, ram_bytes = _room(config)
    give_large_blocks_back()  # for good: memory is what there is too little of
    with PeakMemory(on_card=device.type == "cuda") as peak:
        prepared = prepare(
            Wanted(config.model, location, dtype, weights, device), say, config.engine.prepared_quota
        )
        preparing_seconds = time.monotonic() - started
        meta_model = build_skeleton(config.model, location, dtype)
        require_plain_head(meta_model.model, config.model.id)
        tiers = plan_tiers(meta_model, prepared.files, config.model.id, device_bytes, ram_bytes, planned)
        plain_products(meta_model)
        say(f"streaming {config.model.id}: {tiers.describe(device.type)} ({reason})")
        streamed = WeightPrefetcher(meta_model, prepared, tiers, device)
        meta_model.model.get_input_embeddings().computes_on = device
        lay_out_for_head(meta_model.model)
        hooks = LayerHooks(meta_model.model, streamed)
    by_device = {
        str(device): tiers.bytes_in("device"),
        "cpu": tiers.bytes_in("ram"),
        "disk": tiers.bytes_in("disk"),
    }
    placement = DeviceMap({"": "streamed"}, {name: amount for name, amount in by_device.items() if amount})
    facts = {
        "weights_bytes": placement.needed_bytes,
        "dtype": dtype,
        "quantization": {"type": config.model.quantization, "compute_dtype": dtype},
        # the setting has no public reader
        "attention": str(meta_model.model.config._attn_implementation),  # noqa: SLF001
        "device_map": {"": f"streamed by the {tiers.grain}"},
        "bytes_by_device": dict(placement.bytes_by_device),
        "placement": tiers.describe(device.type),
        "streamed": {
            "reason": reason,
            "grain": tiers.grain,
            "sweep_bytes": tiers.sweep_bytes,
            "working_bytes": tiers.working_bytes,
        },
        "prepared_folder": str(prepared.folder),
        "preparing_seconds": round(preparing_seconds, 3),
        "load_seconds": round(time.monotonic() - started, 3),
        "peak_load_bytes": peak.bytes,
        "shipped_generation_settings": location.json("generation_config.json"),
    }
    return StreamedModel(meta_model.model, placement, facts, hooks)


def _room(config: Config) -> tuple[torch.device, int, int]:
    """(device that computes, bytes of weights it may hold, bytes of RAM for others). One graphics card, the
    first that is allowed.
    """
    allowed: dict[Any, int] = allowed_bytes(config.model)
    first = next(iter(allowed))
    if first == "cpu":
        return torch.device("cpu"), allowed["cpu"], 0
    return torch.device("cuda", first), allowed[first], allowed["cpu"]
