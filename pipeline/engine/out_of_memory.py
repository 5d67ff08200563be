"""Which failures mean that memory, or the disk for caches, ran out, and how what they held is given back."""

from __future__ import annotations

import errno
import gc

import torch

from pipeline.errors import OutOfMemory

# Where the type does not tell: the allocators of torch for the processor and for pinned memory, CUDA itself,
# cuBLAS and cuDNN, bitsandbytes, the C++ library. A handle of cuBLAS or cuDNN that cannot be made has found
# no memory for its workspace: there is hardly another cause on a card that computes.
_TEXTS = (
    "out of memory",
    "not enough memory",
    "defaultcpuallocator",
    "cannot allocate memory",
    "_alloc_failed",
    "allocation_failed",
    "cublas_status_not_initialized",
    "cudnn_status_not_initialized",
    "cusparse_status_insufficient_resources",
    "bad_alloc",
)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_out_of_memory(error: object) -> bool:
    """Whether ``error`` says, in any of its forms, that memory ran out."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError | torch.OutOfMemoryError | OutOfMemory) or (
        isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _TEXTS)
    )


def is_disk_full(error: object) -> bool:
    """Whether ``error`` says that the disk, or the user's share of it, is full."""
    return isinstance(error, OSError) and error.errno in _DISK_FULL


def without_frames(error: Exception) -> Exception:
    """``error``, as OutOfMemory where it is that, without the frames that hold the tensors of the attempt."""
    if is_out_of_memory(error):
        text = str(error).strip()
        return OutOfMemory(text.splitlines()[0] if text else type(error).__name__)
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def give_back_pieces(most_kept_bytes: int = 128 * 2**20) -> None:
    """Have a card's allocator keep no more than so much of freed tensors. What is as long as a row grows with
    every pass, and finds no place in what the pass before has left. Waits for the card where it is more.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # no types
        return
    if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > most_kept_bytes:
        torch.cuda.empty_cache()


def free_memory() -> None:
    """Give back what the failed attempt held. Call outside of any except block: frames of the exception hold
    tensors.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
