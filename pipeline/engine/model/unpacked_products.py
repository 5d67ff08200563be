"""Weights in 4 bits that are unpacked once, when they are loaded, where the plan says that passes would do it
each time (``pipeline.planner.unpacked_weights``).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from pipeline.engine.model.library_logging import import_bitsandbytes
from pipeline.engine.out_of_memory import give_back_pieces
from pipeline.planner.memory import LARGE_BYTES


def unpack_products(model: Any, shapes: Collection[tuple[int, int]], dtype: torch.dtype) -> int:
    """Replace the products in 4 bits of ``model`` whose weights are of these (out, in) by plain ones with
    the same numbers in ``dtype``; how many.

    The numbers are those that bitsandbytes multiplies with where it does not multiply in 4 bits. One weight
    at a time: no more memory is taken than in the end. Those that a card's allocator puts side by side wait
    in RAM until all in 4 bits are gone: in the gaps between these they would keep them from being given back.
    """
    packed = import_bitsandbytes().nn.Linear4bit
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, packed) and (module.out_features, module.in_features) in shapes
    ]
    waiting: list[tuple[torch.nn.Linear, torch.device]] = []
    for name, module in found:
        path, _, own = name.rpartition(".")
        plain, device = _plain(module, dtype), module.weight.device
        if plain.weight.nbytes < LARGE_BYTES:
            _move(plain, torch.device("cpu"))
            waiting.append((plain, device))
        setattr(model.get_submodule(path), own, plain)
        module.weight = module.quant_state = (
            None  # they and the module name each other: not for the collector
        )
    give_back_pieces(0)  # weights of other sizes do not fit where those in 4 bits lay
    for plain, device in waiting:
        _move(plain, device)
    return len(found)


def _move(plain: torch.nn.Linear, device: torch.device) -> None:
    plain.weight = torch.nn.Parameter(plain.weight.to(device), requires_grad=False)


def _plain(module: Any, dtype: torch.dtype) -> torch.nn.Linear:
    functional = import_bitsandbytes().functional
    weight = functional.dequantize_4bit(module.weight.data, module.weight.quant_state).to(dtype)
    with torch.device("meta"):
        plain = torch.nn.Linear(module.in_features, module.out_features, bias=False, dtype=dtype)
    plain.weight = torch.nn.Parameter(weight, requires_grad=False)
    if module.bias is not None:
        plain.bias = module.bias
    return plain.train(module.training)
