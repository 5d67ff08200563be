"""What this process holds: resident memory now and at most, and memory of graphics cards, without importing
anything heavy.
"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path


def resident_bytes() -> int:
    """Resident memory now."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def peak_resident_bytes() -> int:
    """High-water mark of resident memory: since it was last set back on Linux, of the whole life of the
    process elsewhere.
    """
    with contextlib.suppress(OSError):
        found = re.search(
            r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        )
        if found:
            return int(found[1]) * 1024
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_card_bytes() -> int:
    """Most memory that torch has held on all graphics cards together; 0 where there are none, or torch is not
    loaded.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return 0
    return sum(int(torch.cuda.max_memory_reserved(card)) for card in range(torch.cuda.device_count()))
