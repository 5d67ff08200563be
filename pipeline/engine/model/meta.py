"""A model without its weights, built once for whoever asks of it: where its modules go, how it is streamed,
what it weighs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from pipeline.config import ModelConfig
from pipeline.engine.model.library_logging import import_bitsandbytes, quiet_libraries
from pipeline.engine.model.precision import settle_quantization, torch_dtype
from pipeline.errors import ConfigError


def build_on_meta(
    built: Any,
    config: ModelConfig,
    dtype: str,
    *,
    attention: str | None = None,
    place: AbstractContextManager[Any] | None = None,
    quantized: bool = True,
) -> tuple[Any, Any]:
    """The model of ``built`` (see ``precision.architecture``) as the library would fill it, quantized modules
    in their places; and the library's quantizer, None in plain numbers.

    ``attention``: the implementation, None as the library chooses. ``place``: what moves tensors to the meta
    device while the model is made, None: all of them. Without ``quantized`` every module stays as its maker
    wrote it. No weight is read. Raises ConfigError.
    """
    from transformers import AutoModelForCausalLM

    quiet_libraries()
    wanted = settle_quantization(built, config, dtype) if quantized else None
    asked: dict[str, Any] = {} if attention is None else {"attn_implementation": attention}
    build: Any = AutoModelForCausalLM.from_config  # its signature has no types
    try:
        with place or torch.device("meta"):
            model = build(
                built, dtype=torch_dtype(dtype), trust_remote_code=config.trust_remote_code, **asked
            )
    except (ValueError, ImportError, AttributeError, TypeError, KeyError) as error:
        raise ConfigError(
            f"model.id {config.id} cannot be built as a language model: {' '.join(str(error).split())}"
        ) from error
    return model, _quantize(model, built, wanted, dtype) if quantized else None


def _quantize(model: Any, built: Any, wanted: Any, dtype: str) -> Any:
    """Put quantized modules in their places, as asked for or as the files are stored; the quantizer, if
    any.
    """
    settings = wanted if wanted is not None else getattr(built, "quantization_config", None)
    if settings is None:
        return None
    from transformers.quantizers.auto import AutoHfQuantizer

    import_bitsandbytes()
    quantizer = AutoHfQuantizer.from_config(settings, pre_quantized=wanted is None)
    with torch.device("meta"), _making(torch_dtype(dtype)):
        quantizer.preprocess_model(
            model=model, dtype=torch_dtype(dtype), device_map={"": "cpu"}, checkpoint_files=[]
        )
    return quantizer


@contextlib.contextmanager
def _making(dtype: torch.dtype) -> Iterator[None]:
    """Inside, modules are made in ``dtype``, as the library has it when it loads: else biases beside weights
    in 4 bits are of 32 bits.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
