"""Which part of a model goes to which device: decided on the meta device before a weight is read, within the
memory allowed.

The map itself is made by transformers' own ``infer_auto_device_map``; here are the exact sizes it works with
(4- and 8-bit products shrink, embeddings and head do not), the memory allowed, and the answer when it does
not fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.config import ModelConfig
from pipeline.engine.model.blocks import stored_buffers
from pipeline.engine.model.library_logging import import_bitsandbytes
from pipeline.engine.model.location import Location
from pipeline.engine.model.meta import build_on_meta
from pipeline.engine.model.precision import architecture
from pipeline.errors import ConfigError, DoesNotFit
from pipeline.records import WeightMap
from pipeline.system.hardware import available_ram_bytes
from pipeline.system.units import amount

# nf4 with double quantization (Dettmers et al., QLoRA, 2023): 4 bits a weight, a byte a block of 64, a
# float32 a block of 256 of those.
_NF4_BYTES = 4 / 8 + 1 / 64 + 4 / (64 * 256)
_HEADROOM = 0.9  # share of free memory that weights may take where the configuration does not say


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """Device ("0", "cpu", "disk") of each module; "" is the whole model. ``bytes_by_device`` are sizes of
    weights.

    ``rewritten_bytes`` is what the offload folder must hold: weights that are read back from the model's own
    files need no copy.
    """

    devices: Mapping[str, str]
    bytes_by_device: Mapping[str, int]
    rewritten_bytes: int = 0

    @property
    def needed_bytes(self) -> int:
        """Weights on all devices together."""
        return sum(self.bytes_by_device.values())

    @property
    def on_card(self) -> bool:
        """Whether any of it is on a graphics card."""
        return any(device.isdigit() for device in self.devices.values())

    def device_map(self) -> dict[str, int | str]:
        """The map as transformers takes it: numbers for graphics cards."""
        return {
            module: int(device) if device.isdigit() else device for module, device in self.devices.items()
        }

    def describe(self) -> str:
        """``110 MiB of weights on cpu`` or ``6.9 GiB of weights on GPU 0, 2.0 GiB on disk``."""
        return ", ".join(
            f"{amount(bytes_)}{' of weights' if index == 0 else ''} on "
            f"{'GPU ' + device if device.isdigit() else device}"
            for index, (device, bytes_) in enumerate(self.bytes_by_device.items())
        )


def plan_device_map(
    config: ModelConfig, location: Location, dtype: str, planned: WeightMap | None = None
) -> DeviceMap:
    """Place the model: as ``planned``, or where nobody has planned it, as far as memory is allowed now.
    Raises DoesNotFit with the remedies, or ConfigError for a model that cannot be built.
    """
    model, quantizer = build_on_meta(architecture(location, config), config, dtype)
    amounts = _tensor_bytes(model)
    if planned is not None:
        return _as_planned(config, model, amounts, planned)
    needed, allowed = sum(amounts.values()), allowed_bytes(config)
    first = next(iter(allowed))
    if needed <= allowed[first]:
        return DeviceMap({"": str(first)}, {str(first): needed})
    _require_room_for_largest(amounts, allowed, config)
    devices = _spread(model, allowed)
    used = set(devices.values())
    if quantizer is not None and ("disk" in used or ("cpu" in used and len(used) > 1)):
        raise DoesNotFit(_does_not_fit(config, needed, allowed))
    by_device = _bytes_by_device(amounts, devices)
    rewritten = by_device.get("disk", 0) if _is_converted_while_loading(model) else 0
    return DeviceMap(devices, by_device, rewritten)


def _as_planned(config: ModelConfig, model: Any, amounts: Mapping[str, int], planned: WeightMap) -> DeviceMap:
    """Bytes are those of the plan, whose sizes are exact where ``amounts`` leave out the tables of 4 bits."""
    cards = [card for card in planned.bytes_by_device if card.isdigit()]
    free: dict[int | str, int] = {int(card): int(torch.cuda.mem_get_info(int(card))[0]) for card in cards}
    if any(planned.bytes_by_device[str(card)] > bytes_ for card, bytes_ in free.items()):
        raise DoesNotFit(_does_not_fit(config, sum(planned.bytes_by_device.values()), free))
    on_disk = _bytes_by_device(amounts, planned.devices).get("disk", 0)
    rewritten = on_disk if on_disk and _is_converted_while_loading(model) else 0
    return DeviceMap(planned.devices, planned.bytes_by_device, rewritten)


def allowed_bytes(config: ModelConfig) -> dict[int | str, int]:
    """Bytes of weights that each device may hold: as configured (never more than a graphics card has free),
    else most of what is free.
    """
    asked = config.max_memory or {}
    cards: dict[int | str, int] = {}
    if config.device_map == "auto" and torch.cuda.is_available():
        listed = [device for device in asked if isinstance(device, int)] or list(
            range(torch.cuda.device_count())
        )
        for card in listed:
            if not 0 <= card < torch.cuda.device_count():
                raise ConfigError(
                    f"model.max_memory names graphics card {card}; this machine has "
                    f"{torch.cuda.device_count()}"
                )
            free = int(torch.cuda.mem_get_info(card)[0])
            cards[card] = min(asked[card], free) if card in asked else int(free * _HEADROOM)
    return {**cards, "cpu": asked.get("cpu", int(available_ram_bytes() * _HEADROOM))}


class _Sizes:
    """Bytes an element by parameter, asked by transformers' placement functions where they know a
    quantizer.
    """

    def param_element_size(self, model: Any, name: str, parameter: torch.Tensor) -> float:
        bitsandbytes = import_bitsandbytes()
        module = model.get_submodule(name.rpartition(".")[0])
        if not name.endswith(".weight"):
            return float(parameter.element_size())
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            return _NF4_BYTES if parameter.dtype != torch.uint8 else 1 + 2 * (_NF4_BYTES - 0.5)
        if isinstance(module, bitsandbytes.nn.Linear8bitLt):
            return 1 + 4 / parameter.shape[-1]  # a float32 scale a row
        return float(parameter.element_size())


def _spread(model: Any, allowed: Mapping[int | str, int]) -> dict[str, str]:
    """Device of each module when one device is not enough: graphics cards share evenly, then RAM, then
    disk.
    """
    from transformers.integrations.accelerate import get_balanced_memory, infer_auto_device_map

    sizes: Any = _Sizes()  # stands in for a quantizer, of which only the sizes are asked
    # there is no other way to ask which blocks cannot be split
    together = model._no_split_modules  # noqa: SLF001
    memory = get_balanced_memory(
        model, max_memory=dict(allowed), no_split_module_classes=together, hf_quantizer=sizes
    )
    found = infer_auto_device_map(
        model,
        max_memory=memory,
        no_split_module_classes=together,
        hf_quantizer=sizes,
        no_placement_params=getattr(model, "_no_placement_params", None),
    )
    devices = {module: str(device) for module, device in found.items()}
    return devices if len(set(devices.values())) > 1 else {"": next(iter(devices.values()))}


def _tensor_bytes(model: Any) -> dict[str, int]:
    """Bytes by parameter and stored buffer, tied ones counted once."""
    tied, sizes = model.all_tied_weights_keys, _Sizes()
    tensors = {**dict(model.named_parameters()), **dict(stored_buffers(model))}
    return {
        name: int(tensor.numel() * sizes.param_element_size(model, name, tensor))
        for name, tensor in tensors.items()
        if name not in tied
    }


def _bytes_by_device(amounts: Mapping[str, int], devices: Mapping[str, str]) -> dict[str, int]:
    totals: Counter[str] = Counter(dict.fromkeys(devices.values(), 0))
    for name, bytes_ in amounts.items():
        parents = name.split(".")
        place = next(
            (key for end in range(len(parents), -1, -1) if (key := ".".join(parents[:end])) in devices), None
        )
        totals[devices[place] if place is not None else "cpu"] += bytes_
    return dict(totals)


def _is_converted_while_loading(model: Any) -> bool:
    """Whether the family's weights are stored otherwise than used (some mixtures of experts): disk offload
    copies those.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    return any(isinstance(entry, WeightConverter) for entry in get_model_conversion_mapping(model) or ())


