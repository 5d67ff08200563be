"""Steps in while torch and bitsandbytes are imported: what they look for at that moment must be there."""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Execute = Callable[[Any, ModuleType], None]  # given the real loader


def watch_imports() -> None:
    """From now on the process has pretended cards, once it imports torch."""
    sys.meta_path.insert(0, _Finder())


class _Loader(importlib.abc.Loader):
    """The real loader of a module, whose execution is ours."""

    def __init__(self, real: Any, execute: Execute) -> None:
        self._real, self._execute = real, execute

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._real.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        self._execute(self._real, module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self._busy: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _EXECUTED or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, _EXECUTED[name])
        return spec


def _torch(real: Any, module: ModuleType) -> None:
    """The device comes first: torch asks for its CUDA hooks while it is imported."""
    from tests.pretend_card.build import built

    ctypes.CDLL(str(built()))
    real.exec_module(module)
    from tests.pretend_card.torch_cuda import install

    install()


def _specs(real: Any, module: ModuleType) -> None:
    """Bitsandbytes looks for a library of the card's CUDA release; the CPU's holds all that is used here."""
    real.exec_module(module)
    module.get_cuda_specs = lambda: None  # type: ignore[attr-defined]


def _library(real: Any, module: ModuleType) -> None:
    """Its CUDA backend is executed as it is, over a library that works on the card's memory."""
    real.exec_module(module)
    from tests.pretend_card.bitsandbytes_library import Library

    module.lib = Library(module.lib)  # type: ignore[attr-defined]


_EXECUTED: dict[str, Execute] = {
    "torch": _torch,
    "bitsandbytes.cuda_specs": _specs,
    "bitsandbytes.cextension": _library,
}
