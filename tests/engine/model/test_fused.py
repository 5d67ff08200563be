"""Parts that take fewer launches give what the library's give, and are put in place only where they do."""

import sys

import pytest
import torch

from pipeline.engine.model.fused import fuse
from pipeline.engine.model.fused_norm import fuse_norms
from pipeline.engine.model.fused_rotary import agrees, rotated
from tests.equivalence.families import FAMILIES, prompts, tiny_model

# norms that one kernel computes in tiny models of three layers
NORMS = {
    "llama (GQA)": 7,
    "mistral (sliding window)": 7,
    "qwen3": 13,
    "gemma3 (sliding and full)": 19,  # (1 + weight)
    "olmo2": 13,
    "gpt_neox (MHA)": 0,  # layer norms
    "cohere2": 0,
}
CPU = torch.device("cpu")


def _logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor(prompts((20,)))).logits.float()


def _weights_drawn(model: torch.nn.Module) -> None:
    """Norms start as ones; a part that forgets them would not be told."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.rand_like(parameter) * 0.5)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_are_replaced_where_one_kernel_gives_the_same(name: str, dtype: torch.dtype) -> None:
    model = tiny_model(name, dtype)
    _weights_drawn(model)
    expected = _logits(model)
    assert fuse_norms(model) == NORMS[name]
    bound = 1e-4 if dtype == torch.float32 else 0.1
    assert (_logits(model) - expected).abs().max() <= bound * expected.abs().max()


def test_another_epsilon_or_another_formula_is_no_norm() -> None:
    class Other(torch.nn.Module):
        def __init__(self, power: float, epsilon: float) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.rand(32) + 0.5)
            self.eps, self._power, self._epsilon = 1e-6, power, epsilon

        def forward(self, states: torch.Tensor) -> torch.Tensor:
            mean = states.abs().pow(self._power).mean(-1, keepdim=True) + self._epsilon
            return self.weight * states * mean.pow(-1 / self._power)

    for power, epsilon, count in ((2.0, 1e-6, 1), (2.0, 1e-5, 0), (1.9, 1e-6, 0)):
        assert fuse_norms(torch.nn.Sequential(Other(power, epsilon))) == count, (power, epsilon)


@pytest.mark.parametrize(
    "name", ["llama (GQA)", "qwen3", "gemma3 (sliding and full)", "phi3", "granite", "cohere2"]
)
def test_heads_are_rotated_as_the_family_rotates_them(name: str) -> None:
    module = sys.modules[type(tiny_model(name)).__module__]
    assert agrees(module.apply_rotary_pos_emb, CPU) is (name != "cohere2")  # which rotates pairs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotated_heads_lie_side_by_side(dtype: torch.dtype) -> None:
    module = sys.modules[type(tiny_model("llama (GQA)")).__module__]
    torch.manual_seed(0)
    query, key = (torch.randn(3, 11, heads, 16).to(dtype).transpose(1, 2) for heads in (6, 2))
    angles = torch.randn(3, 11, 8).repeat(1, 1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    expected = module.apply_rotary_pos_emb(query, key, cos, sin)
    for _ in range(2):  # the second time with the signs that the first has kept
        for found, wanted in zip(rotated(query, key, cos, sin), expected, strict=True):
            assert found.shape == wanted.shape
            torch.testing.assert_close(
                found, wanted, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps
            )
            assert found.stride(-1) == 1


def test_a_model_on_a_processor_keeps_the_library_s_parts() -> None:
    model = tiny_model("llama (GQA)")
    before = dict(model.named_modules())
    assert fuse(model) == "none"
    assert dict(model.named_modules()) == before
    assert set(NORMS) <= set(FAMILIES)
