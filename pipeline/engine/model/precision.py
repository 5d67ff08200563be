"""In which numbers a model computes: dtype, attention implementation, quantization. Everything explicit,
nothing left to a default.
"""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from pipeline.config import ModelConfig
from pipeline.engine.model.location import Location
from pipeline.errors import CannotPlan, ConfigError
from pipeline.system.graphics_cards import graphics_cards

# Columns of activations beyond this size are kept out of the int8 product by the library (6.0). Which they
# are is decided from the whole batch, so a document's answer would depend on its company; 0 keeps every row
# to itself. On the demo model (1,024 tokens, bfloat16): divergence from unquantized 0.034 nats a token at 0,
# 0.022 at 6.0, nf4 0.28. Models of 6.7 billion parameters and more have larger outliers (Dettmers et al.,
# LLM.int8(), 2022): nf4 is the safer choice there.
INT8_THRESHOLD = 0.0
# The deepest published models have some two hundred. The library lists the kind of each before anything is
# built, so that a wrong number takes all memory there is.
_MOST_LAYERS = 1000
_LAYER_KEYS = frozenset(
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers", "depth")
)


# Older names of kinds of layers, which the library reads for the families that have them.
_OLD_KINDS = frozenset(("attention", "mamba", "mlp"))


def resolve_dtype(asked: str, device_map: str = "auto") -> str:
    """What ``dtype: auto`` means on this machine: bfloat16 where it is native, else float16 on a GPU and
    float32 on a CPU.
    """
    if asked != "auto":
        return asked
    if device_map == "auto" and (cards := graphics_cards()):
        return "bfloat16" if min(card.capability for card in cards) >= (8, 0) else "float16"
    return "bfloat16" if cpu_computes_bfloat16() else "float32"


def cpu_computes_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself (AVX512-BF16, AMX, or BF16 of ARM) instead of
    emulating it, many times slower.
    """
    known = torch.cpu.get_capabilities()
    if known.get("avx512_bf16") or known.get("amx_bf16") or known.get("bf16"):
        return True
    if platform.machine().lower() not in ("aarch64", "arm64"):
        return False
    try:
        features = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return any("bf16" in line.split() for line in features.splitlines() if line.startswith("Features"))


def torch_dtype(name: str) -> torch.dtype:
    """``torch.float32`` of ``"float32"``."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def resolve_attention(asked: str, location: Location, config: ModelConfig) -> str:
    """What ``attention: auto`` means for this model: sdpa where its family has it, else eager. Raises
    ConfigError.
    """
    if asked != "auto":
        return asked
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(architecture(location, config)), None)
    return "sdpa" if getattr(kind, "_supports_sdpa", False) else "eager"


def architecture(location: Location, config: ModelConfig) -> Any:
    """The model's configuration as an object of transformers. Raises ConfigError, CannotPlan for a kind of
    layer that nobody knows, or for more layers than any model has.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    described = location.json("config.json")
    _refuse_absurd_depth(described, config)
    try:
        return AutoConfig.from_pretrained(location.folder, trust_remote_code=config.trust_remote_code)
    except (
        OSError,
        ValueError,
        KeyError,
        ImportError,
        AttributeError,
        TypeError,
        StrictDataclassError,
    ) as error:
        refusal = _refusal(error, config)
        _name_unknown_layers(described, refusal)
        raise ConfigError(refusal) from error


def _refuse_absurd_depth(described: Mapping[str, Any], config: ModelConfig) -> None:
    for part in _parts(described):
        for key in sorted(_LAYER_KEYS & part.keys()):
            if isinstance(part[key], int | float) and part[key] > _MOST_LAYERS:
                raise CannotPlan(
                    f"the configuration of {config.id} names {part[key]:,} layers ({key}); no model of more "
                    f"than {_MOST_LAYERS:,} is planned or loaded"
                )


def _name_unknown_layers(described: Mapping[str, Any], refusal: str) -> None:
    """Of a configuration that the library refused: the sentence that names a kind of layer, where that is
    why. Raises CannotPlan.
    """
    from transformers.configuration_utils import ALLOWED_LAYER_TYPES

    kinds = {
        str(kind)
        for part in _parts(described)
        if isinstance(part.get("layer_types"), list)
        for kind in part["layer_types"]
    }
    if unknown := sorted(kinds - _OLD_KINDS - set(ALLOWED_LAYER_TYPES)):
        raise CannotPlan(f"cannot plan this layer kind: {', '.join(unknown)}; {refusal}")


def _parts(described: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A configuration, and those of a model's parts in it."""
    yield described
    for value in described.values():
        if isinstance(value, Mapping):
            yield from _parts(value)


def _refusal(error: Exception, config: ModelConfig) -> str:
    text = " ".join(str(error.__cause__ if isinstance(error.__cause__, ValueError) else error).split())
    if "trust_remote_code" in text:
        return (
            f"model.id {config.id} brings its own code; read it, and set model.trust_remote_code: true "
            f"if you trust it"
        )
    return f"the configuration of {config.id} cannot be used by the installed transformers: {text}"


def require_quantizer(config: ModelConfig) -> None:
    """Look for the package that quantizes, without importing it. Raises ConfigError."""
    if config.quantization != "none" and importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(
            f"model.quantization is {config.quantization}, and bitsandbytes, which it takes, is not "
            f"installed: pip install bitsandbytes, or set model.quantization: none"
        )


def quantization_config(quantization: str, dtype: str) -> Any:
    """What transformers wants to hear for nf4 (blocks of 64, double quantization) or int8; None for none."""
    from transformers import BitsAndBytesConfig

    build: Any = BitsAndBytesConfig  # its signature has no types
    if quantization == "nf4":
        return build(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch_dtype(dtype),
        )
    if quantization == "int8":
        return build(load_in_8bit=True, llm_int8_threshold=INT8_THRESHOLD)
    return None


def settle_quantization(built: Any, config: ModelConfig, dtype: str) -> Any:
    """The quantization to load ``built`` (from ``architecture``) with. A model stored in fewer bits keeps
    them, or is refused.

    A stored nf4 model computes in ``dtype``, not in what its maker wrote down. Raises ConfigError.
    """
    stored = getattr(built, "quantization_config", None)
    if stored is None:
        return quantization_config(config.quantization, dtype)
    stored = stored if isinstance(stored, dict) else stored.to_dict()
    if stored.get("load_in_4bit"):
        method = "nf4" if stored.get("bnb_4bit_quant_type") == "nf4" else "fp4"
    else:
        method = "int8" if stored.get("load_in_8bit") else str(stored.get("quant_method"))
    if config.quantization not in ("none", method):
        raise ConfigError(
            f"model.id {config.id} is stored quantized ({method}) and cannot be quantized again to "
            f"{config.quantization}; "
            "set model.quantization: none to load it as it is, or name the unquantized model"
        )
    if stored.get("load_in_4bit"):
        built.quantization_config = {**stored, "bnb_4bit_compute_dtype": dtype}
    return None
