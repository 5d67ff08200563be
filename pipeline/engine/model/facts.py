"""The facts of a model that transformers can build, from its configuration alone: by the planner's line for
its family, which takes no time, else by the model itself, built without weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pipeline.engine.interface import ModelFacts
from pipeline.engine.model.meta_shape import meta_shape
from pipeline.errors import CannotPlan
from pipeline.planner.model.shape import ModelShape, model_shape


def model_facts(built: Any, *, trust_remote_code: bool = False) -> ModelFacts:
    """Of a configuration that transformers has read. A model of which neither the planner nor the library can
    say what it keeps is taken for a Llama, and that is said. Raises ConfigError where even that cannot be.
    """
    described = built.to_dict()
    shape, cannot_plan = model_shape(described, rough=True), None
    try:
        shape = model_shape(described)
    except CannotPlan as error:
        found = _asked(built, trust_remote_code)
        shape, cannot_plan = found or shape, None if found else str(error)
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


def _asked(built: Any, trust_remote_code: bool) -> ModelShape | None:
    """What the model itself says; None where it cannot be asked."""
    try:
        return meta_shape(built, trust_remote_code=trust_remote_code)
    except Exception:  # noqa: BLE001  # a model that cannot be asked fails in as many ways as there are models
        return None


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
