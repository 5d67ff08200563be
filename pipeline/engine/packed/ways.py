"""By which kernels packed passes attend: chosen once, when a model is loaded, and named in the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from pipeline.engine.packed.attend_by_varlen import ByVarlen
from pipeline.engine.packed.attend_by_views import ByViews
from pipeline.engine.packed.attention import PassAttention
from pipeline.engine.packed.feed import Feed
from pipeline.engine.packed.host_numbers import DeviceNumbers, HostNumbers
from pipeline.engine.packed.page_pool import KvPool
from pipeline.engine.packed.pass_layout import PassLayout, by_place, in_pairs

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


def way_for(model: Any, device: torch.device) -> Way:
    """The fastest that there is for ``model`` on ``device``."""
    if device.type == "cpu":
        return BY_VIEWS
    if device.type == "cuda" and model.dtype in _HALVES and _is_flashy(model, device):
        return BY_VARLEN
    return Way("attention by the plain formula, for there is no kernel for it here", in_pairs, ByViews)


def _is_flashy(model: Any, device: torch.device) -> bool:
    """Whether flash attention 2 knows the card and the widths of the model's heads."""
    config = model.config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    same = getattr(config, "v_head_dim", None) is None  # of values as of keys
    card = torch.cuda.get_device_capability(device) >= (8, 0)
    return bool(card and same and width <= _WIDEST and width % 8 == 0)
