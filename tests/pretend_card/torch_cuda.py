"""``torch.cuda`` around the device: what the library and the product ask it."""

from __future__ import annotations

from typing import Any

import torch

from tests.pretend_card import (
    attention_kernels,
    clock,
    devices,
    efficient_attention,
    flash_attention,
    graphs,
    host_kernels,
    report,
    streams,
)
from tests.pretend_card.extension import card, index_of
from tests.pretend_card.options import Options, options_of


def install() -> None:
    """Put the cards of the environment into this process's torch; called once, behind torch's import."""
    configure(options_of())
    devices.install()
    streams.install()
    graphs.install()
    _memory()
    attention_kernels.record()
    flash_attention.register()
    efficient_attention.register()
    host_kernels.register()
    report.write_at_exit()


def begin() -> None:
    """Be as a process that has just started; for one that was forked."""
    devices.forget()
    configure(options_of())


def configure(options: Options) -> None:
    """Make the device as ``options`` say."""
    devices.configure(options)
    clock.configure(options)
    card.keep_stacks(options.stacks)
    report.folder = options.log
    report.gone = (options.fail[0], options.gone_mark) if options.fail and options.gone_mark else None


def _memory() -> None:
    for module in (torch.cuda, torch.cuda.memory):
        module.mem_get_info = _mem_get_info
        module.memory_allocated = _figure("allocated")
        module.max_memory_allocated = _figure("peak_allocated")
        module.memory_reserved = _figure("reserved")
        module.max_memory_reserved = _figure("peak_reserved")
        module.reset_peak_memory_stats = _reset_peak
        module.empty_cache = card.empty_cache
        module.set_per_process_memory_fraction = _set_fraction
        module.memory_stats = _memory_stats
    torch.accelerator.empty_cache = card.empty_cache
    torch._C._host_emptyCache = card.empty_host_cache
    torch._C._cuda_clearCublasWorkspaces = card.clear_workspaces
    torch.cuda.cudart = _Runtime


class _Runtime:
    """``torch.cuda.cudart()``: errors are numbers, as in CUDA's runtime."""

    @staticmethod
    def cudaHostRegister(pointer: int, size: int, _flags: int) -> int:  # noqa: N802  # its name in CUDA
        return int(card.host_register(pointer, size))

    @staticmethod
    def cudaHostUnregister(pointer: int) -> int:  # noqa: N802  # its name in CUDA
        return int(card.host_unregister(pointer))


def _figure(name: str) -> Any:
    return lambda device=None: card.memory(index_of(device))[name]


def _mem_get_info(device: Any = None) -> tuple[int, int]:
    torch.cuda._lazy_init()
    found = card.memory(index_of(device))
    return found["free"], found["total"]


def _reset_peak(device: Any = None) -> None:
    if not devices.is_initialized():
        raise RuntimeError(f"Invalid device argument {index_of(device)}: did you call init?")
    card.reset_peak(index_of(device))


def _set_fraction(fraction: float, device: Any = None) -> None:
    index = index_of(device)
    card.set_foreign(index, int(card.memory(index)["total"] * (1 - fraction)))


def _memory_stats(device: Any = None) -> dict[str, int]:
    return {"allocated_bytes.all.current": card.memory(index_of(device))["allocated"]}
