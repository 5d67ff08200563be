"""Cards by name, sizes and how many of them a process sees."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.pretend_card.card_process import ROOT, card_environment
from tests.pretend_card.named_cards import CARDS
from tests.pretend_card.options import options_of

Cards = Callable[..., None]


@pytest.mark.parametrize("name", CARDS)
def test_torch_tells_what_a_named_card_is(cards: Cards, name: str) -> None:
    cards(name)
    found = torch.cuda.get_device_properties(0)
    assert (found.name, found.multi_processor_count) == (CARDS[name].name, CARDS[name].multiprocessors)
    assert torch.cuda.get_device_capability() == CARDS[name].capability
    assert torch.cuda.mem_get_info()[1] == found.total_memory == CARDS[name].total_bytes
    native = CARDS[name].capability >= (8, 0)
    assert torch.cuda.is_bf16_supported(including_emulation=False) is native


def test_cards_are_counted_and_mixed(cards: Cards) -> None:
    cards("2xrtx3090,8GiB", capability="7.0")
    assert torch.cuda.device_count() == 3
    assert torch.cuda.get_device_name(1) == "NVIDIA GeForce RTX 3090"
    assert torch.cuda.get_device_properties(2).total_memory == 8 << 30
    assert torch.cuda.get_device_capability(2) == (7, 0)


def test_no_card_has_this_name() -> None:
    with pytest.raises(ValueError, match="rtx9999"):
        options_of({"PRETEND_CARD": "rtx9999"})


_TELL = """
import json, os, sys, torch

def tell(visible):
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
    at_first = torch.cuda.device_count()
    names = [torch.cuda.get_device_name(i) for i in range(at_first)]
    try:
        torch.ones(1, device=f"cuda:{at_first}")
        beyond = ""
    except Exception as error:
        beyond = str(error)
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    print(json.dumps([at_first, torch.cuda.device_count(), names, beyond]), flush=True)

for visible in json.loads(sys.argv[1]):  # a process each: CUDA begins once in one
    child = os.fork()
    if not child:
        tell(visible)
        os._exit(0)
    os.waitpid(child, 0)
"""


def _seen(*visible: str | None) -> list[Any]:
    """What processes see that are given these: first, later, names, what is said of one card more."""
    command = [sys.executable, "-c", _TELL, json.dumps(visible)]
    environment = card_environment("rtx4060,t4,h200")
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_process_sees_the_devices_it_is_given() -> None:
    first, t4, last = (CARDS[name].name for name in ("rtx4060", "t4", "h200"))
    *some, empty, minus, twice = _seen(None, "2,0", "1,7,0", "", "-1", "0,0")
    assert [names for _, _, names, _ in some] == [[first, t4, last], [last, first], [t4]]  # 7 ends the list
    for count, later, names, beyond in some:
        assert count == later == len(names)  # once CUDA has begun, the variable changes nothing
        assert "invalid device ordinal" in beyond
    for count, later, _, beyond in (empty, minus, twice):
        assert (count, later) == (0, 1)  # nothing has begun
        assert "No CUDA GPUs are available" in beyond
