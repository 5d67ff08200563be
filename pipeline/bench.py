"""``overnight bench``: how fast this machine does a configuration's own documents, beside the ways people do it by hand.

All contestants run in one process on one loaded model, in turn, several times over; what counts is the median of the ratios taken inside
one turn, because machines are shared and their speed drifts. The naive loop would take all night, so it gets a few documents a turn,
spread over the lengths, and its time is scaled to all documents by their tokens.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.batching import row_tokens
from pipeline.config import Config
from pipeline.engine.backend import TransformersBackend
from pipeline.engine.choice import Decoder
from pipeline.engine.contest import DECODERS, EACH_LABEL, GENERATE_BATCH, NAIVE, ONE_BY_ONE, OURS, STATIC, Contest, Heat
from pipeline.errors import UsageError
from pipeline.flight import Flight
from pipeline.preparation import Preparation, prepare, resolve
from pipeline.probe import PROBE_DOCUMENTS, speeds
from pipeline.records import Decode, Document, Request
from pipeline.sources import read_source
from pipeline.speeds import remember
from pipeline.tasks import Task

_Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """``documents`` of the source take part, ``slow_documents`` of them each turn in contestants that go one by one.

    ``to_the_end``: every text has exactly the task's ``max_output_tokens``. ``contestants`` leaves out the others; ours is always in.
    """

    documents: int = 32
    slow_documents: int = 4
    repetitions: int = 3
    task: str | None = None
    to_the_end: bool = False
    contestants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One contestant; medians over the repetitions. ``speedup`` is ours over it: its seconds a document by ours, in the same turn.

    ``same`` is the share of its answers that are exactly ours, None where they are of another kind. Rates are None where nothing of that
    kind was computed. ``padding_share`` is of tokens that went through the model, ``attention_padding_share`` of places in attention.
    """

    name: str
    what: str
    seconds_per_document: float
    documents_per_second: float
    read_tokens_per_second: float | None
    decode_tokens_per_second: float | None
    forward_share: float
    padding_share: float
    attention_padding_share: float
    matmul_share: float
    speedup: float
    same: float | None


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What was measured. ``matmul_share`` of a line: useful tokens x 2 x parameters over the machine's matmul rate in its time."""

    task: str
    kind: str
    documents: int
    repetitions: int
    prompt_tokens: float
    prefix_tokens: int
    output_tokens: float
    matmul_gflops: float
    model: Mapping[str, Any]
    lines: tuple[Line, ...]

    def line(self, name: str) -> Line:
        """The contestant called ``name``."""
        return next(line for line in self.lines if line.name == name)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


def table(result: BenchResult) -> list[str]:
    """The result as lines for people."""
    shape = f"prompts of {result.prompt_tokens:.0f} tokens, {result.prefix_tokens} of them shared"
    head = f"task {result.task} ({result.kind}), {result.documents} documents, {shape}"
    texts = f", {result.output_tokens:.0f} tokens written" if result.output_tokens else ""
    titles = ("s/document", "speed-up", "prefill t/s", "decode t/s", "in forward", "padding", "of matmul", "same")
    columns = " " * 16 + "".join(f"{title:>12}" for title in titles)
    rows = [f"{line.name:16}" + "".join(f"{cell:>12}" for cell in _cells(line)) for line in result.lines]
    return [
        head + texts,
        f"median of {result.repetitions} turns; the machine multiplies at {result.matmul_gflops:,.0f} GFLOP/s",
        columns,
        *rows,
        *(f"{line.name}: {line.what}" for line in result.lines),
    ]


def _cells(line: Line) -> tuple[str, ...]:
    return (
        f"{line.seconds_per_document:.3f}", _times(line), _whole(line.read_tokens_per_second), _whole(line.decode_tokens_per_second),
        _percent(line.forward_share), f"{line.padding_share:.1%}", _percent(line.matmul_share), _percent(line.same),
    )  # fmt: skip


def _times(line: Line) -> str:
    return "1" if line.name == OURS else f"{line.speedup:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _whole(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}"


