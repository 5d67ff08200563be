"""What counts as memory that ran out, and what does not though it sounds like it."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
import torch

from pipeline.engine.device_failure import is_device_lost
from pipeline.engine.out_of_memory import (
    free_memory,
    is_disk_full,
    is_out_of_memory,
    without_frames,
)
from pipeline.errors import ConfigError, OutOfMemory

HUGE = 2**48

OUT_OF_MEMORY = [
    MemoryError(),
    OutOfMemory("asked for"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    torch.AcceleratorError("CUDA error: out of memory"),  # as of pinned host memory
    OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
    RuntimeError("Error out of memory at line 380 in file csrc/ops.cu"),  # as bitsandbytes says it
    RuntimeError("unable to mmap 1024 bytes from file <w>: Cannot allocate memory (12)"),
    RuntimeError("std::bad_alloc"),
]
SOMETHING_ELSE = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    torch.AcceleratorError("CUDA error: device-side assert triggered"),
    OSError(errno.ENOSPC, "No space left on device; out of memory"),
    KeyError("out of memory"),
    ValueError("not enough memory"),
    ConfigError("the model needs more memory than there is: not enough memory"),
    None,
    "out of memory",
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=repr)
def test_out_of_memory_in_every_form(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert not is_device_lost(error)
    told = without_frames(error)
    assert isinstance(told, OutOfMemory)
    assert str(told)


@pytest.mark.parametrize("error", SOMETHING_ELSE, ids=repr)
def test_other_failures_are_not_taken_for_it(error: object) -> None:
    assert not is_out_of_memory(error)


def test_what_the_allocators_here_really_raise() -> None:
    for attempt in (
        lambda: torch.empty(HUGE),
        lambda: bytearray(2**62),
        lambda: np.empty(HUGE),
        lambda: torch.zeros(1).repeat(HUGE),
    ):
        with pytest.raises((RuntimeError, MemoryError)) as caught:
            attempt()
        assert is_out_of_memory(caught.value)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk(number: int) -> None:
    assert is_disk_full(OSError(number, os.strerror(number)))
    assert not is_disk_full(OSError(errno.EIO, "Input/output error"))
    assert not is_disk_full(RuntimeError("No space left on device"))


def test_no_frame_and_no_other_error_stays_with_what_is_kept() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as error:
        kept = without_frames(error)
    assert isinstance(kept, ValueError)
    assert (kept.__traceback__, kept.__cause__, kept.__context__) == (None, None, None)
    assert str(without_frames(MemoryError("first line\nsecond"))) == "first line"


def test_freeing_can_be_asked_for_at_any_time() -> None:
    free_memory()
