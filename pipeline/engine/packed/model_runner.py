"""Packed passes over one model: rows of documents that read their prompts, decode and score side by side,
without padding.

Each pass is one forward call over the next tokens of all live rows and the prompts of newcomers, end to end
(continuous batching: Yu et al., Orca, 2022).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pipeline.engine.out_of_memory import free_memory
from pipeline.engine.packed import attention
from pipeline.engine.packed.attention import Pass
from pipeline.engine.packed.decode_passes import DecodePasses
from pipeline.engine.packed.feed import Feed, Row
from pipeline.engine.packed.host_numbers import HostNumbers
from pipeline.engine.packed.page_pool import KvPool
from pipeline.engine.packed.pass_layout import PassLayout, laid_out
from pipeline.engine.packed.ways import BY_VARLEN, way_for

_log = logging.getLogger(__name__)


class PackedModelRunner:
    """Runs packed passes, whose keys and values lie in ``pool``. The model must call attention through
    transformers' interface; ``support`` finds out by trying.
    """

    def __init__(self, model: Any, pool: KvPool) -> None:
        self._model = model
        self.pool = pool
        self.way = way_for(model, pool.device)
        self._context = attention.context_of(model)
        self.chosen: torch.Tensor | None = None
        """Token ids (n,) on the device that the last pass has chosen."""
        self.decoding: DecodePasses | None = None
        """What runs passes in which every row decodes, where that is not done as others are."""

    def record_decoding(self, rows: int, longest: int, room_bytes: int | None = None) -> str:
        """Decode up to ``rows`` rows, each seeing up to ``longest`` tokens of its own, by recorded passes
        from now on where that can be, and as far as ``room_bytes`` of the card go; what came of it, for the
        report.
        """
        reason = None if self.way is BY_VARLEN else f"that is for {BY_VARLEN.name}"
        if reason is None:
            passes = DecodePasses(self._model, self._context, self.pool, rows, longest, room_bytes)
            reason = _failure_of(passes.try_out)
        if reason is None:
            self.decoding = passes
            reason = _failure_of(passes.record)
            rows = min(rows, passes.recorded_rows)
        if reason is None and not rows:
            reason = "the plan has too little room for it"
        return (
            f"decoding is recorded for up to {rows} rows"
            if reason is None
            else f"decoding is not recorded: {reason}"
        )

    def forget_recorded(self) -> None:
        """Give back what recorded passes take; decoding goes on without."""
        if self.decoding is not None:
            self.decoding.forget()

    def remember(self, chosen: torch.Tensor) -> None:
        """Token ids (n,) that this pass has chosen, for those of the next that are late."""
        self.chosen = chosen if self.decoding is None else self.decoding.keep(chosen)

    def extend(self, row: Row, ids: Sequence[int]) -> None:
        """Read ``ids`` into the run of ``row``, behind what is there, in one pass that is asked for
        nothing.
        """
        self._pass([Feed(row, ids, keep=True, logits=())])

    def run(self, feeds: Sequence[Feed]) -> torch.Tensor:
        """One pass over ``feeds``; returns float32 logits (wanted, vocabulary), feed by feed in their
        order.
        """
        if self.decoding is not None and self.decoding.takes(feeds):
            if self.decoding.void and (failure := _failure_of(self.decoding.record)):
                _log.warning("decoding is not recorded any more: %s", failure)
            logits = self.decoding.run(feeds)
            self._advance(feeds)
            return logits
        return self._pass(feeds)

    def _pass(self, feeds: Sequence[Feed]) -> torch.Tensor:
        self.pool.allocate(self._context.forms)
        layout = laid_out(feeds, self.way.order)
        logits = self._call(layout)
        self._context.forms = self.pool.forms
        self._advance(feeds)
        return logits

    @staticmethod
    def _advance(feeds: Sequence[Feed]) -> None:
        for feed in feeds:
            feed.row.cached += len(feed.tokens) if feed.keep else 0

    def _call(self, layout: PassLayout) -> torch.Tensor:
        numbers = HostNumbers()
        ids, positions, wanted = map(numbers.note, (layout.ids, layout.positions, layout.wanted))
        late = [numbers.note(column) for column in zip(*layout.late, strict=True)]
        attending = self.way.make(layout, self.pool, numbers)
        found = numbers.send(self.pool.device)
        attending.arrived(found)
        if late:
            assert self.chosen is not None
            places, sources = map(found.long, late)
            known = self.chosen.index_select(0, sources).long()
            found.long(ids).index_copy_(0, places, known)
        with self._context.running(Pass(layout, attending)):
            output = self._model(
                input_ids=found.long(ids)[None],
                position_ids=found.long(positions)[None],
                use_cache=False,
                logits_to_keep=found.long(wanted),
            )
        logits: torch.Tensor = output.logits[0]
        return logits.float()


def _failure_of(recording: Callable[[], None]) -> str | None:
    """Why ``recording`` cannot be done, None where it could; what it held is given back."""
    try:
        recording()
    except Exception as error:  # noqa: BLE001  # families and drivers are many; it goes without, too
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    else:
        return None
    free_memory()  # only here do the frames of the attempt no longer hold its tensors
    return reason
