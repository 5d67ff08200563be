"""By which kernels packed passes attend: chosen once, when a model is loaded, and named in the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from pipeline.engine.out_of_memory import is_out_of_memory
from pipeline.engine.packed.attend_by_efficient import ByEfficient
from pipeline.engine.packed.attend_by_varlen import ByVarlen
from pipeline.engine.packed.attend_by_views import ByViews
from pipeline.engine.packed.attention import PassAttention
from pipeline.engine.packed.feed import Feed, Row
from pipeline.engine.packed.host_numbers import DeviceNumbers, HostNumbers
from pipeline.engine.packed.page_pool import KvPool
from pipeline.engine.packed.pass_layout import PassLayout, by_place, in_pairs, laid_out

_HALVES = (torch.float16, torch.bfloat16)
_WIDEST = 256  # heads of flash attention 2; a multiple of 8


class NotedAttention(PassAttention, Protocol):
    """The attention of one pass, told when the numbers that it has noted are on the device."""

    def arrived(self, numbers: DeviceNumbers) -> None:
        """They are."""
        ...


@dataclass(frozen=True, slots=True)
class Way:
    """``name`` is for the report; ``order`` that of rows that decode in a pass; ``make`` the attention of a
    pass.
    """

    name: str
    order: Callable[[Sequence[Feed]], list[Feed]]
    make: Callable[[PassLayout, KvPool, HostNumbers], NotedAttention]


BY_VIEWS = Way("attention row by row over views of the pool", in_pairs, ByViews)
BY_VARLEN = Way("flash attention over rows of different lengths", by_place, ByVarlen)
PLAINLY = Way("attention by the plain formula, for there is no kernel for it here", in_pairs, ByViews)


def by_efficient(model: Any) -> Way:
    """The memory-efficient kernel, for the heads of ``model``."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    repeated = heads // (getattr(config, "num_key_value_heads", None) or heads)
    make = partial(ByEfficient, repeated=repeated)
    return Way("memory-efficient attention over rows of different lengths", by_place, make)


def way_for(model: Any, device: torch.device) -> Way:
    """The fastest that runs for ``model`` on ``device``."""
    if device.type == "cpu":
        return BY_VIEWS
    if device.type == "cuda":
        flashy = model.dtype in _HALVES and _is_flashy(model, device)
        for way in (*([BY_VARLEN] if flashy else []), by_efficient(model)):
            if _runs(way, model, device):
                return way
    return PLAINLY


def _runs(way: Way, model: Any, device: torch.device) -> bool:
    """Whether a device and a build of the library have its kernel: found by a pass of three tokens. Whether
    its numbers are right is tried with the model (``support``).
    """
    config, numbers, pool = model.config.get_text_config(), HostNumbers(), KvPool(1, device)
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    width = _width(config)
    layout = laid_out([Feed(Row(None), (0, 0, 0), keep=False, logits=())], way.order)
    query, key, value = (
        torch.zeros(1, count, layout.size, width, dtype=model.dtype, device=device)
        for count in (heads, groups, groups)
    )
    try:
        attending = way.make(layout, pool, numbers)
        attending.arrived(numbers.send(device))
        attending.attend(0, query, key, value, 1.0)
    except (NotImplementedError, RuntimeError) as error:
        if is_out_of_memory(error):  # which says nothing about the kernel
            raise
        return False
    return True


def _width(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _is_flashy(model: Any, device: torch.device) -> bool:
    """Whether flash attention 2 knows the card and the widths of the model's heads."""
    config = model.config.get_text_config()
    width = _width(config)
    same = getattr(config, "v_head_dim", None) is None  # of values as of keys
    card = torch.cuda.get_device_capability(device) >= (8, 0)
    return bool(card and same and width <= _WIDEST and width % 8 == 0)
