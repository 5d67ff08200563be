"""The work of a run: works are begun a few at a time, their questions go to the workers, what they make of
the replies is recorded.

The workers always have more questions than they can compute at once, so reading, tokenizing and commits
happen beside the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pipeline.errors import StoppedEarly
from pipeline.records import Generation, Plan
from pipeline.run.in_doubt import InDoubt
from pipeline.run.progress import WorkProgress
from pipeline.run.protocol import Loaded, Replies, Says
from pipeline.run.session import RunSession
from pipeline.run.work_queue import WorkItem, next_group
from pipeline.run.worker_pool import Death, Event, LoadFailed, WorkerPool
from pipeline.tasks.driver import Place, TaskDriver

_POLL_SECONDS = 0.2
# Works under way for each row of a batch: enough to sort by length, few enough to hold their texts in memory.
_WORKS_PER_ROW = 4
# Works begun together, for each row: their attempts are marked in one commit.
_BEGUN_PER_ROW = 2
# Questions of one document out at a time, for each row of a batch: while one batch is computed, the next one
# is there.
_ASKED_PER_ROW = 2
_WINDOW_CHARACTERS = 64_000_000


class WorkLoop:
    """Sees works through, from "begun" to "recorded". ``check`` may raise StoppedEarly; ``at`` is entered
    while a document's own code runs.
    """

    def __init__(
        self,
        session: RunSession,
        workers: WorkerPool,
        plan: Plan,
        progress: WorkProgress,
        in_doubt: InDoubt,
        *,
        check: Callable[[], None],
        at: Place,
    ) -> None:
        self._session = session
        self._workers = workers
        self._plan = plan
        self._progress = progress
        self._in_doubt = in_doubt
        self._check = check
        self._driver = TaskDriver(plan.max_batch_rows * _ASKED_PER_ROW, progress.pace, at=at)

    def through(self, works: Iterator[WorkItem | None]) -> None:
        """See all of ``works`` landed, except those that come to be in doubt. Raises StoppedEarly, with what
        has landed recorded, or OvernightError when no model can be loaded.
        """
        try:
            self._stream(works)
        except StoppedEarly:
            self._record(at_once=True)
            raise
        self._record(at_once=True)

    def _stream(self, works: Iterator[WorkItem | None]) -> None:
        """The main loop: keep the workers supplied, record what lands. Questions go out before anything waits
        for the disk.

        While there is room in the window nothing waits for the workers, be it for their answers or for
        their models to be loaded.
        """
        exhausted = False
        while len(self._driver) or not exhausted:
            self._check()
            self._workers.load(self._plan)
            self._workers.admit(self._driver.requests())
            hungry = not exhausted and self._has_room()
            if hungry:
                group, exhausted = next_group(works, self._plan.max_batch_rows * _BEGUN_PER_ROW)
                self._begin(group)
            self._record()
            if len(self._driver):
                for event in self._workers.collect(0 if hungry else _POLL_SECONDS):
                    self._hear(event)
                self._workers.release(self._driver.cancelled())

    def _has_room(self) -> bool:
        return (
            self._driver.steps_open < self._plan.max_batch_rows * _WORKS_PER_ROW
            and self._session.characters < _WINDOW_CHARACTERS
        )

    def _begin(self, group: Sequence[WorkItem]) -> None:
        """Mark the attempts, durably, then start the documents; what an earlier attempt was answered is not
        asked again.
        """
        for work in self._session.begin(group):
            recorded = self._session.ledger.replies(*work.id) if work.attempts else {}
            self._driver.begin(work.task, work.document, work.attempts + 1, recorded, work.awaited)

    def _hear(self, event: Event) -> None:
        match event:
            case Replies(generations):
                _stop_on_full_disk(generations)
                self._session.add((), self._driver.receive(generations))
                self._progress.show()
            case Says(text):
                self._progress.loading(text)
            case Loaded(facts):
                self._session.annotate(loaded=facts)
                self._progress.loaded()
            case Death():
                self._lose(event)
            case LoadFailed(error):
                raise error

    def _lose(self, death: Death) -> None:
        """What a dead worker held is asked again, unless it is suspected of the death."""
        self._record(at_once=True)
        self._in_doubt.after(death, self._driver)
        self._workers.release(self._driver.cancelled())
        self._workers.admit(self._driver.wanted(death.leased))

    def _record(self, *, at_once: bool = False) -> None:
        """Documents that landed are done once they are committed, a second's worth in one transaction."""
        self._session.add(self._driver.landed())
        recorded = self._session.commit(at_once=at_once)
        self._progress.recorded(recorded)
        if recorded:
            self._progress.show()


def _stop_on_full_disk(finished: Sequence[Generation]) -> None:
    """A disk that cannot take the caches of one document takes no other's: raise StoppedEarly, and all of
    them stay pending.
    """
    for generation in finished:
        if generation.error is not None and generation.error[0] == "disk_full":
            raise StoppedEarly(f"{generation.error[1]}; free some space and run the same command again")
