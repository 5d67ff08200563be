"""How fast the disk was found to be, and whether reading a cache beats computing it. No torch."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path

_MEMORY = 0.85  # of what is known, kept at each new measurement: about the last seven count
_LEAST_BYTES = 1 << 18  # smaller transfers measure the latency of the file system, not its speed


def worth_loading(
    size_bytes: int,
    read_bytes_per_second: float | None,
    tokens: int,
    prefill_tokens_per_second: float | None,
    *,
    margin: float = 1.0,
) -> bool:
    """Whether reading ``size_bytes`` takes less than 1 / ``margin`` of the time in which ``tokens`` are
    computed.

    A speed that is not known yet (None) decides for loading, which is how it becomes known.
    """
    if read_bytes_per_second is None or prefill_tokens_per_second is None:
        return True
    if read_bytes_per_second <= 0 or prefill_tokens_per_second <= 0:
        return read_bytes_per_second > 0
    return size_bytes / read_bytes_per_second * margin < tokens / prefill_tokens_per_second


@dataclass
class _Measured:
    size_bytes: float = 0.0
    seconds: float = 0.0

    def add(self, size_bytes: int, seconds: float) -> None:
        if size_bytes >= _LEAST_BYTES and seconds > 0:
            self.size_bytes = self.size_bytes * _MEMORY + size_bytes
            self.seconds = self.seconds * _MEMORY + seconds

    @property
    def per_second(self) -> float | None:
        return self.size_bytes / self.seconds if self.seconds else None


class Speeds:
    """Bytes a second of actual operations, recent ones counting more. Safe to use from several threads.

    Reading includes checksums and decoding, writing includes the wait until the bytes are on the disk.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reading = _Measured()
        self._writing = _Measured()

    def read(self, size_bytes: int, seconds: float) -> None:
        """Note a reading."""
        with self._lock:
            self._reading.add(size_bytes, seconds)

    def wrote(self, size_bytes: int, seconds: float) -> None:
        """Note a writing."""
        with self._lock:
            self._writing.add(size_bytes, seconds)

    @property
    def read_bytes_per_second(self) -> float | None:
        """None before anything of size was read."""
        return self._reading.per_second

    @property
    def write_bytes_per_second(self) -> float | None:
        """None before anything of size was written."""
        return self._writing.per_second

    def to_bytes(self) -> bytes:
        """JSON, to be kept between runs."""
        with self._lock:
            return json.dumps({"read": vars(self._reading), "write": vars(self._writing)}).encode()

    def recall(self, path: Path) -> None:
        """Start from what an earlier run measured, if ``path`` tells; anything else in it is ignored."""
        try:
            kept = json.loads(path.read_bytes())
            reading, writing = (
                _Measured(float(kept[name]["size_bytes"]), float(kept[name]["seconds"]))
                for name in ("read", "write")
            )
        except (OSError, ValueError, KeyError, TypeError):
            return
        if all(
            0 <= part < float("inf")
            for known in (reading, writing)
            for part in (known.size_bytes, known.seconds)
        ):
            self._reading, self._writing = reading, writing
