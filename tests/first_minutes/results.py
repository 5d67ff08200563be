"""Answers as they come: a line of JSON each in ``$OUT/results.jsonl``, so that nothing is lost."""

from __future__ import annotations

import gc
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

OUT = Path(os.environ.get("OUT", "/tmp/first-minutes"))
WORK = Path(os.environ.get("WORK", "/dev/shm/first-minutes"))
TINY = os.environ.get("TINY") == "1"  # small shapes: a rehearsal
DEVICE = torch.device("cuda", 0)


def say(section: str, **facts: Any) -> None:
    """Write an answer down and print it."""
    line = json.dumps({"section": section, "at": round(time.time(), 1), **facts}, default=str)
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    print(line, flush=True)


def attempt(section: str, work: Callable[[], dict[str, Any]], **facts: Any) -> None:
    """Say what ``work`` finds, or what it raised; the next question is asked in any case."""
    try:
        say(section, **facts, **work())
    except Exception as error:  # noqa: BLE001  # whatever a card says is an answer
        say(section, **facts, raised=told(error))
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def told(error: BaseException) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def seconds_of(work: Callable[[], object], times: int = 5, warm: int = 2) -> float:
    """The median of a few runs on the card, by events."""
    for _ in range(warm):
        work()
    found = []
    for _ in range(times):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / 1000)
    return max(statistics.median(found), 1e-9)


def activities() -> list[Any]:
    """What a profile is to follow; a pretended card has no kernels of its own to be seen."""
    kinds = torch.profiler.ProfilerActivity
    return [kinds.CPU if TINY else kinds.CUDA]


def bytes_a_second() -> float:
    """What a large sum reads: bandwidth as a kernel sees it."""
    numbers = torch.ones(2**20 if TINY else 2**29, device=DEVICE)
    return numbers.numel() * 4 / seconds_of(numbers.sum)
