"""How long a plan's night takes: a step of decoding, loading, and every task's documents, where the rates for
them are known.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.planner.budget import Room, Wish
from pipeline.planner.model.layers import dtype_bytes
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.placement import Where
from pipeline.planner.roofline import (
    DecodeStep,
    Duration,
    Speed,
    decode_step,
    load_seconds,
    prefill_seconds,
    unpack_seconds,
)
from pipeline.planner.store_policy import crossover_tokens
from pipeline.planner.weight_streaming import speed_of
from pipeline.planner.workload import Asked, Estimate, Question, TaskLoad
from pipeline.system.hardware import Rates


@dataclass(frozen=True, slots=True)
class TaskTime:
    """One task's seconds over all its documents, and one standard error by the sample of documents."""

    name: str
    documents: int
    read_tokens: Estimate
    written_tokens: Estimate
    read_seconds: Estimate
    write_seconds: Estimate


@dataclass(frozen=True, slots=True)
class Timing:
    """Times, where the rates for them are known."""

    step: DecodeStep | None = None
    load: float | None = None
    prefill: float | None = None
    crossover: int | None = None
    work: Duration | None = None
    tasks: tuple[TaskTime, ...] = ()

    @classmethod
    def of(cls, shape: ModelShape, have: Room, rates: Rates, wish: Wish, where: Where, rows: int) -> Timing:
        """Of weights and cache at their places and ``rows`` rows."""
        if rates.memory_bytes_per_second is None or rates.matmul_per_second is None:
            return cls()
        speed, far, tokens = (
            speed_of(rates, have, wish, where.sweep),
            where.fetched_bytes,
            wish.typical_tokens,
        )
        link = _link(have, rates, where)
        step = decode_step(
            shape,
            speed,
            quantization=wish.quantization,
            dtype=wish.dtype,
            rows=rows,
            tokens=tokens,
            transferred_bytes=moved_bytes(shape, wish, where, rows),
            link_bytes_per_second=link,
        )
        known_disk = rates.disk_read_bytes_per_second is not None
        reading = _Reading(shape, speed, wish, where, have.chunk_tokens(shape, wish), link)
        fetching = far / link if far and link else 0.0
        if where.sweep:  # a pass over prompts unpacks weights, too, once for all of them
            fetching += unpack_seconds(shape, rates, wish.quantization)
        tasks = tuple(
            _task_time(reading, load, step, rows, fetching, index) for index, load in enumerate(wish.loads)
        )
        return cls(
            step=step,
            load=rates.load_seconds
            or (load_seconds(_stored_bytes(shape, wish), rates) if known_disk else None),
            prefill=prefill_seconds(shape, wish.context_tokens, speed),
            crossover=crossover_tokens(shape, speed, wish),
            work=_together(tasks),
            tasks=tasks,
        )


def _stored_bytes(shape: ModelShape, wish: Wish) -> int:
    stored = wish.stored_dtype if wish.stored_dtype in ("float32", "bfloat16", "float16") else "bfloat16"
    return shape.parameters * dtype_bytes(stored)


def _link(have: Room, rates: Rates, where: Where) -> float | None:
    """Bytes a second of all that is fetched at a step, from wherever it is."""
    if where.sweep and where.sweep.swept_bytes and where.cache_place == "device":
        return where.sweep.link_bytes_per_second(rates, on_card=have.on_card)
    return have.link_bytes_per_second(rates, bool(where.weights["disk"]) or where.cache_place == "disk")


def moved_bytes(shape: ModelShape, wish: Wish, where: Where, rows: int) -> int:
    """Bytes that one decoding step fetches: weights that are not on the device, and a cache that is not."""
    tokens, dtype = wish.typical_tokens, wish.kept_dtype
    cached = {
        "device": 0,
        "ram": shape.kv_bytes(tokens, dtype, rows),
        "disk": shape.far_bytes(tokens, dtype, rows),
    }[where.cache_place]
    return where.fetched_bytes + cached


