"""Root mean square norms as one kernel: on a card the library's own take six to eight launches each.

``torch.nn.RMSNorm`` is the same formula (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019)
and one kernel there. It takes the place of a module that gives the same numbers on random inputs, whatever
its family calls it; others stay as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

_SCALES = (1e-3, 1.0, 30.0)  # of inputs: the smallest shows another epsilon
_ROUNDINGS = 8  # of a type's epsilon: how often either way rounds, with room


@dataclass(frozen=True, slots=True)
class _Candidate:
    parent: torch.nn.Module
    name: str
    norm: torch.nn.RMSNorm


def fuse_norms(model: torch.nn.Module) -> int:
    """Replace the norms of ``model`` that one kernel computes as well; how many. Its weights must be where
    they stay.
    """
    candidates: list[_Candidate] = []
    agree: list[torch.Tensor] = []
    with torch.inference_mode():
        for parent, name, module in _norms(model):
            for norm in _forms(module):
                candidates.append(_Candidate(parent, name, norm))
                agree.append(_agreement(module, norm))
    found = [bool(each) for each in agree]  # parts of a model may be on several cards
    replaced = {
        (id(candidate.parent), candidate.name): candidate
        for candidate, agrees in zip(candidates, found, strict=True)
        if agrees
    }
    for candidate in replaced.values():
        setattr(candidate.parent, candidate.name, candidate.norm)
    return len(replaced)


def _norms(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, torch.nn.Module]]:
    """(parent, name, module) of whatever may be one: a vector of weights, one input."""
    for parent in model.modules():
        for name, module in parent.named_children():
            own = dict(module.named_parameters())
            weight = own.get("weight")
            if len(own) != 1 or weight is None or weight.dim() != 1 or weight.device.type == "meta":
                continue
            if isinstance(module, torch.nn.RMSNorm) or hasattr(
                module, "_hf_hook"
            ):  # a hook brings its weights
                continue
            if len(inspect.signature(module.forward).parameters) == 1:
                yield parent, name, module


def _forms(module: Any) -> Iterator[torch.nn.RMSNorm]:
    """Multiplied by the weight as it is, or by one and the weight, as Gemma does."""
    epsilon = float(getattr(module, "variance_epsilon", getattr(module, "eps", 1e-6)))
    weight = module.weight.detach()
    for scale in (weight, (1.0 + weight.float()).to(weight.dtype)):
        norm = torch.nn.RMSNorm(weight.shape, eps=epsilon, device="meta")
        norm.weight = torch.nn.Parameter(scale, requires_grad=False)
        yield norm.eval()


def _agreement(module: torch.nn.Module, norm: torch.nn.RMSNorm) -> torch.Tensor:
    """Whether both give the same for rows of several sizes: one boolean, on the device."""
    weight = norm.weight
    generator = torch.Generator().manual_seed(weight.numel())
    rows = torch.randn(len(_SCALES), weight.numel(), generator=generator)
    rows = (rows * torch.tensor(_SCALES)[:, None]).to(weight.device, weight.dtype)
    try:
        expected, found = module(rows), norm(rows)
    except Exception:  # noqa: BLE001  # whatever it is, it is no norm
        return torch.zeros((), dtype=torch.bool, device=weight.device)
    if not isinstance(expected, torch.Tensor) or (expected.shape, expected.dtype) != (
        found.shape,
        found.dtype,
    ):
        return torch.zeros((), dtype=torch.bool, device=weight.device)
    bound = _ROUNDINGS * torch.finfo(weight.dtype).eps
    apart = (found.float() - expected.float()).abs()
    agrees: torch.Tensor = (apart <= bound * expected.float().abs().amax(dim=-1, keepdim=True)).all()
    return agrees
