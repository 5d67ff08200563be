"""The engine that batches continuously: packed passes, a shared prefix read once, label trees, places
refilled while others go on.

Requests it cannot run (a row beyond a sliding window, a pass that failed in company) go to the static engine,
which has every way out of failure; so does everything when the model's family does not pass
``pipeline.engine.packed.support``.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pipeline.engine.backoff import halved
from pipeline.engine.batching import row_tokens
from pipeline.engine.interface import Listener
from pipeline.engine.kv.slot_pool import class_capacity
from pipeline.engine.model.forward import attend_by, input_device
from pipeline.engine.out_of_memory import free_memory, is_out_of_memory
from pipeline.engine.packed.attention import IMPLEMENTATION, Prefix
from pipeline.engine.packed.batch_size_ramp import BatchSizeRamp
from pipeline.engine.packed.label_trie import ROOT, LabelTrie, Search, SearchWorth
from pipeline.engine.packed.model_runner import Feed, PackedModelRunner, Row
from pipeline.engine.packed.prefix_cache import PrefixCache
from pipeline.engine.packed.text_checkpoints import TextCheckpoints
from pipeline.engine.reuse.prefix_store import PrefixStore
from pipeline.engine.sampling.hidden_state import packed, watched
from pipeline.engine.static.engine import StaticEngine
from pipeline.engine.static.generate import Output
from pipeline.records import Decode, Generation, Plan, Request, Score, document_of

# A shorter prefix, or one that a single prompt has, is not worth a pass of its own.
_LEAST_PREFIX_TOKENS = 16
# Trees up to so many nodes ride along with the prompt: cheaper than keeping the prompt and coming back.
_RIDING_NODES = 12
_PREFIX_SHARE = 4


@dataclass(slots=True)
class _Guest:
    """A request in the model."""

    request: Request
    row: Row
    own: tuple[int, ...]
    read: int = 0
    output: Output | None = None
    trie: LabelTrie | None = None
    search: Search | None = None
    asked: list[int] = field(default_factory=list)
    seconds: float = 0.0
    company: int = 1
    features: bytes = b""

    @property
    def wants_features(self) -> bool:
        """Whether the state at its prompt's last token is asked for and not seen yet."""
        return isinstance(self.request.ask, Score) and self.request.ask.features and not self.features

    @property
    def reading(self) -> bool:
        """Whether some of the prompt is still to be read."""
        return self.read < len(self.own)


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
        self._plan = plan
        self._end_ids = frozenset(end_ids)
        self._static = static
        self._window = window
        self._model = model
        self._packed = PackedModelRunner(model, input_device(model))
        # the setting has no public reader
        self._plain_attention = model.config._attn_implementation  # noqa: SLF001
        self._documents = PrefixCache(self._packed, plan, reuse)
        self._texts = TextCheckpoints(reuse)
        self._waiting: list[tuple[int, int, int]] = []
        self._requests: dict[int, Request] = {}
        self._guests: list[_Guest] = []
        self._prefixes: OrderedDict[tuple[int, ...], Prefix] = OrderedDict()
        self._users: Counter[tuple[int, ...]] = Counter()
        self._rows, self._columns = plan.max_batch_rows, plan.batch_tokens
        # of rows that decode; those that are only read leave with their pass
        self._ramp = BatchSizeRamp(plan.max_batch_rows)
        self._tries: dict[tuple[tuple[int, ...], ...], LabelTrie] = {}
        self._worth: dict[tuple[tuple[tuple[int, ...], ...], float], SearchWorth] = {}

    @property
    def idle(self) -> bool:
        """True when nothing is queued or running."""
        return not (self._requests or self._guests) and self._static.idle

    def admit(self, requests: Sequence[Request]) -> None:
        """Queue ``requests``, longest first."""
        for request in requests:
            if self._static.refuses(request) or (
                self._window is not None and row_tokens(request) > self._window
            ):
                self._static.admit([request])
            else:
                self._requests[request.request_id] = request
                self._users[request.ids[: request.prefix_tokens]] += 1
                self._documents.expect(request)
                heapq.heappush(self._waiting, _turn(request))

    def release(self, request_ids: Collection[int]) -> None:
        """Forget queued requests and those under way."""
        gone = set(request_ids)
        self._static.release(gone)
        for request_id in gone:
            request = self._requests.pop(request_id, None)
            if request is not None:
                self._unshare(request)
        for guest in [guest for guest in self._guests if guest.request.request_id in gone]:
            self._leave(guest)

    def step(self) -> Sequence[Generation]:
        """One packed pass, or one batch of the static engine when that has something to do."""
        if not self._static.idle:
            attend_by(self._model, self._plain_attention)
            self._static.listener = self.listener
            return self._static.step()
        attend_by(self._model, IMPLEMENTATION)  # others may use the model between two steps
        started = time.perf_counter()
        with torch.inference_mode():
            try:
                self._documents.pulse = self._pulse
                self._invite()
                feeds = self._feeds()
                with watched(self._model, wanted=any(guest.wants_features for guest, _ in feeds)) as watch:
                    logits = self._packed.run([feed for _, feed in feeds])
            except Exception as error:  # noqa: BLE001  # whatever the model raises, the static engine finds out whose it is
                self._surrender(error)
                return ()
            self._pulse()
            seconds = time.perf_counter() - started
            self._share_time(feeds, seconds)
            if all(guest.output is not None and not guest.reading for guest, _ in feeds):
                self._ramp.observe(len(feeds), seconds)
            return self._take_in(feeds, logits, watch.seen)

    def _pulse(self) -> None:
        if self.listener is not None:
            self.listener.pulse()

    # ── who takes part ──────────────────────────────────────────────────────────────────────────────────────

    def _invite(self) -> None:
        """Let waiting requests in while there is room: rows, columns of KV memory, and tokens of one pass."""
        budget = self._plan.prefill_chunk_tokens - sum(
            len(guest.own) - guest.read for guest in self._guests if guest.reading
        )
        columns = sum(guest.row.storage.capacity for guest in self._guests if guest.row.storage)
        newcomers: list[int] = []
        while self._waiting and budget > 0 and len(self._guests) < self._rows:
            request = self._requests.get(self._waiting[0][-1])
            if request is None:  # released
                heapq.heappop(self._waiting)
                continue
            if (
                isinstance(request.ask, Decode)
                and sum(guest.output is not None for guest in self._guests) >= self._ramp.rows
            ):
                break
            needed = class_capacity(row_tokens(request))
            if self._guests and columns + self._documents.columns + needed > self._columns:
                break
            guest = self._welcome(request)
            size = len(guest.own) + len(guest.asked)
            if self._guests and size > budget and size <= self._plan.prefill_chunk_tokens and newcomers:
                self._unwelcome(guest)
                break
            heapq.heappop(self._waiting)
            del self._requests[request.request_id]
            self._guests.append(guest)
            newcomers.append(request.request_id)
            columns += guest.row.storage.capacity if guest.row.storage else 0
            budget -= size + self._documents.read_tokens()
        if newcomers and self.listener is not None:
            self.listener.started(newcomers)

    def _welcome(self, request: Request) -> _Guest:
        prefix, count = self._prefix(request)
        document = self._documents.beginning(request, prefix)
        if document is not None:
            prefix, count = document, document.tokens
        guest = _Guest(request, Row((), prefix), request.ids[count:])
        if isinstance(request.ask, Decode):
            guest.output = Output(request.ask, self._end_ids)
            guest.own += self._texts.begun(request, guest.output)
            self._packed.place(
                guest.row,
                (count if document is not None else 0) + len(guest.own) + request.ask.max_new_tokens,
            )
            if document is not None:  # a row decodes faster when all it sees is in its slot
                self._packed.settle(guest.row)
            return guest
        guest.trie = self._trie(request.ask)
        rides = len(guest.trie.nodes) <= _RIDING_NODES or not self._searching_pays(request.ask)
        guest.asked = list(range(len(guest.trie.nodes))) if rides else []
        if not rides:
            guest.search = Search(guest.trie, request.ask.tolerance)
        if not rides or len(guest.own) > self._plan.prefill_chunk_tokens:
            self._packed.place(guest.row, len(guest.own))
        return guest

    def _unwelcome(self, guest: _Guest) -> None:
        """It does not fit into this pass after all."""
        self._packed.leave(guest.row, (other.row for other in self._guests))

    def _prefix(self, request: Request) -> tuple[Prefix | None, int]:
        """The shared beginning, read now if it is new, and its length; at least one token of the prompt is
        left.
        """
        ids = request.ids[: min(request.prefix_tokens, len(request.ids) - 1)]
        known = ids in self._prefixes
        if len(ids) < _LEAST_PREFIX_TOKENS or not (
            known or self._users[request.ids[: request.prefix_tokens]] > 1
        ):
            return None, 0
        if not known:
            self._prefixes[ids] = self._documents.instructions(ids)
        self._prefixes.move_to_end(ids)
        while (
            len(self._prefixes) > 1
            and sum(map(len, self._prefixes)) > self._plan.batch_tokens // _PREFIX_SHARE
        ):
            self._prefixes.popitem(last=False)
        return self._prefixes[ids], len(ids)

    def _trie(self, ask: Score) -> LabelTrie:
        if ask.continuations not in self._tries:
            self._tries[ask.continuations] = LabelTrie(ask.continuations)
        return self._tries[ask.continuations]

    def _searching_pays(self, ask: Score) -> bool:
        return ask.tolerance > 0 and self._search_worth(ask).pays

    def _search_worth(self, ask: Score) -> SearchWorth:
        key = ask.continuations, ask.tolerance
        if key not in self._worth:
            self._worth[key] = SearchWorth(self._trie(ask), ask.tolerance)
        return self._worth[key]

    # ── one pass ────────────────────────────────────────────────────────────────────────────────────────────

    def _feeds(self) -> list[tuple[_Guest, Feed]]:
        budget = self._plan.prefill_chunk_tokens
        feeds = []
        for guest in self._guests:
            if not guest.reading:
                feeds.append((guest, self._again(guest)))
            elif budget > 0:
                feed = self._read(guest, budget)
                budget -= feed.size
                feeds.append((guest, feed))
        return feeds

    def _read(self, guest: _Guest, budget: int) -> Feed:
        """The next stretch of the prompt; with its last one the tree that rides along."""
        tokens = guest.own[guest.read :]
        if len(tokens) > budget and guest.row.storage is not None:
            return Feed(guest.row, tokens[:budget], keep=True, logits=())
        last = len(tokens) - 1
        keep = guest.row.storage is not None
        if guest.trie is None or not guest.asked:
            return Feed(guest.row, tokens, keep, (last,))
        nodes = [last + 1 + offset for offset in range(len(guest.asked))]
        return Feed(guest.row, tokens, keep, (last, *nodes), guest.trie, guest.asked)

    def _again(self, guest: _Guest) -> Feed:
        """A row that has read its prompt: the token it decoded, or the tree nodes its search asks for, with
        their ancestors.
        """
        if guest.output is not None:
            return Feed(guest.row, guest.output.reply.token_ids[-1:], keep=True, logits=(0,))
        assert guest.trie is not None
        nodes = sorted({above for node in guest.asked for above in guest.trie.ancestors(node)})
        return Feed(
            guest.row,
            (),
            keep=False,
            logits=[nodes.index(node) for node in guest.asked],
            trie=guest.trie,
            nodes=nodes,
        )

    def _take_in(
        self, feeds: Sequence[tuple[_Guest, Feed]], logits: torch.Tensor, states: torch.Tensor | None
    ) -> list[Generation]:
        """Give every sequence its own of ``logits`` (wanted, vocabulary) and ``states`` (1, wanted, hidden);
        what has ended by them.
        """
        finished = []
        best, greedy = logits.max(dim=-1)
        finite, choices = best.isfinite().tolist(), greedy.tolist()
        begin = 0
        for guest, feed in feeds:
            end = begin + len(feed.logits)
            guest.read += len(feed.tokens) if guest.reading else 0
            if end > begin and not all(finite[begin:end]):
                self._leave(guest)
                self._static.admit([guest.request])  # alone it may hold; if not, it is recorded there
            elif end > begin and guest.output is not None:
                output = guest.output
                output.push(
                    choices[begin] if output.sampler is None else output.sampler.choose(logits[begin])
                )
                self._texts.grown(guest.request, output)
                if output.ended:
                    reply = output.reply
                    finished.append(
                        self._generation(
                            guest, token_ids=tuple(reply.token_ids), finish_reason=reply.finish_reason
                        )
                    )
            elif end > begin:
                if guest.wants_features and states is not None and states.shape[1] == len(logits):
                    # the first of its predictions is at the prompt's last token
                    guest.features = packed(states[0, begin])
                scores = self._scored(guest, logits[begin:end])
                if scores is not None:
                    finished.append(self._generation(guest, scores=tuple(scores), features=guest.features))
            begin = end
        return finished

    def _scored(self, guest: _Guest, logits: torch.Tensor) -> list[float] | None:
        """Take predictions in, the prompt's first if it was just read; the label scores once nothing more is
        needed.
        """
        trie = guest.trie
        assert trie is not None
        first = guest.search is None or not guest.search.known_root
        nodes = [*([ROOT] if first else []), *guest.asked]
        normalizers = logits.logsumexp(dim=-1)
        predicted: dict[int, dict[int, float]] = {}
        for offset, node in enumerate(nodes):
            tokens = trie.targets[node]
            values = (logits[offset, tokens] - normalizers[offset]).tolist()
            predicted[node] = dict(zip(tokens, values, strict=True))
        if guest.search is None:
            if isinstance(guest.request.ask, Score) and guest.request.ask.tolerance > 0:
                self._search_worth(guest.request.ask).learn(predicted)
            return trie.scores(
                {
                    (node, token): value
                    for node, values in predicted.items()
                    for token, value in values.items()
                }
            )
        for node in nodes:
            guest.search.learn(node, predicted[node])
        guest.asked = guest.search.wanted()
        return None if guest.asked else guest.search.scores()

    def _generation(self, guest: _Guest, **answer: Any) -> Generation:
        self._leave(guest)
        request = guest.request
        return Generation(
            request.request_id,
            prompt_tokens=len(request.ids),
            seconds=guest.seconds,
            batch_rows=guest.company,
            **answer,
        )

    def _share_time(self, feeds: Sequence[tuple[_Guest, Feed]], seconds: float) -> None:
        total = sum(feed.size for _, feed in feeds)
        for guest, feed in feeds:
            guest.seconds += seconds * feed.size / total
            guest.company = max(guest.company, len(feeds))

    def _leave(self, guest: _Guest) -> None:
        self._guests.remove(guest)
        with (
            torch.inference_mode()
        ):  # rows move inside tensors made in it, also when a request is released between passes
            self._packed.leave(guest.row, (other.row for other in self._guests))
        self._unshare(guest.request)

    def _unshare(self, request: Request) -> None:
        self._documents.forget(request)
        shared = request.ids[: request.prefix_tokens]
        self._users[shared] -= 1
        if self._users[shared] <= 0:
            del self._users[shared]

    def _surrender(self, error: Exception) -> None:
        """Hand everything in the model to the static engine, which runs smaller and alone, and names the
        guilty.
        """
        guests = list(self._guests)
        for guest in reversed(guests):
            self._leave(guest)
        self._prefixes.clear()
        self._documents.clear()
        error.__traceback__ = None
        if is_out_of_memory(error):  # the next passes are to be smaller
            self._rows = halved(self._rows, len(guests))
            self._ramp.shrink(self._rows)
            self._columns = halved(self._columns, self._columns, self._plan.context_tokens)
            free_memory()
        if not guests and self._waiting:
            request = self._requests.pop(heapq.heappop(self._waiting)[-1], None)
            if request is not None:
                self._unshare(request)
                self._static.admit([request])
        self._static.admit([guest.request for guest in guests])


def _turn(request: Request) -> tuple[int, int, int]:
    """Longest first; questions about one document side by side, whatever their own lengths."""
    if not request.document_end:
        return -row_tokens(request), 0, request.request_id
    return -request.document_end, hash(document_of(request)), request.request_id
