"""The facts of a model that transformers can build: by the model itself, built without weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pipeline.config import ModelConfig
from pipeline.engine.interface import ModelFacts
from pipeline.engine.model.meta_shape import meta_shape, plain_values
from pipeline.errors import CannotPlan, ConfigError
from pipeline.planner.model.shape import ModelShape, plain_shape

_WORDS = 300  # characters of another's error that a sentence takes in


def model_facts(built: Any, config: ModelConfig) -> ModelFacts:
    """Of a configuration that transformers has read. A model that cannot be asked is taken for a plain
    decoder, and that is said. Raises CannotPlan where not even that can be.
    """
    described = plain_values(built)
    shape, cannot_plan = _shape(built, described, config)
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


def _shape(built: Any, described: Mapping[str, Any], config: ModelConfig) -> tuple[ModelShape, str | None]:
    """What the model itself says; else that of a plain decoder, and why."""
    try:
        return meta_shape(built, config), None
    except Exception as error:  # noqa: BLE001  # a model that cannot be asked fails in as many ways as there are models
        why = _in_words(error, str(described.get("model_type")))
    try:
        return plain_shape(described), why
    except CannotPlan as missing:
        raise CannotPlan(f"{missing}; {why}") from None


def _in_words(error: Exception, family: str) -> str:
    if isinstance(error, ConfigError):
        return str(error)
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return (
        f"cannot plan model type {family!r}: built without its weights it does not say what it keeps "
        f"({words[:_WORDS]})"
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
