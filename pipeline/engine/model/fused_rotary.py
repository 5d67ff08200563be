"""Rotary position embedding (Su et al., RoFormer, 2021) of queries and keys side by side: three launches
instead of ten.

The library rotates halves: (a, b) becomes (a cos - b sin, b cos + a sin), for queries and for keys, each by
five kernels. Here one copy lays both side by side as the blocks a, b, a: the first two are the heads as they
are, the last two the same heads with their halves exchanged, and one product and one product with sum make
the result of them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

_NAME = "apply_rotary_pos_emb"  # what families call the function, each in its own module
_SIGNED = "_overnight_signed"  # the attribute of a pass's sines that holds them with their signs
_ROUNDINGS = 8
_Rotated = tuple[torch.Tensor, torch.Tensor]


def fuse_rotary(model: torch.nn.Module, device: torch.device) -> bool:
    """Let ``model``'s family rotate in few launches on cards, where that gives what its own function gives;
    whether it does.

    The function belongs to the family's module, so every model of it in this process is served; tensors that
    are not on a card take the library's way, as ever.
    """
    modules = {sys.modules[type(module).__module__] for module in model.modules()}
    fused = False
    for module in modules:
        library = getattr(module, _NAME, None)
        if library is None:
            continue
        if not hasattr(library, "library") and agrees(library, device):
            setattr(module, _NAME, _on_cards(library))
        fused = fused or hasattr(getattr(module, _NAME), "library")
    return fused


def _on_cards(library: Callable[..., _Rotated]) -> Callable[..., _Rotated]:
    @functools.wraps(library)
    def rotate(q: Any, k: Any, cos: Any, sin: Any, *rest: Any, **named: Any) -> _Rotated:
        plain = not rest and not named and q.is_cuda and _fits(q, k, cos)
        return rotated(q, k, cos, sin) if plain else library(q, k, cos, sin, *rest, **named)

    rotate.library = library  # type: ignore[attr-defined]  # tells ours from theirs
    return rotate


def _fits(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor) -> bool:
    """Whether whole heads are rotated, in one type and without a gradient."""
    return (
        query.dim() == key.dim() == 4
        and cos.dim() == 3
        and query.shape[-1] == key.shape[-1] == cos.shape[-1]
        and query.shape[-1] % 2 == 0
        and query.dtype == key.dtype == cos.dtype
        and not (torch.is_grad_enabled() and query.requires_grad)
    )


def rotated(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> _Rotated:
    """(rows, H, T, D) and (rows, G, T, D), rotated by ``cos`` and ``sin`` (rows, T, D); both are views of one
    tensor (rows, T, H + G, D).
    """
    rows, heads, tokens, width = query.shape
    half, count = width // 2, heads + key.shape[1]
    first, second = (query[..., :half], key[..., :half]), (query[..., half:], key[..., half:])
    blocks = torch.cat([*first, *second, *first], dim=1).view(rows, 3, count, tokens, half)
    result = query.new_empty(rows, tokens, count, width)
    halves = result.view(rows, tokens, count, 2, half).permute(0, 3, 2, 1, 4)
    torch.mul(blocks[:, :2], _halves(cos), out=halves)
    halves.addcmul_(blocks[:, 1:], _halves(_signed(sin)))
    whole = result.transpose(1, 2)
    return whole[:, :heads], whole[:, heads:]


def _halves(angles: torch.Tensor) -> torch.Tensor:
    """(rows, T, D) as (rows, 2, 1, T, D / 2), a view."""
    rows, tokens, width = angles.shape
    return angles.view(rows, tokens, 2, width // 2).permute(0, 2, 1, 3)[:, :, None]


def _signed(sin: torch.Tensor) -> torch.Tensor:
    """``sin`` with the first half negated: made by the first layer of a pass, kept with its sines for the
    others.
    """
    held: torch.Tensor | None = getattr(sin, _SIGNED, None)
    if held is None:
        half = sin.shape[-1] // 2
        held = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        setattr(sin, _SIGNED, held)
    return held


def agrees(library: Callable[..., Any], device: torch.device) -> bool:
    """Whether ``library`` rotates as this module does, tried on random heads."""
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(2, 3, heads, 8, generator=generator).to(device).transpose(1, 2) for heads in (4, 2)]
    angles = torch.randn(2, 3, 4, generator=generator).repeat(1, 1, 2).to(device)
    with torch.inference_mode():
        try:
            expected = library(*states, angles.cos(), angles.sin())
            found = rotated(states[0], states[1], angles.cos(), angles.sin())
            apart = [float((one - other).abs().max()) for one, other in zip(found, expected, strict=True)]
        except Exception:  # noqa: BLE001  # whatever it is, it is another function
            return False
    return max(apart) <= _ROUNDINGS * torch.finfo(torch.float32).eps * float(states[0].abs().max())
