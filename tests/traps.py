"""A pytest plugin that notes every file of a forbidden folder that the process touches: ``-p tests.traps``
with $TRAPS_FOLDER and $TRAPS_REPORT. Loaded before anything else, so nothing escapes it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_FOLDER = os.environ["TRAPS_FOLDER"]
_report = os.open(os.environ["TRAPS_REPORT"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" or event.startswith(("os.", "shutil.")):
        for argument in arguments:
            if isinstance(argument, str | bytes) and os.fsdecode(argument).startswith(_FOLDER):
                os.write(_report, f"{event} {os.fsdecode(argument)}\n".encode())


sys.addaudithook(_note)
