"""With CARD_BYTES (``8GiB``), a large card ends there: what is free, and what torch may allocate, in every
process that has this folder on its path.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_CONTEXT = 2**29  # what a context takes beside what torch allocates


def _limit(torch: Any, limit: int) -> None:
    real_free, real_init = torch.cuda.memory.mem_get_info, torch.cuda._lazy_init

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        free, total = real_free(device)
        return max(0, min(free, limit - (total - free))), limit

    def init() -> None:
        done = torch.cuda.is_initialized()
        real_init()
        if not done:
            share = (limit - _CONTEXT) / torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, share), 0)

    torch.cuda.mem_get_info = torch.cuda.memory.mem_get_info = mem_get_info
    torch.cuda._lazy_init = init


class _Loader(importlib.abc.Loader):
    def __init__(self, real: Any, limit: int) -> None:
        self._real, self._limit = real, limit

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._real.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        _limit(module, self._limit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, limit: int) -> None:
        self._limit, self._busy = limit, False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch" or self._busy:
            return None
        self._busy = True
        spec = importlib.util.find_spec(name)
        self._busy = False
        if spec is not None:
            spec.loader = _Loader(spec.loader, self._limit)
        return spec


if os.environ.get("CARD_BYTES"):
    sys.meta_path.insert(0, _Finder(int(float(os.environ["CARD_BYTES"].removesuffix("GiB")) * 2**30)))
