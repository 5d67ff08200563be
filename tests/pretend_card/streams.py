"""Streams and events of ``torch.cuda``, on the generic ones, which the device knows."""

from __future__ import annotations

from typing import Any, Self

import torch

from tests.pretend_card.extension import card, index_of


def install() -> None:
    """Put them into ``torch.cuda``."""
    cuda = torch.cuda
    cuda.Stream, cuda.Event = Stream, Event
    cuda.StreamContext = cuda.stream = StreamContext
    cuda.current_stream, cuda.default_stream = current_stream, default_stream
    cuda.synchronize = synchronize
    cuda.set_stream = torch._C._accelerator_setStream
    torch._C._cuda_getCurrentRawStream = card.current_stream


class Stream(torch.Stream):
    """``torch.cuda.Stream``."""

    def __new__(cls, device: Any = None, priority: int = 0, **known: Any) -> Self:
        if "stream_id" in known:
            return super().__new__(cls, priority=priority, **known)
        return super().__new__(cls, torch.device("cuda", index_of(device)), priority=priority)

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    @property
    def cuda_stream(self) -> int:
        return self.stream_id


class Event(torch.Event):
    """``torch.cuda.Event``."""

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Self:
        flags = {"enable_timing": enable_timing, "blocking": blocking, "interprocess": interprocess}
        self: Event = super().__new__(cls, torch.device("cuda"), **flags)
        self._is_timed = enable_timing
        return self

    def record(self, stream: Any = None) -> None:
        super().record(current_stream() if stream is None else stream)

    def wait(self, stream: Any = None) -> None:
        super().wait(current_stream() if stream is None else stream)

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds of the pretended clock. Raises as torch does: without timing, or before
        both have happened.
        """
        if not (self._is_timed and end_event._is_timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self.event_id and end_event.event_id):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return float(card.elapsed(self.event_id, end_event.event_id))


class StreamContext:
    """``torch.cuda.stream(...)``."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> Any:
        if self.stream is not None:
            self._before = torch._C._accelerator_getStream(self.stream.device_index)
            torch._C._accelerator_setStream(self.stream)
        return self.stream

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            torch._C._accelerator_setStream(self._before)


def current_stream(device: Any = None) -> Stream:
    found = torch._C._accelerator_getStream(index_of(device))
    return _stream(found.stream_id, found)


def default_stream(device: Any = None) -> Stream:
    return _stream(0, torch._C._accelerator_getStream(index_of(device)))


def _stream(number: int, of: Any) -> Stream:
    return Stream(stream_id=number, device_index=of.device_index, device_type=of.device_type)


def synchronize(device: Any = None) -> None:
    torch._C._accelerator_synchronizeDevice(index_of(device))