def bench(config: Config, options: BenchOptions | None = None, say: _Say = lambda _: None) -> BenchResult:
    """Measure. Raises UsageError, ConfigError, DoesNotFit, SourceError; loads the model into this process."""
    options = options or BenchOptions()
    backend = TransformersBackend(config, say)
    prepared = prepare(config, backend, resolve(config, backend, {}))
    task = _task(prepared, options.task)
    requests = first_questions(task, documents_of(config, options.documents), options.to_the_end)
    with tempfile.TemporaryDirectory() as folder:
        contest = backend.open_contest(prepared.plan, Path(folder), say, to_the_end=options.to_the_end)
        result = _Bench(contest, task, requests, options, say).run()
        _calibrate(config, str(prepared.plan.dtype), task, contest, requests, result, options)
        decoder = fastest(result)
        if decoder is not None:
            backend.keep_decoder(contest, decoder)
        return result


def _calibrate(
    config: Config, dtype: str, task: Task, contest: Contest, requests: Sequence[Request], result: BenchResult, options: BenchOptions
) -> None:  # fmt: skip
    """Let the plan know how fast the model is here, and how long its answers are."""
    written = {task.job.fingerprint: result.output_tokens} if result.output_tokens and not options.to_the_end else {}
    remember(config, dtype, **speeds(contest, requests), output_tokens=written)


