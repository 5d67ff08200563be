"""What the model libraries say, and where it goes: to the log instead of the terminal, without the lines that
say nothing.

Progress bars are switched off (loading has its own messages). Warnings stay warnings and reach the root
logger's handlers. Two messages of bitsandbytes are known and expected, and become quiet:

- "MatMul8bitLt: inputs will be cast from … to float16 during quantization" comes once a linear layer and pass
  (thousands a document), and only describes how int8 works; it is dropped.
- "Failed to load CPU gemm_4bit_forward": bitsandbytes would fetch a compiled kernel from the Hub while it is
  being imported, if the package ``kernels`` is there. Code from the Hub is never fetched here, and numbers
  must not depend on what else is installed, so the import is made to fail; bitsandbytes then uses its own
  compiled kernel. The notice is logged as information.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

_CAST_NOTICE = "MatMul8bitLt: inputs will be cast"
_KERNEL_NOTICE = "Failed to load CPU gemm_4bit_forward"


class _DropCastNotice(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(_CAST_NOTICE)


class _LowerKernelNotice(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith(_KERNEL_NOTICE):
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
            return logging.getLogger().isEnabledFor(logging.DEBUG)
        return True


_log = logging.getLogger(__name__)


class _LogLines(io.TextIOBase):
    """A text stream whose lines go to the log; a progress bar's rewritten line counts once, as it ends."""

    def __init__(self) -> None:
        self._line = ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            if shown := line.rpartition("\r")[2].strip():
                _log.info("%s", shown)
        return len(text)


@contextlib.contextmanager
def stderr_in_log() -> Iterator[None]:
    """What is written to standard error inside goes to the log: for progress bars that cannot be switched
    off.
    """
    with contextlib.redirect_stderr(_LogLines()):
        yield


@cache
def quiet_libraries() -> None:
    """Send what transformers, huggingface_hub and bitsandbytes say to the log. Once a process; called before
    any of them loads a model.
    """
    from huggingface_hub.utils.tqdm import disable_progress_bars
    from transformers.utils import logging as transformers_logging

    disable_progress_bars()
    # the library's signature has no types
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.disable_default_handler()
    transformers_logging.enable_propagation()
    logging.getLogger("bitsandbytes.autograd._functions").addFilter(_DropCastNotice())
    logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(_LowerKernelNotice())


def import_bitsandbytes() -> Any:
    """The bitsandbytes module, imported without its reach for a kernel on the Hub. Raises ImportError or what
    its binaries raise.
    """
    quiet_libraries()
    absent = object()
    kernels = sys.modules.get("kernels", absent)
    # how Python itself marks a module that must not be found
    sys.modules["kernels"] = None  # type: ignore[assignment]
    try:
        import bitsandbytes
    finally:
        if kernels is absent:
            del sys.modules["kernels"]
        else:
            sys.modules["kernels"] = kernels  # type: ignore[assignment]  # put back as it was
    return bitsandbytes
