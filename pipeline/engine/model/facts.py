"""The facts of a model that transformers can build, from its configuration alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pipeline.engine.interface import ModelFacts
from pipeline.errors import CannotPlan
from pipeline.planner.model.shape import model_shape


def model_facts(described: Mapping[str, Any]) -> ModelFacts:
    """Of a configuration (config.json, or ``to_dict()``). A family that is not known is taken for a Llama,
    and that is said. Raises ConfigError where even that cannot be.
    """
    shape, cannot_plan = model_shape(described, rough=True), None
    try:
        shape = model_shape(described)
    except CannotPlan as error:
        cannot_plan = str(error)
    stored_as, method = stored_quantization(described)
    if method is not None and stored_as is None:
        cannot_plan = cannot_plan or (
            f"cannot plan weights that are stored as {method}: what they take in memory is not known here"
        )
    stored = described.get("dtype") or described.get("torch_dtype")
    return ModelFacts(
        context_tokens=shape.context_tokens,
        shape=shape,
        cannot_plan=cannot_plan,
        stored_dtype=str(stored) if stored else None,
        stored_as=stored_as,
        stored_quantized=method is not None,
    )


def stored_quantization(described: Mapping[str, Any]) -> tuple[Literal["nf4", "int8"] | None, str | None]:
    """(what it is in our words, its own word) of a model whose files are quantized already; (None, None) of
    any other.
    """
    stored = described.get("quantization_config")
    if not isinstance(stored, Mapping):
        return None, None
    if stored.get("load_in_4bit"):
        return "nf4", "4 bits"
    if stored.get("load_in_8bit"):
        return "int8", "8 bits"
    return None, str(stored.get("quant_method") or "an unnamed kind")
