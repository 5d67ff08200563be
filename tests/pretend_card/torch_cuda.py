"""``torch.cuda`` around the device: what the library and the product ask it."""

from __future__ import annotations

import types
from typing import Any

import torch

from tests.pretend_card import attention_kernels, host_kernels, report, streams
from tests.pretend_card.extension import card, index_of
from tests.pretend_card.options import Options, is_pretended, options_of

MULTIPROCESSORS = 24  # of an RTX 4060
_begun: list[
    bool
] = []  # as in the real one: some functions may be called only after something initialized CUDA


def install() -> None:
    """Put the cards of the environment into this process's torch; called once, behind torch's import."""
    configure(options_of())
    _say_that_cuda_is_there()
    _devices()
    _streams()
    _memory()
    attention_kernels.record()
    host_kernels.register()
    report.write_at_exit()


def begin() -> None:
    """Be as a process that has just started; for one that was forked."""
    _begun.clear()
    configure(options_of())


def configure(options: Options) -> None:
    """Make the device as ``options`` say."""
    sizes = (options.total_bytes, options.context_bytes, options.foreign_bytes)
    card.configure(options.cards, *sizes, *options.capability)
    card.options(options.strict, options.poison, options.dry)
    if options.fail:
        card.fail_after(*options.fail)
    torch.cuda.default_generators = (torch.default_generator,) * options.cards
    visible = options.cards if is_pretended() else 0  # a card may be gone since
    torch.cuda.device_count = lambda: visible
    torch._C._cuda_getDeviceCount = lambda: visible
    report.folder = options.log
    report.gone = (options.fail[0], options.gone_mark) if options.fail and options.gone_mark else None
    capability[:] = options.capability


capability = [8, 9]


def _say_that_cuda_is_there() -> None:
    cuda = torch.cuda
    torch.version.cuda = "12.8"
    torch.backends.cuda.is_built = lambda: True
    cuda._is_compiled = lambda: True
    cuda.is_available = lambda: cuda.device_count() > 0
    cuda._lazy_init = cuda.init = lambda: None if _begun else _begun.append(True)
    cuda.is_initialized = lambda: bool(_begun)
    cuda.get_arch_list = lambda: ["sm_80", "sm_86", "sm_89", "sm_90"]
    cuda.ipc_collect = lambda: None


def _devices() -> None:
    cuda = torch.cuda
    cuda.current_device = card.get_device
    cuda.set_device = lambda device: card.set_device(index_of(device)) and None
    cuda._exchange_device = _exchange
    cuda._maybe_exchange_device = _exchange
    cuda.get_device_properties = _properties


def _exchange(index: int) -> int:
    return int(card.set_device(index)) if index >= 0 else -1


def _properties(device: Any = None) -> types.SimpleNamespace:
    """Of an RTX 4060, but for its memory and what the options say."""
    torch.cuda._lazy_init()
    return types.SimpleNamespace(
        name="Pretend card",
        major=capability[0],
        minor=capability[1],
        total_memory=card.memory(index_of(device))["total"],
        multi_processor_count=MULTIPROCESSORS,
        max_threads_per_multi_processor=1536,
        warp_size=32,
        uuid="0",
        L2_cache_size=32 << 20,
        is_integrated=0,
        is_multi_gpu_board=0,
        shared_memory_per_block_optin=101376,
        shared_memory_per_block=49152,
        regs_per_multiprocessor=65536,
        gcnArchName="",
    )


def _streams() -> None:
    cuda = torch.cuda
    cuda.Stream, cuda.Event = streams.Stream, streams.Event
    cuda.StreamContext = cuda.stream = streams.StreamContext
    cuda.current_stream, cuda.default_stream = streams.current_stream, streams.default_stream
    cuda.synchronize = streams.synchronize
    cuda.set_stream = torch._C._accelerator_setStream
    cuda.is_current_stream_capturing = lambda: False
    torch._C._cuda_getCurrentRawStream = lambda _index: 0
    torch._C._cuda_isCurrentStreamCapturing = lambda: False


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


def _figure(name: str) -> Any:
    return lambda device=None: card.memory(index_of(device))[name]


def _mem_get_info(device: Any = None) -> tuple[int, int]:
    torch.cuda._lazy_init()
    found = card.memory(index_of(device))
    return found["free"], found["total"]


def _reset_peak(device: Any = None) -> None:
    if not _begun:
        raise RuntimeError(f"Invalid device argument {index_of(device)}: did you call init?")
    card.reset_peak(index_of(device))


def _set_fraction(fraction: float, device: Any = None) -> None:
    index = index_of(device)
    card.set_foreign(index, int(card.memory(index)["total"] * (1 - fraction)))


def _memory_stats(device: Any = None) -> dict[str, int]:
    return {"allocated_bytes.all.current": card.memory(index_of(device))["allocated"]}
