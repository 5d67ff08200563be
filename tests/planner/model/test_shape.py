"""What a configuration alone says of a plain decoder: as published, as the model itself says, or a
sentence.
"""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import CannotPlan
from pipeline.planner.model.shape import plain_shape
from tests.planner.known_models import KNOWN, known_shape

# As Llama is: gated MLP, two norms, no biases.
PLAIN = (
    "Llama 2 7B",
    "Llama 3 8B",
    "Llama 3.1 405B",
    "Llama 3.2 1B",
    "SmolLM2 135M",
    "Yi 34B",
)


def bare(name: str, **changes: Any) -> dict[str, Any]:
    return {"tie_word_embeddings": False, **KNOWN[name].config, **changes}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_decoder_is_what_is_published_and_what_the_model_says(name: str) -> None:
    shape, asked, known = plain_shape(bare(name)), known_shape(name), KNOWN[name]
    exact = isinstance(known.parameters, int)
    assert shape.parameters == (known.parameters if exact else pytest.approx(known.parameters, rel=0.01))
    assert shape.kv_bytes_per_token("bfloat16") == known.kv_bytes
    assert shape.assumed
    assert shape.describe() == asked.describe()
    for quantization in ("none", "int8", "nf4"):
        assert shape.weights_bytes(quantization, "bfloat16") == asked.weights_bytes(quantization, "bfloat16")
        assert shape.largest_layer_bytes(quantization, "float32") == asked.largest_layer_bytes(
            quantization, "float32"
        )
    assert shape.activation_bytes(512, "bfloat16", 2, 999) == asked.activation_bytes(512, "bfloat16", 2, 999)


def test_where_layers_differ_in_width_the_widest_stands_for_all() -> None:
    widths = [1024, 14336, 4096]
    assert plain_shape(bare("Llama 3 8B", intermediate_size=widths)) == plain_shape(bare("Llama 3 8B"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": None}, "none of num_hidden_layers"),
        ({"vocab_size": None}, "none of vocab_size"),
        ({"num_attention_heads": 0}, "its num_attention_heads is 0"),
        ({"hidden_size": -5}, "its hidden_size is -5"),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CannotPlan, match=words):
        plain_shape(bare("Llama 3 8B", **changes))