def _require_room_for_largest(
    amounts: Mapping[str, int], allowed: Mapping[int | str, int], config: ModelConfig
) -> None:
    """Offloaded weights come back one module at a time, so the largest must fit where it is computed."""
    largest = max(amounts, key=amounts.__getitem__)
    where = next(iter(allowed))
    if amounts[largest] > allowed[where]:
        raise DoesNotFit(
            f"the largest weight of {config.id}, {largest}, takes {amount(amounts[largest])} and cannot be "
            f"split, and {_named(where)} "
            f"may hold {amount(allowed[where])}; use a smaller model, or raise model.max_memory"
        )


def _does_not_fit(config: ModelConfig, needed: int, allowed: Mapping[int | str, int]) -> str:
    cards = {device: bytes_ for device, bytes_ in allowed.items() if device != "cpu"} or allowed
    have = " and ".join(f"{amount(bytes_)} on {_named(device)}" for device, bytes_ in cards.items())
    remedies = ["a smaller model"]
    if config.quantization != "nf4":
        remedies.append("model.quantization: nf4")
    remedies.append("a larger model.max_memory" if config.max_memory else "closing other programs")
    if config.device_map == "auto" and "cpu" in allowed and len(allowed) > 1 and needed <= allowed["cpu"]:
        remedies.append("model.device_map: cpu")
    remedies.append("model.quantization: none, which keeps the rest in RAM or on disk and works, but slowly")
    return (
        f"{config.id} in {config.quantization} needs {amount(needed)} for its weights alone (embeddings and "
        f"head are not shrunk) "
        f"and there is room for {have}; quantized weights cannot be spread over RAM or disk beside it; "
        f"use {', '.join(remedies[:-1])}, or {remedies[-1]} "
        "(a smaller model.context_tokens frees memory for the KV cache, not for weights)"
    )


def _named(device: int | str) -> str:
    return f"GPU {device}" if isinstance(device, int) else "the CPU"
