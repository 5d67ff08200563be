"""Ask a card some sections of questions: ``python -m tests.first_minutes SECTION...``."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Mapping

from tests.first_minutes.attention import attention_kernels
from tests.first_minutes.decoding import decode_bf16, decode_nf4
from tests.first_minutes.machine import machine
from tests.first_minutes.results import WORK, say, told
from tests.first_minutes.streaming import streamed
from tests.first_minutes.suspects import out_of_memory_while_loading, suspects

SECTIONS: Mapping[str, Callable[[], None]] = {
    section.__name__: section
    for section in (
        machine,
        suspects,
        decode_bf16,
        attention_kernels,
        decode_nf4,
        streamed,
        out_of_memory_while_loading,
    )
}


def ask(name: str) -> None:
    """A section, however it ends, and how long it took."""
    started = time.monotonic()
    try:
        SECTIONS[name]()
    except Exception as error:  # noqa: BLE001  # the next section is asked in any case
        say(name, raised=told(error), stack=traceback.format_exc()[-1500:])
    say("done", name=name, seconds=round(time.monotonic() - started, 1))


if __name__ == "__main__":
    WORK.mkdir(parents=True, exist_ok=True)
    for each in sys.argv[1:]:
        ask(each)
