"""What of a model goes to a device together: its layers, and beside them each module without parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch


def block_paths(model: Any) -> list[str]:
    """Paths of the blocks in the model's order; of a tensor that belongs to no module without parts, its own
    name. Together they cover the model.
    """
    # there is no other way to ask which modules cannot be split
    whole = set(model._no_split_modules or ())  # noqa: SLF001
    return list(_paths("", model, whole))


def owner_of(name: str, paths: Collection[str]) -> str:
    """The block of a tensor. Raises StopIteration where none of ``paths`` is its."""
    parts = name.split(".")
    return next(path for end in range(len(parts), -1, -1) if (path := ".".join(parts[:end])) in paths)


def stored_buffers(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Buffers that are in the weight files. The others are computed, and no weights."""
    for path, module in model.named_modules():
        for name, tensor in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:  # noqa: SLF001  # nor of which are stored
                yield f"{path}.{name}".lstrip("."), tensor


def _paths(path: str, module: Any, whole: Collection[str]) -> Iterator[str]:
    parts = list(module.named_children())
    if not parts or type(module).__name__ in whole:
        yield path
        return
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    yield from (f"{path}.{name}".lstrip(".") for name, _ in own)
    for name, part in parts:
        yield from _paths(f"{path}.{name}".lstrip("."), part, whole)
