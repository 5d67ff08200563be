"""One dry night on a pretended card: everything that takes memory, at its fullest, and what the plan said.

    python -m tests.bench.card.night MODEL FOLDER [PASSES]      # in a process that has a pretended card

Prints one JSON object. A night loads the model by the product's own way, reads a prompt that fills the
context, decodes as many rows as the plan allows for 200 passes, reads documents until some must go, and runs
out of memory once, so that a rung of the ladder is taken. Nothing is computed: tensors are but shapes.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.engine.select import select_engine
from pipeline.errors import ConfigError, DoesNotFit
from tests.bench.card.device import Device
from tests.bench.card.planning import DOCUMENT_TOKENS, NEW_TOKENS, machine_with, planned
from tests.bench.card.requests import let_all_rows_in, texts
from tests.bench.card.weightless import without_bytes

_RUNG_TOKENS = 8
_FAILS_AFTER = 500  # launches of a step, which has thousands
_LONGEST_SECONDS = 3000  # of one part of a night


@dataclass
class Part:
    """One part of a night: what it held at its fullest, in bytes of the card; how often memory ran out."""

    name: str
    peak_bytes: int
    reserved_bytes: int
    out_of_memory: int
    steps: int = 0
    answers: int = 0
    told: list[str] = field(default_factory=list)


class Night:
    """An engine under its plan, and the parts of the night so far."""

    def __init__(self, engine: Any, device: Device) -> None:
        self._engine, self._device = engine, device
        self._number = 0
        self.parts: list[Part] = []

    def part(self, name: str, requests: list[Any], *, failing_steps: int = 0) -> Part:
        """Work off ``requests``. Memory runs out once in each of the first ``failing_steps``."""
        self._device.begin()
        self._engine.admit(requests)
        steps, answers, told = 0, 0, []
        until = time.monotonic() + _LONGEST_SECONDS
        while not self._engine.idle and time.monotonic() < until:
            if steps < failing_steps:
                self._device.run_out_of_memory_soon(_FAILS_AFTER)
            found = self._engine.step()
            steps, answers = steps + 1, answers + len(found)
            told += [f"{one.error[0]}: {one.error[1]}" for one in found if one.error]
            told += [note for one in found for note in one.notes]
        self._engine.release([request.request_id for request in requests])
        memory = self._device.memory()
        part = Part(name, memory.peak_bytes, memory.reserved_bytes, memory.out_of_memory, steps, answers)
        part.told = list(dict.fromkeys(told))[:4]
        return self.add(part)

    def add(self, part: Part) -> Part:
        """``part`` is over."""
        self.parts.append(part)
        print(json.dumps(vars(part)), file=sys.stderr, flush=True)
        return part

    def texts(self, rows: int, prompt: int, new: int, **more: int) -> list[Any]:
        """``rows`` different prompts to go on from."""
        first, self._number = self._number, self._number + rows
        return texts(first, rows, prompt, new, **more)


def fullest_rows(plan: Any, tokens: int) -> int:
    """Rows of ``tokens`` that the plan lets decode together."""
    return max(1, min(plan.max_batch_rows, plan.batch_tokens // tokens))


def run(name: str, root: Path, passes: int = NEW_TOKENS) -> dict[str, Any]:
    """The night of model ``name`` on this process's card, with so many decoding passes, as plain values."""
    device = Device()
    try:
        backend, plan, forecast = planned(name, root, machine_with(str(device.total_bytes)))
    except DoesNotFit as error:
        return {"model": name, "card_bytes": device.total_bytes, "refused": str(error)}
    found: dict[str, Any] = {
        "model": name,
        "card_bytes": device.total_bytes,
        "planned_bytes": forecast.vram_peak_bytes,
        "verdict": forecast.verdict,
        "placement": plan.placement,
        "rows": fullest_rows(plan, DOCUMENT_TOKENS + NEW_TOKENS),
        "fits": forecast.fits,
        "reasons": list(plan.reasons),
    }
    without_bytes()
    device.begin()
    started = time.monotonic()
    try:
        loaded = backend.load(plan, root / "offload", lambda _: None)
    except (ConfigError, DoesNotFit) as error:
        return found | {"not loaded": str(error)}
    engine, kind = select_engine(loaded, plan, end_ids=(), pad_id=0)
    let_all_rows_in(engine, plan)
    print(json.dumps(found), file=sys.stderr, flush=True)
    memory = device.memory()
    night = Night(engine, device)
    night.add(Part("loading", memory.peak_bytes, memory.reserved_bytes, memory.out_of_memory))
    _live(night, plan, found["rows"], passes)
    return found | {
        "engine": kind,
        "seconds": round(time.monotonic() - started, 1),
        "parts": [vars(part) for part in night.parts],
        "peak_bytes": max(part.peak_bytes for part in night.parts),
        "races": device.races(),
    }


def _live(night: Night, plan: Any, rows: int, passes: int) -> None:
    night.part("the largest prefill", night.texts(1, plan.context_tokens - _RUNG_TOKENS, _RUNG_TOKENS))
    # fewer passes end with as full a cache
    prompt = DOCUMENT_TOKENS + NEW_TOKENS - passes
    night.part("decode passes", night.texts(rows, prompt, passes))
    night.part("an eviction", _documents(night, plan))
    # once where it runs with others, once alone: then it is read in smaller passes
    night.part("a rung of the ladder", night.texts(1, DOCUMENT_TOKENS, _RUNG_TOKENS), failing_steps=2)


def _documents(night: Night, plan: Any) -> list[Any]:
    """More documents than may stay, each with a question that is still to come."""
    count = max(4, plan.batch_tokens // 4 // DOCUMENT_TOKENS)
    return night.texts(
        min(count, 24), DOCUMENT_TOKENS, _RUNG_TOKENS, document_tokens=DOCUMENT_TOKENS - 10, awaited=1
    )


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))))