@dataclass(frozen=True, slots=True)
class _Reading:
    """How long prompts take to be read."""

    shape: ModelShape
    speed: Speed
    wish: Wish
    where: Where
    chunk_tokens: int
    link_bytes_per_second: float | None

    def seconds(self, question: Question, *, follows: bool) -> float:
        """Of one question. A document that another question has read is not read again; ``follows``: another
        task has.
        """
        own, behind = question.own_tokens, question.shared_tokens
        if question.document_tokens and (follows or not question.reads_document):
            own, behind = max(1, own - question.document_tokens), behind + question.document_tokens
        return max(self.of(own, behind), self._fetching(own + behind))

    def of(self, tokens: int, behind: int = 0) -> float:
        """Of tokens behind others."""
        return prefill_seconds(self.shape, tokens, self.speed, behind)

    def _fetching(self, tokens: int) -> float:
        """A cache that is elsewhere comes back for every chunk: half of it on average."""
        if self.where.cache_place == "device" or not self.link_bytes_per_second:
            return 0.0
        chunks = -(-tokens // self.chunk_tokens) - 1
        return self.shape.far_bytes(tokens, self.wish.kept_dtype) * chunks / 2 / self.link_bytes_per_second


def _task_time(
    read: _Reading, load: TaskLoad, step: DecodeStep, rows: int, fetch_seconds: float, index: int
) -> TaskTime:
    """Reading by each prompt's length behind what is shared; writing at a row's share of a step.
    ``fetch_seconds``: of offloaded weights, which a pass over several prompts fetches once. ``index``: of the
    task; with documents first, later ones find the document read.
    """
    follows = index > 0 and read.wish.layout == "document_first" and bool(read.wish.store.quota_bytes)
    batch = max(1, min(rows, round(load.documents * max(1.0, load.questions_a_document))))
    # A step of fewer rows costs about as much as a full one, so a row's share grows.
    each = step.seconds / rows * max(1.0, _least_share(step, rows, batch))

    def reading(asked: Asked) -> float:
        own = sum(read.seconds(question, follows=follows) for question in asked.questions)
        return own + fetch_seconds * len(asked.questions) / batch

    def writing(asked: Asked) -> float:
        return sum(load.written_tokens(question) for question in asked.questions)

    written = load.total([writing(asked) for asked in load.sample])
    shared = {
        question.shared_tokens
        for asked in load.sample
        for question in asked.questions
        if question.shared_tokens
    }
    once = sum(map(read.of, shared))
    total = load.total([reading(asked) for asked in load.sample])
    return TaskTime(
        name=load.name,
        documents=load.documents,
        read_tokens=load.total(
            [sum(question.own_tokens for question in asked.questions) for asked in load.sample]
        ),
        written_tokens=written,
        read_seconds=Estimate(total.value + (once if load.documents else 0.0), total.error),
        write_seconds=Estimate(written.value * each, written.error * each),
    )


def _least_share(step: DecodeStep, rows: int, batch: int) -> float:
    """How many times more a row pays in a step of ``batch`` rows than in one of ``rows``: fewer share what
    does not depend on rows.
    """
    if not step.seconds:
        return 1.0
    fixed = min(step.unpack_seconds + step.weights_seconds + step.transfer_seconds, step.seconds)
    fewer = max(fixed + step.cache_seconds * batch / rows, step.compute_seconds * batch / rows)
    return (fewer / batch) / (step.seconds / rows)


def _together(tasks: tuple[TaskTime, ...]) -> Duration | None:
    if not tasks:
        return None
    read, write = (
        sum(task.read_seconds.value for task in tasks),
        sum(task.write_seconds.value for task in tasks),
    )
    # tasks see the same documents: errors add up
    error = sum(task.read_seconds.error + task.write_seconds.error for task in tasks)
    documents = max(task.documents for task in tasks)
    return Duration(read, write, documents, error / (read + write) if read + write else 0.0)
