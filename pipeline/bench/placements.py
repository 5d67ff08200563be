"""``overnight bench --placements``: how much slower it is to keep the KV cache off the device here, by the
length of the prompt.

All placements run in turn on one loaded model with the same prompt; what counts is the median of the ratios
taken inside one turn.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.bench.contestants import Contest, open_contest
from pipeline.bench.placement_timing import Stay
from pipeline.bench.weights import open_weights
from pipeline.config import Config
from pipeline.engine.interface import Backend
from pipeline.errors import UsageError
from pipeline.planner.model.shape import DTYPE_BYTES
from pipeline.prepare.prepare import prepare, resolve
from pipeline.records import Document
from pipeline.sources import read_source
from pipeline.system.hardware import existing_folder

_Say = Callable[[str], None]
DEFAULT_CONTEXTS = (512, 2048, 8192)
_DEVICE = "device"


@dataclass(frozen=True, slots=True)
class PlacementLine:
    """A placement at one prompt length; medians. ``decode_slower``, ``prefill_slower``: times what the device
    takes in the same turn.

    ``same``: whether the text is that of the device.
    """

    placement: str
    context_tokens: int
    kv_bytes: int
    prefill_seconds: float
    seconds_per_token: float
    prefill_slower: float
    decode_slower: float
    same: bool


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """What was measured; ``skipped`` says in sentences what was not."""

    new_tokens: int
    repetitions: int
    lines: tuple[PlacementLine, ...]
    skipped: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


def placement_table(result: PlacementResult) -> list[str]:
    """The result as lines for people."""
    titles = ("tokens", "KV MiB", "prefill s", "s/token", "prefill x", "decode x", "same text")
    rows = [f"{line.placement:12}" + "".join(f"{cell:>12}" for cell in _cells(line)) for line in result.lines]
    return [
        (
            f"one prompt, {result.new_tokens} tokens written, median of {result.repetitions} turns; x: times "
            f"what the device takes"
        ),
        " " * 12 + "".join(f"{title:>12}" for title in titles),
        *rows,
        *result.skipped,
    ]


def _cells(line: PlacementLine) -> tuple[str, ...]:
    return (
        f"{line.context_tokens:,}",
        f"{line.kv_bytes / 2**20:,.0f}",
        f"{line.prefill_seconds:.2f}",
        f"{line.seconds_per_token:.4f}",
        f"{line.prefill_slower:.2f}",
        f"{line.decode_slower:.2f}",
        "yes" if line.same else "no",
    )


def bench_placements(
    config: Config,
    contexts: Sequence[int],
    *,
    new_tokens: int = 32,
    repetitions: int = 3,
    say: _Say = lambda _: None,
) -> PlacementResult:
    """Measure with a prompt of the source's own words. Raises UsageError, ConfigError, DoesNotFit,
    SourceError.
    """
    if new_tokens < 2:
        raise UsageError(f"{new_tokens} new tokens: the time of a token after the first needs at least 2")
    backend = open_weights(config, say)
    plan = prepare(config, backend, resolve(config, backend, {})).plan
    lengths, skipped = _lengths(contexts, plan.context_tokens - new_tokens)
    words = _words(config, backend, max(lengths))
    # Where the run would have its files: the temporary folder of a machine is often memory.
    with tempfile.TemporaryDirectory(dir=existing_folder(Path(config.run.directory))) as folder:
        contest = open_contest(backend, plan, Path(folder), say, to_the_end=True)
        lines = [
            line
            for length in lengths
            for line in _measured(contest, words[:length], new_tokens, repetitions, say)
        ]
    return PlacementResult(new_tokens, repetitions, tuple(lines), tuple(skipped))


def _lengths(contexts: Sequence[int], most: int) -> tuple[list[int], list[str]]:
    lengths = sorted({tokens for tokens in contexts if 0 < tokens <= most})
    skipped = [
        f"{tokens:,} tokens: more than the {most:,} that fit this plan's context"
        for tokens in contexts
        if tokens > most
    ]
    if not lengths:
        raise UsageError(
            f"none of the prompt lengths {', '.join(map(str, contexts))} fits; the most here are {most:,} "
            f"tokens"
        )
    return lengths, skipped


def _words(config: Config, backend: Backend, count: int) -> list[int]:
    """Token ids of the source's texts, one after the other, from the start again if they are few."""
    texts = (item.text for item in read_source(config.source, ()) if isinstance(item, Document))
    ids: list[int] = []
    for text in texts:
        ids += backend.tokenizer().encode(text)
        if len(ids) >= count:
            break
    if not ids:
        raise UsageError("the source has no readable document to take words from")
    return list(itertools.islice(itertools.cycle(ids), count))


def _measured(
    contest: Contest, ids: Sequence[int], new_tokens: int, repetitions: int, say: _Say
) -> list[PlacementLine]:
    placements = contest.placements()
    turns: list[dict[str, Stay]] = []
    for turn in range(repetitions):
        say(f"turn {turn + 1} of {repetitions}: {len(ids):,} tokens in {', '.join(placements)}")
        turns.append({placement: contest.stay(placement, ids, new_tokens) for placement in placements})
    return [
        PlacementLine(
            placement=placement,
            context_tokens=len(ids),
            kv_bytes=len(ids) * _bytes_per_token(contest, placement),
            prefill_seconds=statistics.median(turn[placement].prefill_seconds for turn in turns),
            seconds_per_token=statistics.median(turn[placement].seconds_per_token for turn in turns),
            prefill_slower=statistics.median(
                turn[placement].prefill_seconds / turn[_DEVICE].prefill_seconds for turn in turns
            ),
            decode_slower=statistics.median(
                turn[placement].seconds_per_token / turn[_DEVICE].seconds_per_token for turn in turns
            ),
            same=turns[-1][placement].tokens == turns[-1][_DEVICE].tokens,
        )
        for placement in placements
    ]


def _bytes_per_token(contest: Contest, placement: str) -> int:
    numbers = contest.plan.kv_bytes_per_token // DTYPE_BYTES[contest.plan.dtype]
    return numbers if placement == "quantized" else contest.plan.kv_bytes_per_token
