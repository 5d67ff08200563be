"""Documents under way: each one's generator of steps, the questions that are out, and the replies that came
back. Pure bookkeeping.

A document's questions are handed out a few at a time (``per_work``), so that one of a thousand parts does not
keep the others from being asked.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from pipeline.errors import DocumentFailed
from pipeline.records import Answer, Document, Failure, Generation, Outcome, Request, Step, WorkId
from pipeline.tasks import Task, Work
from pipeline.tasks.throughput_meter import ThroughputMeter

_log = logging.getLogger(__name__)

Place = Callable[[WorkId], AbstractContextManager[None]]
"""What is entered while a document's own work is done: building its prompts, reading its answers."""


@dataclass(slots=True)
class _Underway:
    task: Task
    document: Document
    key: str
    generator: Work
    attempt: int
    recorded: Mapping[str, Generation]
    awaited: int = 0
    steps: Sequence[Step] = ()
    replies: dict[int, Generation] = field(default_factory=dict)
    unasked: deque[int] = field(default_factory=deque)
    out: int = 0
    share: float = 1.0
    read_characters: float = 0.0
    read_tokens: int = 0
    compute_seconds: float = 0.0
    largest_batch: int = 1
    placement: str = "device"
    notes: dict[str, None] = field(default_factory=dict)

    def characters_of(self, step: Step) -> float:
        """What a reply to ``step`` means for the document that is to be read."""
        return self.share * (step.span[1] - step.span[0]) if step.span else 0.0


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply worth recording: its document is not finished by it, or was read in parts."""

    work: WorkId
    step: Step
    generation: Generation


def _next_steps(
    generator: Work, replies: Sequence[Generation] | None, failure: DocumentFailed | None
) -> Sequence[Step]:
    if failure is not None:
        return generator.throw(failure)
    return next(generator) if replies is None else generator.send(replies)


def _share(work: _Underway) -> float:
    """Of each character that the steps asked now have read, what counts: parts may overlap, or each be the
    whole text. Several parts leave as much as one of them to what is made of them in the end.
    """
    lengths = [step.span[1] - step.span[0] for step in work.steps if step.span]
    once = min(1.0, len(work.document.text) / sum(lengths)) if any(lengths) else 1.0
    return once * len(lengths) / (len(lengths) + 1) if len(lengths) > 1 else once


class TaskDriver:
    """The works (document x task) between "begun" and "landed"."""

    def __init__(
        self,
        per_work: int,
        pace: ThroughputMeter | None = None,
        request_ids: Iterator[int] | None = None,
        at: Place = lambda _: nullcontext(),
    ) -> None:
        self._per_work = per_work
        self._pace = pace or ThroughputMeter()
        self._works: dict[WorkId, _Underway] = {}
        self._asked: dict[int, tuple[WorkId, int]] = {}
        self._ready: deque[WorkId] = deque()
        self._landed: list[Outcome] = []
        self._cancelled: list[int] = []
        self._request_ids = request_ids or itertools.count(1)
        self._at = at

    def __len__(self) -> int:
        return len(self._works)

    def __contains__(self, work: WorkId) -> bool:
        return work in self._works

    @property
    def steps_open(self) -> int:
        """Questions that are out or wait to be asked."""
        return sum(work.out + len(work.unasked) for work in self._works.values())

    def begin(
        self,
        task: Task,
        document: Document,
        attempt: int,
        recorded: Mapping[str, Generation],
        awaited: int = 0,
    ) -> None:
        """Start a document; ``recorded`` are replies of an earlier run by step key, which are not asked
        again.

        ``awaited`` other tasks will ask about the same document.
        """
        key = task.job.key(document)
        work = _Underway(task, document, key, task.work(document), attempt, recorded, awaited)
        self._works[task.job.name, key] = work
        self._advance((task.job.name, key), work, None)

    def requests(self) -> list[Request]:
        """Questions to ask now."""
        asked: list[Request] = []
        for work_id in list(self._ready):
            work = self._works[work_id]
            while work.unasked and work.out < self._per_work:
                asked.append(self._ask(work_id, work, work.unasked.popleft()))
            if not work.unasked:
                self._ready.remove(work_id)
        return asked

    def receive(self, generations: Iterable[Generation]) -> list[Reply]:
        """Take replies in; returns those to record. Documents that end by them are found in ``landed``."""
        kept = []
        for generation in generations:
            if generation.request_id not in self._asked:
                continue  # its document has failed in the meantime
            work_id, index = self._asked.pop(generation.request_id)
            work = self._works[work_id]
            work.out -= 1
            work.compute_seconds += generation.seconds
            work.largest_batch = max(work.largest_batch, generation.batch_rows)
            work.placement = generation.placement
            work.notes.update(dict.fromkeys(generation.notes))
            step = work.steps[index]
            if generation.error is not None:
                self._refuse(work_id, work, DocumentFailed(*generation.error))
                continue
            work.replies[index] = generation
            self._count(work, step, generation)
            if len(work.replies) == len(work.steps):
                self._advance(work_id, work, [work.replies[number] for number in range(len(work.steps))])
            if work_id in self._works or self._ended_in_parts():
                kept.append(Reply(work_id, step, generation))
        return kept

    def _count(self, work: _Underway, step: Step, generation: Generation) -> None:
        """Tell the pace. A text that is read several times over (once a label) counts once; what was found in
        a cache was not read.
        """
        characters = work.characters_of(step)
        work.read_characters += characters
        cached_tokens = 0
        if generation.computed_tokens is not None:
            cached_tokens = max(0, generation.prompt_tokens - generation.computed_tokens)
        prompt = step.prompt
        if step.span:
            of_document = min(max(0, cached_tokens - prompt.prefix_tokens), prompt.document_tokens)
            work.read_tokens += prompt.document_tokens - of_document
        computed = generation.prompt_tokens - cached_tokens + len(generation.token_ids)
        self._pace.read(work.task.job.name, characters, computed)

    def _ended_in_parts(self) -> bool:
        """Whether the document that has just landed was answered in parts: its last reply is kept too, so
        that every part is shown.
        """
        answer = self._landed[-1].answer
        return answer is not None and answer.parts > 1

    def cancelled(self) -> list[int]:
        """Questions asked since the last call whose document has failed: nobody waits for their replies."""
        requests, self._cancelled = self._cancelled, []
        return requests

    def landed(self) -> list[Outcome]:
        """Outcomes since the last call."""
        outcomes, self._landed = self._landed, []
        return outcomes

    def asking(self, request_ids: Iterable[int]) -> list[WorkId]:
        """Works that wait for replies to these requests, sorted; ids that nobody waits for are fine."""
        return sorted({self._asked[request_id][0] for request_id in request_ids if request_id in self._asked})

    def wanted(self, requests: Iterable[Request]) -> list[Request]:
        """Those of ``requests`` whose replies somebody waits for."""
        return [request for request in requests if request.request_id in self._asked]

    def abandon(self, works: Iterable[WorkId]) -> None:
        """Forget documents that are under way; their questions are cancelled, and nothing lands."""
        for work_id in works:
            self._withdraw(work_id, self._works.pop(work_id))

    def _ask(self, work_id: WorkId, work: _Underway, index: int) -> Request:
        step = work.steps[index]
        work.out += 1
        request_id = next(self._request_ids)
        self._asked[request_id] = (work_id, index)
        prompt = step.prompt
        # what a step reads of the document; summaries of parts are nobody else's
        read = prompt.document_tokens if step.span else 0
        return Request(request_id, prompt.ids, step.ask, prompt.prefix_tokens, read, work.awaited)

    def _advance(
        self,
        work_id: WorkId,
        work: _Underway,
        replies: Sequence[Generation] | None,
        failure: DocumentFailed | None = None,
    ) -> None:
        """Send replies, or first of all a failure, to the document's generator until it asks something that
        is not recorded, or ends.
        """
        try:
            while True:
                with self._at(work_id):
                    work.steps = _next_steps(work.generator, replies, failure)
                    failure = None
                    work.replies = {
                        index: work.recorded[step.key]
                        for index, step in enumerate(work.steps)
                        if step.key in work.recorded
                    }
                work.unasked = deque(index for index in range(len(work.steps)) if index not in work.replies)
                work.share = _share(work)
                recorded = sum(work.characters_of(work.steps[index]) for index in work.replies)
                work.read_characters += recorded
                self._pace.skipped(work.task.job.name, recorded)
                if work.unasked:
                    self._ready.append(work_id)
                    return
                replies = [work.replies[index] for index in range(len(work.steps))]
        except StopIteration as end:
            self._land(work_id, work, end.value, None)
        except DocumentFailed as failed:
            self._land(work_id, work, None, Failure(failed.kind, str(failed), work.attempt))
        except Exception as error:  # noqa: BLE001  # a fault of ours on one document must not end the night; it is recorded
            _log.exception("task %s failed on document %s", *work_id)
            self._land(
                work_id, work, None, Failure("fault", f"{type(error).__name__}: {error}", work.attempt)
            )

    def _refuse(self, work_id: WorkId, work: _Underway, failure: DocumentFailed) -> None:
        """A question has no answer: however many are still out, the document asks others instead, or ends by
        it.
        """
        self._withdraw(work_id, work)
        self._advance(work_id, work, None, failure)

    def _withdraw(self, work_id: WorkId, work: _Underway) -> None:
        """Nothing more is asked of what a document asked, and no reply to it is taken."""
        orphans = [request_id for request_id, (owner, _) in self._asked.items() if owner == work_id]
        for request_id in orphans:
            del self._asked[request_id]
        self._cancelled += orphans
        if work_id in self._ready:
            self._ready.remove(work_id)
        work.out = 0

    def _land(self, work_id: WorkId, work: _Underway, answer: Answer | None, failure: Failure | None) -> None:
        del self._works[work_id]
        if answer is not None and work.notes:
            answer = replace(answer, notes=(*answer.notes, *work.notes))
        task, left = work.task.job.name, len(work.document.text) - work.read_characters
        if answer is not None and left > 0:
            self._pace.read(task, left, 0)
        else:
            self._pace.skipped(task, left)
        self._landed.append(
            Outcome(
                task=work_id[0],
                key=work.key,
                state="failed" if answer is None else "done",
                answer=answer,
                failure=failure,
                seconds=work.compute_seconds,
                placement=work.placement,
                batch_rows=work.largest_batch,
                read_tokens=work.read_tokens,
            )
        )
