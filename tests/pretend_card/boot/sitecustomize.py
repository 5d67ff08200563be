"""With PRETEND_CARD in the environment, torch believes in graphics cards as soon as it is imported.

Python imports a module of this name by itself when its folder is on PYTHONPATH, in every process, so that the
workers of a night are reached, too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if os.environ.get("PRETEND_CARD"):
    _ROOT = str(Path(__file__).resolve().parents[3])
    sys.path.insert(0, _ROOT)
    try:
        from tests.pretend_card.importing import watch_imports
        from tests.pretend_card.options import is_pretended
    finally:
        sys.path.remove(_ROOT)
    if is_pretended():
        watch_imports()
