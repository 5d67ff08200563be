"""A model with its weights, placed as planned, in the numbers asked for, and the facts of it for the
report.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pipeline.config import ModelConfig
from pipeline.engine.device_failure import is_device_lost
from pipeline.engine.model.device_map import DeviceMap, plan_device_map
from pipeline.engine.model.forward import input_device, lay_out_for_head
from pipeline.engine.model.fused import fuse
from pipeline.engine.model.library_logging import import_bitsandbytes, quiet_libraries
from pipeline.engine.model.load_errors import memory_errors_raised
from pipeline.engine.model.location import Location, fetch_weights, locate
from pipeline.engine.model.nf4 import quantizing_in_pieces
from pipeline.engine.model.peak_memory import PeakMemory, large_blocks_given_back
from pipeline.engine.model.precision import (
    INT8_THRESHOLD,
    architecture,
    resolve_attention,
    settle_quantization,
    torch_dtype,
)
from pipeline.engine.model.unpacked_products import unpack_products
from pipeline.engine.out_of_memory import is_out_of_memory
from pipeline.engine.trial import Trials
from pipeline.errors import ConfigError, DoesNotFit, OutOfMemory
from pipeline.records import WeightMap
from pipeline.system.units import amount


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """``model`` is in evaluation mode and never moved again. ``facts`` are plain values (JSON), for the
    report; ``trials`` what was found out about it. Its engines keep caches that are to be on disk in
    ``kv_folder``, None: where the system keeps temporary files.
    """

    model: Any
    placement: DeviceMap
    facts: Mapping[str, Any]
    kv_folder: Path | None = field(default=None, kw_only=True)
    trials: Trials = field(default_factory=Trials, kw_only=True)

    @property
    def input_device(self) -> torch.device:
        """Where token ids go."""
        return input_device(self.model)


def load_model(
    config: ModelConfig,
    dtype: str,
    offload_folder: Path,
    say: Callable[[str], None] = lambda _: None,
    location: Location | None = None,
    unpacked: Collection[tuple[int, int]] = (),
    planned: WeightMap | None = None,
) -> LoadedModel:
    """Place the model as ``planned``, else as far as memory is there, and read the weights. ``dtype`` is
    resolved. Raises ConfigError, DoesNotFit, or OutOfMemory while reading.

    ``offload_folder`` is private to the run; the caller removes it. ``unpacked``: shapes of weights in 4 bits
    that are not to stay so.
    """
    quiet_libraries()
    place = location or locate(config, say)
    fetch_weights(place, say)
    placement = plan_device_map(config, place, dtype, planned)
    _require_disk_space(placement, offload_folder)
    say(f"loading {config.id}: {placement.describe()}")
    started = time.monotonic()
    with PeakMemory(on_card=placement.on_card) as peak, contextlib.ExitStack() as tidy:
        tidy.enter_context(memory_errors_raised())
        if config.quantization != "none":
            tidy.enter_context(large_blocks_given_back())
            tidy.enter_context(quantizing_in_pieces())
        model = _read_weights(config, dtype, place, placement, offload_folder)
        unpack_products(model, unpacked, torch_dtype(dtype))
    compute_as_asked(model, dtype)
    lay_out_for_head(model)
    facts = {
        **describe_model(model),
        "fused_parts": fuse(model),
        "dtype": dtype,
        "quantization": _quantization_facts(model, dtype),
        # the setting has no public reader
        "attention": str(model.config._attn_implementation),  # noqa: SLF001
        "device_map": dict(placement.devices),
        "bytes_by_device": dict(placement.bytes_by_device),
        "placement": placement.describe(),
        "load_seconds": round(time.monotonic() - started, 3),
        "peak_load_bytes": peak.bytes,
        "shipped_generation_settings": place.json("generation_config.json"),
    }
    return LoadedModel(model, placement, facts)


def _read_weights(
    config: ModelConfig, dtype: str, place: Location, placement: DeviceMap, offload_folder: Path
) -> Any:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    built = architecture(place, config)
    quantization = settle_quantization(built, config, dtype)
    if quantization is not None or getattr(built, "quantization_config", None) is not None:
        import_bitsandbytes()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place.folder,
            config=built,
            dtype=torch_dtype(dtype),
            device_map=placement.device_map(),
            quantization_config=quantization,
            attn_implementation=resolve_attention(config.attention, place, config),
            use_safetensors=True,
            trust_remote_code=config.trust_remote_code,
            offload_folder=offload_folder,
            output_loading_info=True,
        )
    except SafetensorError as error:
        raise ConfigError(f"a weight file of {config.id} is damaged ({error}); fetch it again") from error
    except (OSError, ValueError, ImportError, KeyError, RuntimeError, MemoryError) as error:
        if is_device_lost(error):
            raise
        if is_out_of_memory(error):
            raise OutOfMemory(
                f"memory ran out while the weights of {config.id} were read: {error}"
            ) from error
        raise ConfigError(f"{config.id} cannot be loaded: {' '.join(str(error).split())}") from error
    model, report = loaded  # as output_loading_info says
    _require_all_weights(config, report)
    return model


def compute_as_asked(model: Any, dtype: str) -> None:
    """Make 4-bit products compute in ``dtype``.

    On a processor with AVX512-BF16, bitsandbytes rounds inputs and outputs of every 4-bit product to
    bfloat16, whatever its compute dtype (measured: logits of the demo model move by up to 0.3). Told that the
    processor has none, it dequantizes and multiplies in the compute dtype: exact, and up to three times
    slower a token. ``dtype: auto`` is bfloat16 there and keeps the fast product.
    """
    if dtype == "bfloat16":
        return
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def describe_model(model: Any) -> dict[str, Any]:
    """Counts and bytes of a loaded model: linear layers of the decoder by kind, embeddings, head, everything
    (tied weights once).
    """
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    linears = [
        module
        for module in model.modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not head
    ]
    embedding = model.get_input_embeddings().weight
    tied = head is None or head.weight is embedding or model.config.get_text_config().tie_word_embeddings
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return {
        "weights_bytes": sum(map(_tensor_bytes, tensors.values())),
        "embeddings_bytes": _tensor_bytes(embedding),
        "head_bytes": 0 if tied else _tensor_bytes(head.weight),
        "decoder_linears": len(linears),
        "linear4bit": sum(type(module).__name__ == "Linear4bit" for module in linears),
        "linear8bit": sum(type(module).__name__ == "Linear8bitLt" for module in linears),
    }


def _tensor_bytes(tensor: Any) -> int:
    """Bytes of a tensor with its quantization statistics, if any."""
    total = int(tensor.numel() * tensor.element_size())
    state = getattr(tensor, "quant_state", None)
    if state is not None:  # 4 bits: scales of blocks, and the scales of those
        parts = [state.absmax, state.code] + (
            [state.state2.absmax, state.state2.code] if state.nested else []
        )
        total += sum(part.numel() * part.element_size() for part in parts)
    scales = getattr(tensor, "SCB", None)
    return total + (int(scales.numel() * scales.element_size()) if scales is not None else 0)


def _quantization_facts(model: Any, dtype: str) -> dict[str, Any]:
    settings = getattr(model.config, "quantization_config", None)
    if settings is None:
        return {"type": "none"}
    plain = settings if isinstance(settings, dict) else settings.to_dict()
    if plain.get("load_in_4bit"):
        kind, double = str(plain["bnb_4bit_quant_type"]), bool(plain["bnb_4bit_use_double_quant"])
        return {"type": kind, "double_quantization": double, "compute_dtype": dtype}
    if plain.get("load_in_8bit"):
        return {
            "type": "int8",
            "outlier_threshold": float(plain.get("llm_int8_threshold", INT8_THRESHOLD)),
            "compute_dtype": dtype,
        }
    return {"type": str(plain.get("quant_method")), "compute_dtype": dtype}


def _require_all_weights(config: ModelConfig, report: Mapping[str, Any]) -> None:
    """A weight that no file has would be random numbers; that is not a model."""
    missing = sorted(report["missing_keys"])
    if missing:
        raise ConfigError(
            f"the weight files of {config.id} lack {len(missing)} weights of its architecture, such as "
            f"{missing[0]}"
        )


def _require_disk_space(placement: DeviceMap, folder: Path) -> None:
    needed = placement.rewritten_bytes
    if "disk" in placement.devices.values():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if needed and needed > (free := shutil.disk_usage(folder).free):
        raise DoesNotFit(
            f"{amount(needed)} of weights must be copied to {folder} and {amount(free)} are free there; free "
            f"space, or use a smaller model"
        )