def measure_speeds(config: Config, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Only our own engine, on a few documents: enough for the plan. Loads the model, keeps what was seen.

    Raises ConfigError, DoesNotFit, SourceError, UsageError.
    """
    backend = TransformersBackend(config, say)
    resolved = resolve(config, backend, {})
    prepared = prepare(config, backend, resolved)
    found = documents_of(config, PROBE_DOCUMENTS)
    asked = first_questions(prepared.tasks[0], found, to_the_end=True)
    with tempfile.TemporaryDirectory() as folder:
        contest = backend.open_contest(prepared.plan, Path(folder), say, to_the_end=True)
        say("timing the model")
        seen = speeds(contest, asked)
    remember(config, str(resolved["dtype"]), **seen)
    return seen


def fastest(result: BenchResult) -> Decoder | None:
    """The decoder that ``engine.decoder: auto`` should mean after this, None where too little was compared to say.

    Another one than ours must be a twentieth faster at the very texts that ours writes.
    """
    others = [line for line in result.lines if line.name in DECODERS and line.name != OURS]
    if result.kind != "summarize" or not others:
        return None
    better = [line for line in others if (line.same or 0) >= 0.99 and line.speedup <= 0.95]
    return DECODERS[min(better, key=lambda line: line.speedup).name] if better else "overnight"


class _Bench:
    """The turns, and what comes of them."""

    def __init__(self, contest: Contest, task: Task, requests: Sequence[Request], options: BenchOptions, say: _Say) -> None:
        self._contest = contest
        self._task = task
        self._requests = requests
        self._options = options
        self._say = say
        self._slow = _spread(requests, options.slow_documents)

    def run(self) -> BenchResult:
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
        self, name: str, heats: Sequence[tuple[Sequence[Request], Heat]], ours: Sequence[float], answers: Mapping[int, Any],
        matmul: Sequence[float],
    ) -> Line:  # fmt: skip
        seconds = [self._seconds(*heat) for heat in heats]
        passes = [heat.passes for _, heat in heats]
        computed = sum(each.read_tokens + each.decode_tokens for each in passes)
        same = [answers[request] == answer for _, heat in heats for request, answer in _answers(heat).items()
                if isinstance(answers[request], type(answer))]  # fmt: skip
        needed = [self._useful_tokens(some, heat) * 2 * self._contest.parameters for some, heat in heats]
        shares = [flops / (rate * heat.seconds) for flops, rate, (_, heat) in zip(needed, matmul, heats, strict=True)]
        return Line(
            name=name,
            what=self._contest.describe(name),
            seconds_per_document=statistics.median(seconds),
            documents_per_second=1 / statistics.median(seconds),
            read_tokens_per_second=_rate(sum(each.read_tokens for each in passes), sum(each.read_seconds for each in passes)),
            decode_tokens_per_second=_rate(sum(each.decode_tokens for each in passes), sum(each.decode_seconds for each in passes)),
            forward_share=statistics.median(heat.passes.seconds / heat.seconds for _, heat in heats),
            padding_share=sum(each.padded for each in passes) / max(1, computed),
            attention_padding_share=_share(sum(each.attention_padded for each in passes), computed),
            matmul_share=statistics.median(shares),
            speedup=statistics.median(theirs / own for theirs, own in zip(seconds, ours, strict=True)),
            same=statistics.fmean(same) if same else None,
        )

    def _seconds(self, some: Sequence[Request], heat: Heat) -> float:
        """Seconds a document, scaled from ``some`` to all by their tokens."""
        mean = statistics.fmean(map(row_tokens, self._requests))
        return heat.seconds * mean / sum(map(row_tokens, some))

    def _useful_tokens(self, some: Sequence[Request], heat: Heat) -> int:
        """Tokens that no way of doing it can save: its share of the one prefix, what each prompt has of its own, what is written."""
        own = sum(len(request.ids) - request.prefix_tokens for request in some)
        prefix = some[0].prefix_tokens * len(some) // len(self._requests)
        return prefix + own + sum(len(generation.token_ids) for generation in heat.generations.values())


def _task(prepared: Preparation, name: str | None) -> Task:
    found = [task for task in prepared.tasks if name in (None, task.job.name)]
    if not found:
        raise UsageError(f"there is no task {name!r}; the configuration has {', '.join(task.job.name for task in prepared.tasks)}")
    return found[0]


def documents_of(config: Config, count: int) -> list[Document]:
    """The first ``count`` documents. Raises UsageError where there are fewer than two."""
    rows = (item for item in read_source(config.source, ()) if isinstance(item, Document))
    documents = list(itertools.islice(rows, count))
    if len(documents) < 2:
        raise UsageError(f"the source has {len(documents)} readable documents; a comparison needs at least two")
    return documents


def first_questions(task: Task, documents: Sequence[Document], to_the_end: bool) -> list[Request]:
    """The first question of every document; of one read in parts, its first part."""
    flight = Flight(per_work=1)
    for document in {task.job.key(document): document for document in documents}.values():
        flight.begin(task, document, 1, {})
    requests = flight.requests()
    if not to_the_end:
        return requests
    return [dataclasses.replace(request, ask=_to_the_end(request.ask)) for request in requests]


def _to_the_end(ask: Any) -> Any:
    return dataclasses.replace(ask, loops_end=False) if isinstance(ask, Decode) else ask


def _contestants(requests: Sequence[Request], wanted: Sequence[str]) -> list[str]:
    texts = isinstance(requests[0].ask, Decode)
    there = [OURS, NAIVE, STATIC, GENERATE_BATCH] if texts else [OURS, NAIVE, STATIC, EACH_LABEL]
    unknown = [name for name in wanted if name not in there]
    if unknown:
        raise UsageError(f"there is no contestant {unknown[0]!r} for this kind of task; there are {', '.join(there)}")
    return [name for name in there if name == OURS or not wanted or name in wanted]


def _spread(requests: Sequence[Request], count: int) -> Iterator[list[Request]]:
    """For ever: ``count`` requests spread over the lengths, others each time until all have had their turn."""
    ordered = sorted(requests, key=row_tokens)
    step = max(1, len(ordered) // max(1, count))
    for offset in itertools.cycle(range(step)):
        yield ordered[offset::step][: max(1, count)]


def _answers(heat: Heat) -> dict[int, Any]:
    """What each request was answered: the text, or the best label."""
    return {
        request: generation.token_ids if not generation.scores else max(range(len(generation.scores)), key=generation.scores.__getitem__)
        for request, generation in heat.generations.items()
    }


def _share(lost: int, kept: int) -> float:
    return lost / max(1, lost + kept)


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if seconds else None
