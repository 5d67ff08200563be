"""The library's continuous batching: rows of a paged cache, refilled while others go on, computed by a thread
of the library's.

``Session`` is the library's side of it: the manager behind ``generate_batch``, used directly because only it
takes requests while others run, hands out every token as it is made (a sign of life, and the way to stop a
loop) and can be told to stop at once. Its own console logging is silenced: what goes wrong comes back as an
answer, and is said once, by us.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from transformers import ContinuousBatchingConfig, GenerationConfig

from pipeline.bench.library.base import LibraryEngine
from pipeline.engine.backoff import halved
from pipeline.engine.batching import new_tokens, row_tokens
from pipeline.engine.model.forward import attention_as
from pipeline.engine.out_of_memory import free_memory, is_out_of_memory
from pipeline.engine.static.engine import generation_of
from pipeline.engine.static.generate import NON_FINITE, Output
from pipeline.records import Decode, Generation, Request

# The library's default of 256 is what flash attention's block tables ask for; a row wastes half a page on
# average.
_PAGE_TOKENS = 32
_WAIT_SECONDS = 1.0
_LOGGER = "ContinuousBatchingLogger"


def _pages(tokens: int) -> int:
    return -(-tokens // _PAGE_TOKENS)


class Session:
    """The library's loop, running. ``pages`` of ``_PAGE_TOKENS`` tokens hold all keys and values; a pass
    computes ``pass_tokens``.
    """

    def __init__(
        self, model: Any, attention: str, *, rows: int, pages: int, pass_tokens: int, end_ids: Collection[int]
    ) -> None:
        logging.getLogger(_LOGGER).setLevel(logging.CRITICAL + 1)
        self._end_ids = sorted(end_ids) or [-1]
        # the library's signature has no types
        settings = GenerationConfig(do_sample=False, max_new_tokens=1)  # type: ignore[no-untyped-call]
        settings.eos_token_id = self._end_ids
        self._undo = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(attention_as(model, attention))
            self._manager = model.init_continuous_batching(
                generation_config=settings,
                continuous_batching_config=ContinuousBatchingConfig(
                    page_size=_PAGE_TOKENS,
                    num_blocks=pages,
                    max_batch_tokens=pass_tokens,
                    max_requests_per_batch=rows,
                    safety_margin=0.0,  # no more is asked for than fits
                    return_logprobs=True,  # not a number where the logits are not
                    # it would be another implementation than the one planned and recorded
                    auto_switch_to_flash=False,
                ),
            )
            undo.callback(self._stop)
            # A process that ends by an exception would wait for the library's thread for ever: a daemon is
            # not waited for (a thread is one if its starter is), and is ended in order before the interpreter
            # is torn down under it.
            atexit.register(self.close)
            undo.callback(atexit.unregister, self.close)
            starter = threading.Thread(target=self._manager.start, daemon=True)
            starter.start()
            starter.join()
            self._undo = undo.pop_all()

    def ask(self, name: str, request: Request) -> None:
        """Start on ``request``; its tokens come under ``name``."""
        self._manager.add_request(
            list(request.ids),
            request_id=name,
            max_new_tokens=new_tokens(request),
            streaming=True,
            eos_token_id=self._end_ids,
        )

    def cancel(self, name: str) -> None:
        """Stop working on ``name``; an answer that is already made may still come."""
        self._manager.cancel_request(name)

    def answers(self) -> list[Any]:
        """What the library has said since, waiting a moment for the first. Raises RuntimeError when it will
        say nothing more.
        """
        first = self._manager.get_result(timeout=_WAIT_SECONDS)
        if first is None and not self._manager.is_running():
            raise RuntimeError("the library's generation thread ended unexpectedly")
        answers = [first] if first is not None else []
        while answers and not self._manager.output_router.output_queue.empty():
            answers.append(self._manager.get_result(timeout=_WAIT_SECONDS))
        return answers

    def close(self) -> None:
        """End the loop after its current pass, give the memory back, and let the model attend as before."""
        self._undo.close()

    def _stop(self) -> None:
        self._manager.stop(block=True, hard_stop=True)
        self._manager.destroy()


@dataclass(slots=True)
class _Sequence:
    """A request in the model."""

    request: Request
    output: Output
    taken: int = 0
    seconds: float = 0.0
    company: int = 1


class ContinuousLibraryEngine(LibraryEngine):
    """``generate_batch`` as an engine: a step returns what the library finished since the last one. See
    ``LibraryEngine``.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._session: Session | None = None
        self._running: dict[str, _Sequence] = {}
        self._names = 0
        self._rows = self._plan.max_batch_rows
        self._least_pages = _pages(self._plan.context_tokens)
        self._pages = max(self._least_pages, self._plan.batch_tokens // _PAGE_TOKENS)
        self._last = 0.0

    @property
    def idle(self) -> bool:
        """True when nothing is queued or running."""
        return not self._running and super().idle

    @property
    def busy(self) -> bool:
        """True while the library's loop runs."""
        return self._session is not None

    def release(self, request_ids: Collection[int]) -> None:
        """Forget queued requests and those under way."""
        super().release(request_ids)
        gone = set(request_ids)
        for name in [name for name, sequence in self._running.items() if sequence.request.request_id in gone]:
            del self._running[name]
            if self._session is not None:
                self._session.cancel(name)
        self._close_if_done()

    def _work(self) -> Sequence[Generation]:
        try:
            return self._turn()
        except BaseException:  # not the library's: an interrupt, or a listener that has gone
            self._queue.update(
                (sequence.request.request_id, sequence.request) for sequence in self._running.values()
            )
            self._running.clear()
            self._close()
            raise

    def _turn(self) -> Sequence[Generation]:
        try:
            if self._session is None:
                self._session = self._open()
            self._schedule(self._session)
            answers = self._session.answers()
        except Exception as error:  # noqa: BLE001  # whatever the library raises, the static engine finds out whose it is
            failure: Exception | None = error.with_traceback(None)
            finished: list[Generation] = []
        else:
            self._share_time()
            finished, failure = self._take_in(answers)
        if failure is not None:
            self._surrender(failure)
        self._close_if_done()
        return finished

    def _open(self) -> Session:
        self._last = time.perf_counter()
        return Session(
            self._model,
            self._attention,
            rows=self._rows,
            pages=self._pages,
            pass_tokens=self._plan.prefill_chunk_tokens + self._rows,
            end_ids=self._end_ids,
        )

    def _schedule(self, session: Session) -> None:
        """Hand over waiting requests, longest first, while there are rows and pages for all of each."""
        if not self._queue or len(self._running) >= self._rows:
            return
        free = self._pages - sum(_pages(row_tokens(sequence.request)) for sequence in self._running.values())
        admitted = []
        for request in sorted(
            self._queue.values(), key=lambda request: (-row_tokens(request), request.request_id)
        ):
            free -= _pages(row_tokens(request))
            if len(self._running) >= self._rows or (free < 0 and self._running):
                break
            assert isinstance(request.ask, Decode)
            self._names += 1
            name = str(self._names)
            del self._queue[request.request_id]
            self._running[name] = _Sequence(request, Output(request.ask, self._end_ids))
            admitted.append((name, request))
        if admitted and self.listener is not None:
            self.listener.started([request.request_id for _, request in admitted])
        for name, request in admitted:
            session.ask(name, request)

    def _take_in(self, answers: Sequence[Any]) -> tuple[list[Generation], Exception | None]:
        """What ended by these tokens, and what the library raised, if it did."""
        finished: list[Generation] = []
        failure: Exception | None = None
        for answer in answers:
            sequence = self._running.get(answer.request_id)
            if answer.error is not None:
                failure = RuntimeError(answer.error)
            elif sequence is not None:
                self._extend(sequence, answer)
                if sequence.output.ended or answer.is_finished():
                    finished += self._leave(answer, sequence)
        if answers and failure is None and self.listener is not None:
            self.listener.pulse()
        return finished, failure

    def _extend(self, sequence: _Sequence, answer: Any) -> None:
        pairs = list(zip(answer.generated_tokens, answer.logprobs, strict=True))
        for token, log_probability in pairs[sequence.taken :]:
            if sequence.output.ended:
                break
            if math.isfinite(log_probability):
                sequence.output.push(token)
            else:
                sequence.output.fail(NON_FINITE)
        sequence.taken = len(pairs)
        if self.on_trial:
            self.log_probabilities[sequence.request.request_id] = list(answer.logprobs)

    def _leave(self, answer: Any, sequence: _Sequence) -> list[Generation]:
        """The sequence's text; nothing when the static engine is to say it."""
        del self._running[answer.request_id]
        if self._session is not None and not answer.is_finished():
            self._session.cancel(answer.request_id)
        request, reply = sequence.request, sequence.output.reply
        if reply.error is not None or not sequence.output.ended:
            self._static.admit([request])  # alone its numbers may hold; if not, it is recorded there
            return []
        return [generation_of(request, reply, self._plan.placement, sequence.company, sequence.seconds)]

    def _share_time(self) -> None:
        now = time.perf_counter()
        for sequence in self._running.values():
            sequence.seconds += (now - self._last) / len(self._running)
            sequence.company = max(sequence.company, len(self._running))
        self._last = now

    def _surrender(self, error: Exception) -> None:
        """Out of memory: everything again with half the rows. Anything else, or one row alone: left to the
        static engine.
        """
        requests = [sequence.request for sequence in self._running.values()]
        self._running.clear()
        self._close()
        if is_out_of_memory(error):
            free_memory()
            smaller = self._halve(len(requests))
            if smaller:
                self._queue.update((request.request_id, request) for request in requests)
                return
        if not requests and self._queue:  # the library could not even begin
            requests = [self._queue.pop(max(self._queue.values(), key=row_tokens).request_id)]
        self._give_up(requests, error)

    def _halve(self, running: int) -> bool:
        """Allow half as much from now on; False when it cannot be less."""
        before = self._rows, self._pages
        self._rows = halved(self._rows, running or self._rows)
        self._pages = halved(self._pages, self._pages, self._least_pages)
        return running != 1 and (self._rows, self._pages) != before

    def _close_if_done(self) -> None:
        if not self._running and not self._queue:
            self._close()

    def _close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            session.close()
