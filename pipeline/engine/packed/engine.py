"""The engine that batches continuously: packed passes, a shared prefix read once, label trees, places
refilled while others go on.

Each step is one pass: the scheduler decides who takes part (numbers only), the model runner carries it out,
the answers take in what came of it. On a card they do so one pass late, so that it computes while the host
reads: a chosen token goes into the next pass without having been seen.

Requests it cannot run (a row beyond a sliding window, a pass that failed in company) go to the static engine,
which has every way out of failure; so does everything when the model's family does not pass
``pipeline.engine.packed.support``.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from pipeline.engine.batching import row_tokens
from pipeline.engine.device_failure import is_device_lost
from pipeline.engine.interface import Listener
from pipeline.engine.model.forward import attend_by, input_device
from pipeline.engine.out_of_memory import free_memory, is_out_of_memory
from pipeline.engine.packed.answers import LabelAnswer, LabelTrees, Running, TextAnswer
from pipeline.engine.packed.attention import IMPLEMENTATION
from pipeline.engine.packed.batch_size_ramp import BatchSizeRamp
from pipeline.engine.packed.feed import Feed, Row
from pipeline.engine.packed.model_runner import PackedModelRunner
from pipeline.engine.packed.page_pool import KvPool
from pipeline.engine.packed.pass_results import Found, PassResults
from pipeline.engine.packed.prefix_cache import PrefixCache
from pipeline.engine.packed.requests import sequence_of
from pipeline.engine.packed.scheduler import Scheduler
from pipeline.engine.packed.sequence import PAGE_TOKENS, Admission, Budget, HeldBeginning, pages_of
from pipeline.engine.packed.text_checkpoints import TextCheckpoints
from pipeline.engine.reuse.prefix_store import PrefixStore
from pipeline.engine.sampling.hidden_state import watched
from pipeline.engine.static.engine import StaticEngine
from pipeline.records import Decode, Generation, Plan, Request


class PackedEngine:
    """Implements ``pipeline.engine.interface.Engine``. One thread; the model sits on one device."""

    def __init__(
        self,
        model: Any,
        plan: Plan,
        *,
        end_ids: Sequence[int],
        static: StaticEngine,
        window: int | None,
        reuse: PrefixStore | None = None,
    ) -> None:
        self.listener: Listener | None = None
        self._plan, self._window = plan, window
        self._end_ids = frozenset(end_ids)
        self._static = static
        self._model = model
        # the setting has no public reader
        self._plain_attention = model.config._attn_implementation  # noqa: SLF001
        pages = max(1, plan.batch_tokens // PAGE_TOKENS)
        self._pool = KvPool(pages, input_device(model))
        self._runner = PackedModelRunner(model, self._pool)
        self._cache = PrefixCache(self._runner, plan, reuse)
        self._texts, self._trees = TextCheckpoints(reuse), LabelTrees()
        # of rows that decode; those that are only read leave with their pass
        self._ramp = BatchSizeRamp(plan.max_batch_rows)
        self._scheduler = Scheduler(
            Budget(plan.max_batch_rows, plan.prefill_chunk_tokens, pages, self._ramp.rows, plan.pass_logits)
        )
        self._requests: dict[int, Request] = {}
        self._running: dict[int, Running] = {}
        self._read_for: dict[int, int] = {}  # tokens of beginnings, by the request that had them computed
        self._made_for: set[int] = set()
        self._under_way: PassResults | None = None
        self._read_at = 0.0
        self._late = self._pool.device.type == "cuda"

    def record_decoding(self) -> str:
        """Record the passes in which rows decode, before there are any; what came of it, for the report."""
        plan = self._plan
        return self._runner.record_decoding(plan.max_batch_rows, plan.context_tokens, plan.recording_bytes)

    @property
    def attention(self) -> str:
        """By which kernels it attends, for the report."""
        return self._runner.way.name

    @property
    def idle(self) -> bool:
        """True when nothing is queued or running."""
        return self._scheduler.idle and self._static.idle

    def admit(self, requests: Sequence[Request]) -> None:
        """Queue ``requests``, longest first."""
        for request in requests:
            too_long = self._window is not None and row_tokens(request) > self._window
            tree = None if isinstance(request.ask, Decode) else self._trees.of(request.ask)
            sequence = sequence_of(request, tree, stored=self._cache.wants(request))
            if too_long or self._static.refuses(request) or not self._scheduler.takes(sequence):
                self._static.admit([request])
            else:
                self._requests[request.request_id] = request
                self._scheduler.add(sequence)

    def release(self, request_ids: Collection[int]) -> None:
        """Forget queued requests and those under way."""
        gone = set(request_ids)
        self._static.release(gone)
        for request_id in gone & set(self._requests):
            self._leave(request_id)

    def step(self) -> Sequence[Generation]:
        """One packed pass, or one batch of the static engine when that has something to do. Raises what says
        that the device is lost.
        """
        if not self._static.idle and self._makes_way():
            attend_by(self._model, self._plain_attention)
            self._static.listener = self.listener
            return self._static.step()
        attend_by(self._model, IMPLEMENTATION)  # others may use the model between two steps
        finished: list[Generation] = []
        failure: Exception | None = None
        try:
            with torch.inference_mode():
                self._run(finished)
        except Exception as error:  # whatever the model raises, the static engine finds out whose it is
            if is_device_lost(error):  # nobody's, and nothing else can be tried in this process
                raise
            failure = error.with_traceback(None)
        if failure is not None:
            self._give_up(failure, {generation.request_id for generation in finished})
        return finished

    def _makes_way(self) -> bool:
        """Whether a static batch may run now. On a card its keys and values need the memory of the pool, so
        it comes when nothing is left for packed passes, and the pool is given back for it. A processor's pool
        has the memory that was written to, and may stay.
        """
        if self._pool.device.type == "cpu":
            return True
        if self._scheduler.idle and self._pool.nbytes:
            self._scheduler.start_over()
            self._pool.release()
            free_memory()
        return self._scheduler.idle

    def _run(self, finished: list[Generation]) -> None:
        """Schedule, carry out, take in; answers that are complete go to ``finished`` one by one."""
        started = time.perf_counter()
        self._cache.pulse = self._pulse
        self._admit()
        if self._must_know():
            self._take_in(finished)
        feeds = self._feeds()
        results = self._carry_out(feeds, started) if feeds else None
        self._take_in(finished)
        self._under_way = results
        if not self._late:
            self._take_in(finished)

    def _carry_out(self, feeds: Sequence[tuple[Running, Feed]], started: float) -> PassResults:
        """One pass, and what the host is to know of it, on its way."""
        wanted = any(running.answer.wants_features for running, _ in feeds)
        with watched(self._model, wanted=wanted) as watch:
            logits = self._runner.run([feed for _, feed in feeds])
        self._pulse()
        if self._under_way is not None:
            self._under_way.settle()
        results = PassResults(feeds, logits, watch.seen, started)
        self._runner.remember(results.chosen)
        for running, feed in feeds:
            if running.reading:
                running.read += len(feed.tokens)
                self._scheduler.advance(running.request.request_id, len(feed.tokens))
        return results

    def _must_know(self) -> bool:
        """Whether a search waits for the scores of the pass under way."""
        asking = self._under_way.asking if self._under_way is not None else ()
        return any(isinstance(one.answer, LabelAnswer) and one.answer.searching for one in asking)

    def _pulse(self) -> None:
        if self.listener is not None:
            self.listener.pulse()

    # ── who takes part ──────────────────────────────────────────────────────────────────────────────────────

    def _admit(self) -> None:
        """Let in whom the scheduler lets in, and read what it wants to be there first."""
        self._scheduler.budget.decoding_rows = self._ramp.rows
        self._scheduler.searched = self._trees.searched
        newcomers: list[int] = []
        while True:
            admission = self._scheduler.admit()
            for move in self._scheduler.take_moves():
                self._pool.move(move)
            for number in admission.admitted:
                self._start(number)
            newcomers += admission.admitted
            if admission.read is None:
                break
            self._tell_started([admission.reader])  # first: reading it may be what takes the process down
            self._read(admission, admission.read)
        self._tell_started(newcomers)

    def _tell_started(self, numbers: Sequence[int]) -> None:
        if numbers and self.listener is not None:
            self.listener.started(numbers)

    def _read(self, admission: Admission, beginning: HeldBeginning) -> None:
        request, sequence = self._requests[admission.reader], self._scheduler.sequence(admission.reader)
        held = True
        if sequence.prefix is not None and beginning.key == sequence.prefix.key:
            self._cache.read_prefix(beginning, request.ids[: beginning.tokens])
        else:
            assert sequence.document is not None
            others = self._scheduler.cached.users(sequence.document) - 1
            held = self._cache.read_document(beginning, request, others)
            self._made_for.add(admission.reader)
        computed = self._cache.read_tokens()
        self._read_for[admission.reader] = self._read_for.get(admission.reader, 0) + computed
        self._scheduler.has_read(admission.reader, held=held, computed_tokens=computed)

    def _start(self, number: int) -> None:
        """Give an admitted sequence a row, and an answer to fill in."""
        request, sequence = self._requests[number], self._scheduler.sequence(number)
        seen, ask = sequence.seen, request.ask
        row = Row(seen, sequence.run)
        own = request.ids[row.start :]
        if isinstance(ask, Decode):
            text = TextAnswer(request, ask, self._end_ids, self._texts)
            self._scheduler.resume(number, len(text.resumed))
            self._running[number] = Running(request, row, own + text.resumed, text)
        else:
            searching = sequence.tree_tokens > 0 and sequence.riding == 0
            labels = LabelAnswer(ask, self._trees.of(ask), searching=searching)
            self._running[number] = Running(request, row, own, labels)
        document = sequence.document
        of_document = seen is not None and document is not None and seen.key == document.key
        if seen is not None and of_document and number not in self._made_for:
            self._cache.count_shared(seen.tokens)
        self._made_for.discard(number)

    # ── one pass ────────────────────────────────────────────────────────────────────────────────────────────

    def _feeds(self) -> list[tuple[Running, Feed]]:
        """What the scheduler has chosen, in the order in which the sequences were admitted."""
        planned = self._scheduler.schedule()
        decode = set(planned.decode)
        feeds = []
        for number, running in self._running.items():
            if number in planned.prefill:
                keep = running.row.run is not None
                feeds.append((running, running.prefill(planned.prefill[number], keep=keep)))
            elif number in decode and (feed := running.decode()) is not None:
                feeds.append((running, feed))
        return feeds

    def _share_time(self, results: PassResults) -> None:
        """The time since it began, or since that before it was over."""
        now = time.perf_counter()
        seconds, self._read_at = now - max(results.started, self._read_at), now
        total = sum(feed.size for _, feed in results.feeds)
        for running, feed in results.feeds:
            running.seconds += seconds * feed.size / total
            running.company = max(running.company, len(results.feeds))
        if results.only_text:
            self._ramp.observe(len(results.feeds), seconds)

    def _take_in(self, finished: list[Generation]) -> None:
        """Give every sequence its own of what the pass under way finds, and wait for that."""
        results, self._under_way = self._under_way, None
        if results is None:
            return
        results.settle()
        everything = list(results.read())
        self._share_time(results)
        for found in everything:
            number = found.running.request.request_id
            if self._running.get(number) is found.running:  # else it has left meanwhile
                self._give(number, found, finished)

    def _give(self, number: int, found: Found, finished: list[Generation]) -> None:
        if not found.finite:
            self._scrub(number)
            self._leave(number)
            self._static.admit([found.running.request])  # alone it may hold; if not, it is recorded there
            return
        answer = found.running.answer.take_in(found.token, found.targets, found.state)
        if answer is not None:
            # first of all: whatever fails while it leaves, it is answered
            finished.append(_generation(found.running, self._read_for.get(number, 0), answer))
            self._leave(number)
        elif isinstance(found.running.answer, LabelAnswer):
            self._scheduler.search(number, len(found.running.answer.nodes))

    # ── leaving ─────────────────────────────────────────────────────────────────────────────────────────────

    def _leave(self, number: int) -> None:
        """The request is the engine's no more: its pages, and what only it wanted, come back."""
        self._running.pop(number, None)
        document = self._scheduler.sequence(number).document
        last = self._scheduler.forget(number)
        del self._requests[number]
        self._made_for.discard(number)
        self._read_for.pop(number, None)
        if last and document is not None:
            self._cache.finish(document.key)

    def _scrub(self, number: int) -> None:
        """Nothing of a row that is no number stays in its pages."""
        run = self._running[number].row.run
        if run is not None:
            self._pool.scrub(run)

    def _give_up(self, error: Exception, answered: Collection[int]) -> None:
        """Hand everything in the model that is not ``answered`` to the static engine, which runs smaller and
        alone, and names the guilty. All pages come back: what failed may have left a row in any state.
        """
        rows = len(self._scheduler.running)
        self._under_way = None
        gone = self._scheduler.give_up()
        self._static.admit([self._requests[number] for number in gone if number not in answered])
        for number in gone:
            self._leave(number)
        if is_out_of_memory(error):
            self._runner.forget_recorded()
            if rows > 1:  # the next passes are to be smaller; one alone does not tell how many fit together
                self._scheduler.shrink(rows, pages_of(self._plan.context_tokens))
                self._pool.resize(self._scheduler.pool.pages)
                self._ramp.shrink(self._scheduler.budget.rows)
            free_memory()


def _generation(running: Running, read_tokens: int, answer: Mapping[str, Any]) -> Generation:
    """``read_tokens`` of the beginning that it shares were computed on its account."""
    request = running.request
    return Generation(
        request.request_id,
        prompt_tokens=len(request.ids),
        computed_tokens=len(request.ids) - running.row.start + read_tokens,
        seconds=running.seconds,
        batch_rows=running.company,
        **answer,
    )
