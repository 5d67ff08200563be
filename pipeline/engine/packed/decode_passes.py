"""Passes in which every row decodes one token, on cards: recorded once, at padded numbers of rows, and
replayed (CUDA graphs), so that the host launches one thing a pass instead of some hundred.

Of numbers of rows, 1, 2, 4, 8 and every further 8 are recorded; a pass of others is filled up to the next
with rows that belong to nobody. All recordings share their memory, which the largest, made first, decides
about. What cannot be recorded runs as it is, launch by launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.attention.varlen import AuxRequest, varlen_attn

from pipeline.engine.model.forward import attention_as
from pipeline.engine.packed.attention import IMPLEMENTATION, Pass, PassContext
from pipeline.engine.packed.decode_inputs import DecodeInputs, InputBuffer
from pipeline.engine.packed.feed import Feed
from pipeline.engine.packed.kernels import join
from pipeline.engine.packed.page_pool import KvPool
from pipeline.engine.packed.pass_layout import PassLayout
from pipeline.planner.pass_time import COUNTED, SHARED_LAUNCHES

_STEP = 8
# Of one launch in a recording, as a driver keeps it: assumed, as no card was asked.
_LAUNCH_BYTES = 12 * 2**10
# Of a number of the logits: in 16 bits and in float32 while a pass runs, and where they are kept.
_LOGITS_BYTES = 10


def padded(rows: int) -> int:
    """Rows of the recorded pass that ``rows`` take part in."""
    return 1 << (rows - 1).bit_length() if rows <= _STEP else -(-rows // _STEP) * _STEP


def recorded_sizes(most: int) -> list[int]:
    """Rows of all recordings for up to ``most`` rows, the largest first."""
    return sorted({padded(rows) for rows in range(1, most + 1)}, reverse=True)


def recordable_rows(most: int, launches: int, vocabulary: int, room_bytes: int | None) -> int:
    """The most rows, up to ``most``, whose recordings, of so many ``launches`` for each size, fit into
    ``room_bytes`` (None: all do); 0 where none do.
    """
    for rows in recorded_sizes(most):
        taken = len(recorded_sizes(rows)) * launches * _LAUNCH_BYTES + rows * vocabulary * _LOGITS_BYTES
        if room_bytes is None or taken <= room_bytes:
            return rows
    return 0


class DecodePasses:
    """Of the rows of one engine. ``longest`` is the most that a row sees of its own run, in tokens.
    Recordings may take ``room_bytes`` of the card; passes of more rows than fit run launch by launch.

    For models that attend by flash attention over rows of different lengths (``ways.BY_VARLEN``).
    """

    def __init__(
        self,
        model: Any,
        context: PassContext,
        pool: KvPool,
        rows: int,
        longest: int,
        room_bytes: int | None = None,
    ) -> None:
        self._model, self._context, self._pool = model, context, pool
        self._most, self._room_bytes = rows, room_bytes
        self.recorded_rows = 0
        self._buffer = InputBuffer(padded(rows), pool)
        self._longest = longest
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self._generation = pool.generation
        self._logits: torch.Tensor | None = None
        self._vocabulary = 0
        self._knows_last = True
        self.nbytes = 0
        """Memory that the recordings have taken of the card."""

    def keep(self, chosen: torch.Tensor) -> torch.Tensor:
        """Remember token ids (n,) as those that the last pass chose; where they are now."""
        self._knows_last = len(chosen) <= self._buffer.rows
        return self._buffer.keep(chosen) if self._knows_last else chosen

    def takes(self, feeds: Sequence[Feed]) -> bool:
        """Whether a pass of ``feeds`` is for it: all decode, and they share one beginning or none."""
        return (
            0 < len(feeds) <= self._buffer.rows
            and self._knows_last
            # one token of a prompt that goes on is asked for nothing
            and all(feed.decodes and feed.logits for feed in feeds)
            and len({_beginning(feed) for feed in feeds}) == 1
            and (feeds[0].row.seen is None or len(feeds[0].row.seen.chain) == 1)
        )

    def run(self, feeds: Sequence[Feed]) -> torch.Tensor:
        """float32 logits (rows, vocabulary), feed by feed; overwritten by the next pass."""
        shared = feeds[0].row.seen
        graph = self._graphs.get((padded(len(feeds)), shared is not None))
        rows = len(feeds) if graph is None else padded(len(feeds))
        self._buffer.fill(feeds, rows, shared)
        if graph is None:
            return self._pass(rows, shared=shared is not None)
        graph.replay()
        assert self._logits is not None
        return self._logits[: len(feeds)]

    @property
    def void(self) -> bool:
        """Whether there are recordings, which write to memory of the pool that is no more."""
        return bool(self._graphs) and self._generation != self._pool.generation

    def try_out(self) -> None:
        """One pass of each kind, filled with rows of nobody, of the largest size. Raises what is against it.

        What libraries make at their first call is there from now on; it cannot be made in a recording.
        """
        rows = recorded_sizes(self._buffer.rows)[0]
        with torch.inference_mode(), attention_as(self._model, IMPLEMENTATION):
            self._pool.allocate(self._context.forms)
            self._buffer.fill((), rows, None)
            for shared in (False, True):
                self._vocabulary = self._pass(rows, shared=shared).shape[-1]

    def record(self) -> None:
        """Record all sizes, once they are tried out, in the place of those that there are. Raises whatever
        keeps the model from being recorded; nothing is recorded then.
        """
        self.forget()
        device = self._pool.device
        free_before, _ = torch.cuda.mem_get_info(device)
        try:
            # a recording that fails may leave its own stream the current one
            with (
                torch.cuda.stream(torch.cuda.current_stream(device)),
                torch.inference_mode(),
                attention_as(self._model, IMPLEMENTATION),
            ):
                self._record()
        except BaseException:
            self.forget()
            raise
        self.nbytes = max(0, free_before - torch.cuda.mem_get_info(device)[0])

    def forget(self) -> None:
        """Give the memory of all recordings back."""
        self._graphs.clear()
        self._logits, self.recorded_rows = None, 0
        self.nbytes = 0

    def _record(self) -> None:
        self._generation = self._pool.generation
        layers = int(self._model.config.get_text_config().num_hidden_layers)
        plain = COUNTED.layer_launches * layers + COUNTED.pass_launches
        both = 2 * plain + SHARED_LAUNCHES * layers  # without a shared beginning, and with one
        most = recordable_rows(self._most, both, self._vocabulary, self._room_bytes)
        if not most:
            return
        self._logits = torch.empty(most, self._vocabulary, device=self._pool.device)
        memory = torch.cuda.graph_pool_handle()
        for rows in recorded_sizes(most):
            self._buffer.fill((), rows, None)  # nothing runs meanwhile, but who looks at inputs finds some
            for shared in (True, False):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=memory):
                    self._logits[:rows].copy_(self._pass(rows, shared=shared))
                self._graphs[rows, shared] = graph
        self.recorded_rows = most

    def _pass(self, rows: int, *, shared: bool) -> torch.Tensor:
        """Logits (rows, vocabulary) float32 by the inputs that are in the buffer."""
        inputs = self._buffer.of(rows)
        attention = _DecodeAttention(inputs, self._pool, self._longest, shared=shared)
        with self._context.running(Pass(PassLayout(size=rows), attention)):
            output = self._model(
                input_ids=inputs.tokens.index_select(0, inputs.sources)[None],
                position_ids=inputs.positions[None],
                use_cache=False,
            )
        logits: torch.Tensor = output.logits[0]
        return logits.float()


class _DecodeAttention:
    """Each row over its own run, all rows over what they share, if they do (``shared``)."""

    def __init__(self, inputs: DecodeInputs, pool: KvPool, longest: int, *, shared: bool) -> None:
        self._inputs, self._pool, self._shared = inputs, pool, shared
        self._places = inputs.places.long()  # as index_copy_ wants them
        self._longest = min(longest, pool.tokens)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Output (1, N, H, D) of ``query`` (1, H, N, D); ``key`` and ``value`` (1, G, N, D) are kept."""
        own = query[0].transpose(0, 1)
        kept = self._pool.write(layer, self._places, key[0].transpose(0, 1), value[0].transpose(0, 1))
        inputs, rows = self._inputs, len(own)
        output, lse = _over(own, kept, inputs.each, inputs.begins, 1, self._longest, scaling, inputs.used)
        if self._shared:
            more = _over(own, kept, inputs.together, inputs.shared, rows, self._pool.tokens, scaling)
            join(output, lse, more, last=True)
        return output[None]


def _over(
    query: torch.Tensor,
    kept: tuple[torch.Tensor, torch.Tensor],
    queries: torch.Tensor,
    keys: torch.Tensor,
    most_queries: int,
    most_keys: int,
    scaling: float,
    used: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (N, H, D) and log-sum-exp (N, H) of sequences bounded by ``queries`` and ``keys``."""
    output, lse = varlen_attn(
        query,
        *kept,
        queries,
        keys,
        most_queries,
        most_keys,
        return_aux=AuxRequest(lse=True),
        scale=scaling,
        enable_gqa=True,
        seqused_k=used,
    )
    return output, lse.transpose(0, 1)  # flash attention 2 gives (H, N)


def _beginning(feed: Feed) -> int | None:
    return None if feed.row.seen is None else feed.row.seen.run.start
