"""Free disk and memory under a run, looked at about once a second: a night stops, or gives memory back,
before damage is done.

A disk below its floor ends the run while there is still room to close it well. Memory below its floor first
ends the worker, whose documents are then tried smaller and apart, as after any other death; memory that is
short without the worker is somebody else's, and ends the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pipeline.errors import StoppedEarly
from pipeline.system.hardware import disk_of, reclaimable_ram_bytes
from pipeline.system.units import amount

Activity = Literal["nothing", "loading", "idle", "computing"]
"""What the workers do: there is none, one is on its way to a loaded model, all wait for requests, one
computes some.
"""
_LOOK_SECONDS = 1.0


class ResourceGuard:
    """Floors for the disk that holds ``folder`` and for the memory of the machine (or of the container); 0:
    not watched.
    """

    def __init__(
        self,
        folder: Path,
        *,
        disk_floor_bytes: int,
        memory_floor_bytes: int,
        free_memory_bytes: Callable[[], int] = reclaimable_ram_bytes,
    ) -> None:
        self._folder = folder
        self._disk_floor_bytes = disk_floor_bytes
        self._memory_floor_bytes = memory_floor_bytes
        self._free_memory_bytes = free_memory_bytes
        self._next_look = float("-inf")

    def check(self, activity: Activity) -> str | None:
        """Why a worker is to give its memory back, if so; raises StoppedEarly when that would not help.
        Nothing if the last look was a moment ago.
        """
        if time.monotonic() < self._next_look:
            return None
        self._next_look = time.monotonic() + _LOOK_SECONDS
        self._check_disk()
        if not self._memory_floor_bytes or activity == "loading":
            return None  # what a model takes to be loaded, the plan has counted
        return self._check_memory(activity)

    def _check_disk(self) -> None:
        free = disk_of(self._folder).free_bytes if self._disk_floor_bytes else 0
        if free < self._disk_floor_bytes:
            raise StoppedEarly(
                f"{amount(free)} are free on the disk that holds {self._folder}, less than "
                f"run.keep_free_disk = "
                f"{amount(self._disk_floor_bytes)}; free some space and run the same command again"
            )

    def _check_memory(self, activity: Activity) -> str | None:
        free = self._free_memory_bytes()
        if free >= self._memory_floor_bytes:
            return None
        short = (
            f"{amount(free)} of memory are free, less than run.keep_free_memory = "
            f"{amount(self._memory_floor_bytes)}"
        )
        if activity == "computing":
            self._next_look = float("-inf")  # whether that helped is looked at before another model is loaded
            return f"{short}: the worker was stopped before the system would have run out"
        beside = (
            "with the model loaded and nothing to compute" if activity == "idle" else "without a model in it"
        )
        raise StoppedEarly(
            f"{short}, {beside}; close other programs or use a smaller model, and run the same command again"
        )
