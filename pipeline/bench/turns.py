"""The turns of ``overnight bench``: every contestant over the same prompts, several times over, and the
figures that come of it.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.bench.contestants import (
    EACH_LABEL,
    GENERATE_BATCH,
    NAIVE,
    ONE_BY_ONE,
    OURS,
    STATIC,
    Contest,
    Heat,
)
from pipeline.bench.results import BenchResult, Line
from pipeline.engine.batching import row_tokens
from pipeline.errors import UsageError
from pipeline.records import Decode, Request
from pipeline.tasks import Task

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """``documents`` of the source take part, ``slow_documents`` of them each turn in contestants that go one
    by one.

    ``to_the_end``: every text has exactly the task's ``max_output_tokens``. ``contestants`` leaves out the
    others; ours is always in.
    """

    documents: int = 32
    slow_documents: int = 4
    repetitions: int = 3
    task: str | None = None
    to_the_end: bool = False
    contestants: tuple[str, ...] = ()


class Turns:
    """The turns, and what comes of them."""

    def __init__(
        self, contest: Contest, task: Task, requests: Sequence[Request], options: BenchOptions, say: Say
    ) -> None:
        self._contest = contest
        self._task = task
        self._requests = requests
        self._options = options
        self._say = say
        self._slow = _spread(requests, options.slow_documents)

    def run(self) -> BenchResult:
        """All of them. Raises UsageError for a contestant that is not there."""
        names = _contestants(self._requests, self._options.contestants)
        heats: dict[str, list[tuple[Sequence[Request], Heat]]] = {name: [] for name in names}
        matmul = []
        for name in names:  # what is allocated, compiled or tried out on first use is no part of the speed
            self._contest.run(name, self._requests[:2])
        for turn in range(self._options.repetitions):
            matmul.append(self._contest.matmul_flops())
            for name in names:
                some = next(self._slow) if name in ONE_BY_ONE else self._requests
                self._say(f"turn {turn + 1} of {self._options.repetitions}: {name}, {len(some)} documents")
                heats[name].append((some, self._contest.run(name, some)))
        ours = [self._seconds(*heat) for heat in heats[OURS]]
        answers = _answers(heats[OURS][-1][1])
        lines = tuple(self._line(name, heats[name], ours, answers, matmul) for name in names)
        texts = [len(generation.token_ids) for generation in heats[OURS][-1][1].generations.values()]
        return BenchResult(
            task=self._task.job.name,
            kind=self._task.job.kind,
            documents=len(self._requests),
            repetitions=self._options.repetitions,
            prompt_tokens=statistics.fmean(len(request.ids) for request in self._requests),
            prefix_tokens=self._requests[0].prefix_tokens,
            output_tokens=statistics.fmean(texts),
            matmul_gflops=statistics.median(matmul) / 1e9,
            model=self._contest.facts,
            lines=lines,
        )

    def _line(
        self,
        name: str,
        heats: Sequence[tuple[Sequence[Request], Heat]],
        ours: Sequence[float],
        answers: Mapping[int, Any],
        matmul: Sequence[float],
    ) -> Line:
        seconds = [self._seconds(*heat) for heat in heats]
        passes = [heat.passes for _, heat in heats]
        computed = sum(each.read_tokens + each.decode_tokens for each in passes)
        same = [
            answers[request] == answer
            for _, heat in heats
            for request, answer in _answers(heat).items()
            if isinstance(answers[request], type(answer))
        ]
        needed = [self._useful_tokens(some, heat) * 2 * self._contest.parameters for some, heat in heats]
        shares = [
            flops / (rate * heat.seconds)
            for flops, rate, (_, heat) in zip(needed, matmul, heats, strict=True)
        ]
        return Line(
            name=name,
            what=self._contest.describe(name),
            seconds_per_document=statistics.median(seconds),
            documents_per_second=1 / statistics.median(seconds),
            read_tokens_per_second=_rate(
                sum(each.read_tokens for each in passes), sum(each.read_seconds for each in passes)
            ),
            decode_tokens_per_second=_rate(
                sum(each.decode_tokens for each in passes), sum(each.decode_seconds for each in passes)
            ),
            forward_share=statistics.median(heat.passes.seconds / heat.seconds for _, heat in heats),
            padding_share=sum(each.padded for each in passes) / max(1, computed),
            matmul_share=statistics.median(shares),
            speedup=statistics.median(theirs / own for theirs, own in zip(seconds, ours, strict=True)),
            same=statistics.fmean(same) if same else None,
        )

    def _seconds(self, some: Sequence[Request], heat: Heat) -> float:
        """Seconds a document, scaled from ``some`` to all by their tokens."""
        mean = statistics.fmean(map(row_tokens, self._requests))
        return heat.seconds * mean / sum(map(row_tokens, some))

    def _useful_tokens(self, some: Sequence[Request], heat: Heat) -> int:
        """Tokens that no way of doing it can save: its share of the one prefix, what each prompt has of its
        own, what is written.
        """
        own = sum(len(request.ids) - request.prefix_tokens for request in some)
        prefix = some[0].prefix_tokens * len(some) // len(self._requests)
        return prefix + own + sum(len(generation.token_ids) for generation in heat.generations.values())


def _contestants(requests: Sequence[Request], wanted: Sequence[str]) -> list[str]:
    texts = isinstance(requests[0].ask, Decode)
    there = [OURS, NAIVE, STATIC, GENERATE_BATCH] if texts else [OURS, NAIVE, STATIC, EACH_LABEL]
    unknown = [name for name in wanted if name not in there]
    if unknown:
        raise UsageError(
            f"there is no contestant {unknown[0]!r} for this kind of task; there are {', '.join(there)}"
        )
    return [name for name in there if name == OURS or not wanted or name in wanted]


def _spread(requests: Sequence[Request], count: int) -> Iterator[list[Request]]:
    """For ever: ``count`` requests spread over the lengths, others each time until all have had their
    turn.
    """
    ordered = sorted(requests, key=row_tokens)
    step = max(1, len(ordered) // max(1, count))
    for offset in itertools.cycle(range(step)):
        yield ordered[offset::step][: max(1, count)]


def _answers(heat: Heat) -> dict[int, Any]:
    """What each request was answered: the text, or the best label."""
    return {
        request: generation.token_ids
        if not generation.scores
        else max(range(len(generation.scores)), key=generation.scores.__getitem__)
        for request, generation in heat.generations.items()
    }


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if seconds else None
