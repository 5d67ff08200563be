"""The kernel with its log-sum-exp against the formula, and softmax over a union of stretches against softmax
over all keys at once.
"""

from __future__ import annotations

import pytest
import torch

from pipeline.engine.packed import attention, kernels
from pipeline.engine.packed.feed import Feed, Row
from pipeline.engine.packed.kernels import attend, attend_plainly, join
from pipeline.engine.packed.model_runner import PackedModelRunner
from pipeline.engine.packed.page_pool import KvPool
from tests.equivalence.families import prompts, tiny_model


def states(rows: int, heads: int, tokens: int, width: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.randn(
        rows, heads, tokens, width, generator=torch.Generator().manual_seed(seed + tokens + heads)
    )


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("kind", ["everything", "causal", "hidden columns", "tree"])
def test_the_kernel_is_the_formula(
    heads: int, groups: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_PLAIN_QUERIES", 7)  # several stretches
    query, key, value = states(2, heads, 20), states(2, groups, 20, seed=1), states(2, groups, 20, seed=2)
    mask = None
    if kind == "hidden columns":
        mask = torch.zeros(2, 1, 1, 20)
        mask[0, ..., 13:] = float("-inf")
    if kind == "tree":
        visible = torch.rand(2, 1, 20, 20, generator=torch.Generator().manual_seed(3)) > 0.4
        mask = torch.zeros(2, 1, 20, 20).masked_fill(
            ~(visible | torch.eye(20, dtype=torch.bool)), float("-inf")
        )
    found = attend(query, key, value, 0.25, causal=kind == "causal", mask=mask)
    expected = attend_plainly(query, key, value, 0.25, causal=kind == "causal", mask=mask)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=0)


@pytest.mark.parametrize("cuts", [(5,), (1, 19), (3, 9, 15)])
def test_stretches_join_to_the_whole(cuts: tuple[int, ...]) -> None:
    query, key, value = states(1, 4, 6), states(1, 2, 20, seed=1), states(1, 2, 20, seed=2)
    stretches = [
        [
            found[0].transpose(0, 1)
            for found in attend(query, *(kept[:, :, begin:end] for kept in (key, value)), 0.25)
        ]
        for begin, end in zip((0, *cuts), (*cuts, 20), strict=True)
    ]
    output, lse = stretches[0]
    for place, (more, more_lse) in enumerate(stretches[1:], start=2):
        join(output, lse, (more, more_lse), last=place == len(stretches))
    torch.testing.assert_close(
        output, attend(query, key, value, 0.25)[0][0].transpose(0, 1), atol=2e-5, rtol=0
    )


def test_two_models_know_nothing_of_each_others_passes() -> None:
    """While one model is in the middle of a pass, another runs one of its own."""
    one, other = tiny_model("llama (GQA)"), tiny_model("llama (GQA)", seed=1)
    ids = prompts((20, 30), seed=3)
    runners = [PackedModelRunner(model, KvPool(1, torch.device("cpu"))) for model in (one, other)]
    for model in (one, other):
        model.set_attn_implementation(attention.IMPLEMENTATION)

    def run(place: int) -> torch.Tensor:
        with torch.inference_mode():
            return runners[place].run(
                [Feed(Row(None), ids[place], keep=False, logits=(-1 + len(ids[place]),))]
            )

    expected = run(0), run(1)
    inside: list[torch.Tensor] = []
    hook = one.model.layers[1].register_forward_pre_hook(lambda *_: inside.append(run(1)))
    found = run(0)
    hook.remove()
    torch.testing.assert_close(found, expected[0])
    torch.testing.assert_close(inside[0], expected[1])
    assert attention.current(one) is None
