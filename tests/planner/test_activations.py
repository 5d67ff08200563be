"""The activations of a prefill chunk, against every tensor that a real pass holds at its fullest moment."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from pipeline.config import ModelConfig
from pipeline.engine.model.meta_shape import meta_shape

SIZES: dict[str, Any] = {
    "vocab_size": 500,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class Held(TorchDispatchMode):  # type: ignore[misc]  # torch ships it without types
    """Bytes of the tensors that operations make and nobody has dropped yet; ``peak`` is the most there ever
    were.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
        self.held: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.held and storage._cdata not in self.own:
                    self.held[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.held.pop, storage._cdata, None)
        self.peak = max(self.peak, sum(self.held.values()))
        return result


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    ("family", "own"),
    [
        ("llama", {}),
        ("llama", {"num_key_value_heads": 2, "intermediate_size": 2048}),
        ("qwen3", {"num_key_value_heads": 4, "head_dim": 32}),
        ("phi3", {}),
        ("olmo2", {}),
        ("llama", {"intermediate_size": 128}),
        ("llama", {"vocab_size": 100_000}),
    ],
)
def test_the_peak_of_a_chunk(family: str, own: dict[str, Any], rows: int) -> None:
    config = AutoConfig.for_model(family, **{**SIZES, **own})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()
    shape, tokens = meta_shape(config, ModelConfig(id="small")), 256
    cache = DynamicCache(config=config)
    with Held(model) as held, torch.no_grad():
        ids = torch.ones(rows, tokens, dtype=torch.long)
        model(ids, attention_mask=torch.ones_like(ids), cache=cache, use_cache=True, logits_to_keep=1)
    measured = held.peak - shape.kv_bytes(tokens, "float32", rows)
    reckoned = shape.activation_bytes(rows * tokens, "float32", rows)
    # Families without a norm before the MLP (OLMo 2) hold one hidden vector less.
    assert 0.97 * measured <= reckoned <= 1.15 * measured, (measured, reckoned)
