"""Which cards a process sees, and what ``torch.cuda`` tells of them."""

from __future__ import annotations

import hashlib
import sys
import types
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tests.pretend_card.extension import card, index_of
from tests.pretend_card.named_cards import Card
from tests.pretend_card.options import Options, is_pretended, options_of

_BY_CAPABILITY = 2**64 - 1  # of a workspace
_there: list[Options] = []  # what the machine has; one entry
_begun: list[
    tuple[int, ...]
] = []  # the numbers of those that this process has seen since CUDA was initialized


def install() -> None:
    """Let ``torch.cuda`` see the cards."""
    cuda = torch.cuda
    torch.version.cuda = "12.8"
    torch.backends.cuda.is_built = lambda: True
    cuda._is_compiled = lambda: True
    cuda.device_count = torch._C._cuda_getDeviceCount = lambda: len(visible())
    cuda.is_available = lambda: bool(visible())
    cuda._lazy_init = cuda.init = _begin
    cuda.is_initialized = is_initialized
    cuda.current_device = _current_device
    cuda.set_device = _set_device
    cuda._exchange_device = cuda._maybe_exchange_device = _exchange
    cuda.get_device_properties = _properties
    cuda.get_arch_list = lambda: ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
    cuda.ipc_collect = lambda: None


def configure(options: Options) -> None:
    """Make the machine's cards as ``options`` say."""
    _there[:] = [options]
    card.options(options.strict, options.poison, options.dry)
    card.set_workspace(_BY_CAPABILITY if options.workspace_bytes is None else options.workspace_bytes)
    card.set_node_bytes(options.graph_node_bytes)
    if options.fail:
        card.fail_after(*options.fail)
    if _begun:
        _begun[:] = [_chosen()]
    _tell_device(visible())
    _forget_cards()


def forget() -> None:
    """Nothing has asked for a card yet."""
    _begun.clear()


def visible() -> tuple[Card, ...]:
    """The cards of this process, in its order. What ``CUDA_VISIBLE_DEVICES`` says later changes nothing."""
    return tuple(_there[0].cards[number] for number in _numbers())


def is_initialized() -> bool:
    """Whether something has asked for a card already."""
    return bool(_begun)


@contextmanager
def pretend(**variables: str) -> Iterator[None]:
    """Other cards for a while: ``pretend(PRETEND_CARD="t4")``. What is on the card stays there."""
    before = _there[0]
    configure(options_of(variables))
    try:
        yield
    finally:
        configure(before)


def _numbers() -> tuple[int, ...]:
    return _begun[0] if _begun else _chosen()


def _chosen() -> tuple[int, ...]:
    """By torch's own reading of ``CUDA_VISIBLE_DEVICES``; none where a card has gone since. The first that
    does not exist ends the list (CUDA C++ Programming Guide, "CUDA Environment Variables").
    """
    if not is_pretended():
        return ()
    names = [f"GPU-{_uuid(number)}" for number in range(len(_there[0].cards))]
    found: list[int] = []
    for asked in torch.cuda._parse_visible_devices():
        matching = [i for i, name in enumerate(names) if isinstance(asked, str) and name.startswith(asked)]
        number = matching[0] if len(matching) == 1 else asked
        if not isinstance(number, int) or number >= len(names):
            break
        found.append(number)
    return tuple(found)


def _begin() -> None:
    if _begun:
        return
    if not _chosen():
        raise RuntimeError("No CUDA GPUs are available")
    _begun.append(_chosen())
    _tell_device(visible())


def _tell_device(cards: tuple[Card, ...]) -> None:
    options = _there[0]
    card.configure(len(cards))
    for number, one in enumerate(cards):
        sizes = (one.total_bytes, options.context_bytes, options.foreign_bytes)
        card.configure_card(number, *sizes, *one.capability)
    torch.cuda.default_generators = (torch.default_generator,) * len(cards)


def _forget_cards() -> None:
    """What others have kept of the cards before."""
    operators = sys.modules.get("bitsandbytes.backends.cuda.ops")
    for name in ("_gpu_dispatch_props", "_gemm_4bit_use_custom_cuda"):
        if operators is not None and hasattr(operators, name):
            getattr(operators, name).cache_clear()


def _current_device() -> int:
    torch.cuda._lazy_init()
    return int(card.get_device())


def _set_device(device: Any) -> None:
    index = index_of(device)
    if index >= 0:
        torch.cuda._lazy_init()
        _require(index)
        card.set_device(index)


def _exchange(index: int) -> int:
    return int(card.set_device(index)) if index >= 0 else -1


def _require(index: int) -> None:
    if index >= len(visible()):
        raise torch.AcceleratorError("CUDA error: invalid device ordinal")


def _uuid(number: int) -> uuid.UUID:
    return uuid.UUID(hashlib.md5(f"pretended card {number}".encode(), usedforsecurity=False).hexdigest())


def _properties(device: Any = None) -> types.SimpleNamespace:
    torch.cuda._lazy_init()
    index = index_of(device)
    if index >= len(visible()):
        raise AssertionError("Invalid device id")
    one = visible()[index]
    return types.SimpleNamespace(
        name=one.name,
        major=one.capability[0],
        minor=one.capability[1],
        total_memory=card.memory(index)["total"],
        multi_processor_count=one.multiprocessors,
        max_threads_per_multi_processor=one.threads_per_multiprocessor,
        warp_size=32,
        uuid=_uuid(_numbers()[index]),
        L2_cache_size=one.l2_bytes,
        is_integrated=0,
        is_multi_gpu_board=0,
        shared_memory_per_block_optin=one.shared_bytes_per_block,
        shared_memory_per_block=49_152,
        shared_memory_per_multiprocessor=one.shared_bytes_per_block + 1024,
        regs_per_multiprocessor=65_536,
        gcnArchName="",
    )
