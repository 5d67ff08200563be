"""The flow ``label`` as a script: ``python flows/label.py [CONFIG] [--set A.B=C] [--limit N]``."""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # started as a script: import from the project's folder, not from this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from flows.once import once

if __name__ == "__main__":
    sys.exit(once("label", sys.argv[1:]))
