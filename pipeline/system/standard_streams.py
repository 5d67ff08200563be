"""Standard output and standard error that no one has to fear: what they cannot take never ends a program."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class ForgivingFile(io.FileIO):
    """An open descriptor. Once it cannot be written to (no reader, a full disk), what follows is dropped, and
    ``lost`` says why.
    """

    lost: OSError | None = None

    def write(self, data: object) -> int:
        """Write, or drop."""
        try:
            return super().write(data) if self.lost is None else len(memoryview(data))  # type: ignore[arg-type]
        except OSError as error:
            self.lost = error
            return len(memoryview(data))  # type: ignore[arg-type]  # whatever a buffer may be


def forgive() -> None:
    """Make this process's standard streams forgiving; one that was closed from the start leads nowhere."""
    sys.stdout, sys.stderr = _forgiving(sys.stdout), _forgiving(sys.stderr)


def lost_output() -> OSError | None:
    """Why standard output could not be written, now that all of it was tried; None where it could."""
    sys.stdout.flush()
    file = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return file.lost if isinstance(file, ForgivingFile) else None


def shows_unicode() -> bool:
    """Whether standard output has every character."""
    return str(sys.stdout.encoding).lower().startswith("utf")


def _forgiving(stream: Any) -> Any:
    r"""``stream`` over a file that forgives; what its encoding lacks is escaped (``\u03bb``). One without a
    descriptor, which somebody has put in its place, stays.
    """
    if stream is None:
        return io.TextIOWrapper(io.FileIO(os.devnull, "wb"), encoding="utf-8")
    try:
        file = ForgivingFile(stream.fileno(), "wb", closefd=False)
    except OSError:
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering or stream.write_through,
    )
