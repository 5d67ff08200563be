"""Keys and values of a model on a card that lie in host memory: what they hold, what goes over the link, what
is on the card at a time, and that the host waits for none of it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pipeline.engine.kv.cache import AnyCache, join_rows, make_cache, select_rows
from pipeline.engine.kv.serialize import restored, row_tensors
from tests.equivalence.families import FAMILIES, prompts, tiny_model

CPU, CARD = torch.device("cpu"), torch.device("cuda", 0)
SOME = (
    "llama (GQA)",
    "falcon (MQA)",
    "gpt_neox (MHA)",
    "mistral (sliding window)",
    "gemma3 (sliding and full)",
    "mixtral (MoE)",
    "deepseek_v3 (MLA)",
    "qwen3_next (hybrid)",
)
_SHORT = ("gemma3 (sliding and full)", "deepseek_v3 (MLA)", "qwen3_next (hybrid)")
MIXED = [pytest.param(name, marks=() if name in _SHORT else pytest.mark.full) for name in SOME]
REST = [pytest.param(name, marks=pytest.mark.full) for name in FAMILIES if name not in SOME]
CLOSE = {"atol": 3e-4, "rtol": 1e-3}


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def twins(family: str, **changes: Any) -> tuple[Any, Any]:
    """A model on the processor and the same on the card."""
    model = tiny_model(family)
    return model, copy.deepcopy(model).to(CARD)


def read(model: Any, cache: AnyCache, ids: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(ids.to(model.device), cache=cache, use_cache=True).logits[:, -1]
    return found


def some(*lengths: int, seed: int = 0) -> torch.Tensor:
    return torch.tensor(prompts(lengths, seed=seed))


@pytest.mark.parametrize("family", [*SOME, *REST])
def test_what_is_taken_out_for_the_store_is_what_was_computed(family: str) -> None:
    """Copies that are still under way are waited for: they would be kept under valid checksums."""
    plain, model = twins(family)
    cache, expected = make_cache(model.config, "offloaded", CARD, 64), make_cache(plain.config, "device", CPU)
    for part in (some(40), some(1, seed=1)):
        read(model, cache, part)
        read(plain, expected, part)
    for found, right in zip(row_tensors(cache, 0), row_tensors(expected, 0), strict=True):
        assert found.keys() == right.keys()
        for name, tensor in right.items():
            torch.testing.assert_close(found[name].cpu(), tensor, **CLOSE)


@pytest.mark.parametrize("family", MIXED)
def test_rows_chosen_joined_and_restored_go_on_as_on_the_processor(family: str) -> None:
    plain, model = twins(family)
    near, far = make_cache(model.config, "offloaded", CARD, 48), make_cache(plain.config, "device", CPU)
    steps = [some(40, 40, 40), *(some(1, 1, 1, seed=seed) for seed in range(1, 14))]
    for part in steps:  # beyond what was reserved
        torch.testing.assert_close(read(model, near, part).cpu(), read(plain, far, part), **CLOSE)
    one = select_rows(near, [1])
    again = restored(model.config, "offloaded", CARD, 53, row_tensors(one, 0), 80)
    chosen = join_rows([select_rows(near, [2, 0]), again], 80)
    expected = select_rows(far, [2, 0, 1], 80)
    for seed in (21, 22):
        part = some(3, 3, 3, seed=seed)
        torch.testing.assert_close(read(model, chosen, part).cpu(), read(plain, expected, part), **CLOSE)
    part = some(2, 2, 2, seed=23)  # the source goes on for itself
    torch.testing.assert_close(read(model, near, part).cpu(), read(plain, far, part), **CLOSE)


def test_a_restored_row_is_never_on_the_card_as_a_whole(card: Any) -> None:
    _, model = twins("llama (GQA)")
    cache = make_cache(model.config, "offloaded", CARD, 512)
    read(model, cache, some(512))
    tensors = row_tensors(cache, 0)
    row_bytes = sum(tensor.nbytes for tensor in tensors[0].values())
    del cache
    torch.cuda.synchronize()
    card.reset_peak(0)
    before = card.memory(0)["peak_allocated"]
    again = restored(model.config, "offloaded", CARD, 512, tensors, 520)
    assert card.memory(0)["peak_allocated"] == before
    read(model, again, some(1, seed=1))
    layers = model.config.num_hidden_layers
    held = card.memory(0)["allocated"] - before
    assert 0 < held <= 1.1 * 2 * row_bytes / layers  # its two buffers, whatever the number of layers


def counted(card: Any, model: Any, caches: list[AnyCache], passes: int) -> dict[str, int]:
    """What ``passes`` over all ``caches``, layer by layer side by side, count."""
    before = card.counts()
    layers = model.config.num_hidden_layers
    heads, width = model.config.num_key_value_heads, 16
    for _ in range(passes):
        for layer in range(layers):
            for cache in caches:
                new = torch.ones(3, heads, 1, width, device=CARD)
                keys, values = cache.update(new, new, layer)
                assert keys.shape == values.shape
    after = card.counts()
    return {name: after[name] - before.get(name, 0) for name in after}


@pytest.mark.parametrize("together", [1, 3])
def test_a_token_brings_each_layer_once_and_takes_its_new_columns_home(card: Any, together: int) -> None:
    """At most 1.05 times what has to be read goes over the link, also when micro-batches take turns; the host
    waits for nothing.
    """
    _, model = twins("llama (GQA)")
    model.config.num_hidden_layers = layers = 12
    caches = [make_cache(model.config, "offloaded", CARD, 300) for _ in range(together)]
    for cache in caches:
        for layer in range(layers):
            cache.update(*(torch.ones(3, 2, 200, 16, device=CARD) for _ in "kv"), layer)
    counted(card, model, caches, 2)  # what comes next is known from the last time
    found = counted(card, model, caches, 20)
    column = 3 * 2 * 2 * 16 * 4
    must = together * layers * column * sum(range(202, 222))
    assert must <= found["bytes to the card"] <= 1.02 * must
    assert found["bytes to the card"] + found["bytes from the card"] <= 1.05 * must
    assert found["bytes from the card"] == together * layers * column * 20
    assert not [name for name, count in found.items() if name.startswith("host waits") and count]


def test_a_pass_keeps_two_layers_on_the_card(card: Any) -> None:
    _, model = twins("llama (GQA)")
    model.config.num_hidden_layers = 12
    torch.cuda.synchronize()
    before = card.memory(0)["allocated"]
    cache = make_cache(model.config, "offloaded", CARD, 300)
    for layer in range(12):
        cache.update(*(torch.ones(3, 2, 250, 16, device=CARD) for _ in "kv"), layer)
    layer_bytes = 3 * 2 * 2 * 16 * 4 * 300
    assert card.memory(0)["allocated"] - before <= 2 * layer_bytes + 2**16
    del cache
    assert card.memory(0)["allocated"] - before <= 2**16
