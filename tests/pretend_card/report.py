"""What a process did on its cards, told, and left in a file when it ends."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch

from tests.pretend_card import attention_kernels
from tests.pretend_card.extension import card

folder: str | None = None  # where the file goes
gone: tuple[int, str] | None = None  # after so many launches the card is gone, and this file says so


def report() -> dict[str, Any]:
    """Whether the process has initialized CUDA, memory of each card in bytes, counts of launches, waits and
    copies, races with their stacks, kernels of attention.
    """
    return {
        "argv": sys.argv,
        "initialized": torch.cuda.is_initialized(),
        "memory": {index: card.memory(index) for index in range(torch.cuda.device_count())},
        "counts": card.counts(),
        "races": card.races(),
        "attention": dict(attention_kernels.counted),
        "waits": card.wait_stacks(),
    }


@contextmanager
def by_layer(layers: Iterable[torch.nn.Module]) -> Iterator[None]:
    """For the length of a block, launches and waits inside of one of these modules are counted for it, too.
    Its number is its name.
    """
    hooks = []
    for number, layer in enumerate(layers):
        hooks.append(layer.register_forward_pre_hook(_naming(str(number))))
        hooks.append(layer.register_forward_hook(_naming(""), always_call=True))
    try:
        yield
    finally:
        card.set_layer("")
        for hook in hooks:
            hook.remove()


def _naming(name: str) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        card.set_layer(name)

    return hook


def launches_by_layer() -> dict[str, dict[str, int]]:
    """Of each layer the launches by operator, and "host waits", since the counts were reset."""
    found: dict[str, dict[str, int]] = {}
    for name, count in card.counts().items():
        if name.startswith("layer "):
            layer, _, operator = name.removeprefix("layer ").partition(": ")
            found.setdefault(layer, {})[operator] = count
    return found


def write_at_exit() -> None:
    """Leave ``PID.json`` in ``folder`` however the process ends, but by a signal."""
    atexit.register(_write)
    real = os._exit

    def ended(code: int) -> NoReturn:
        _write()
        real(code)

    os._exit = ended


def _write() -> None:
    if gone and card.counts().get("launches", 0) + 1 >= gone[0]:  # the one that failed is not counted
        Path(gone[1]).touch()
    if folder:
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{os.getpid()}.json").write_text(json.dumps(report(), indent=1), encoding="utf-8")
