"""Static batches on streamed weights: as many as memory holds run side by side, each layer loaded once a
sweep for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pipeline.engine.batching import batch_columns, next_batch
from pipeline.engine.model.forward import attention_as
from pipeline.engine.static.engine import StaticEngine
from pipeline.engine.streaming.layer_hooks import LayerHooks
from pipeline.engine.streaming.microbatch_scheduler import MicrobatchForward, MicrobatchScheduler
from pipeline.records import Generation, Plan, Request

_LANE_ROWS = 32  # of a micro-batch that nobody planned


class StreamedEngine(StaticEngine):
    """Implements ``pipeline.engine.interface.Engine``. The plan's rows and tokens bound all micro-batches
    together.

    Each is run as ``StaticEngine`` runs its batches, with the same ways out of failure; ``lane_rows`` (else
    the plan's) bounds one of them.
    """

    def __init__(
        self,
        model: Any,
        hooks: LayerHooks,
        plan: Plan,
        *,
        end_ids: Sequence[int],
        pad_id: int,
        attention: str,
        lane_rows: int | None = None,
        kv_folder: Path | None = None,
    ) -> None:
        self._microbatches: MicrobatchScheduler[tuple[int, Sequence[Generation]]] = MicrobatchScheduler(
            hooks.weights.open, hooks.heads, self._pulse
        )
        forward = MicrobatchForward(model, self._microbatches)
        super().__init__(forward, plan, end_ids=end_ids, pad_id=pad_id, kv_folder=kv_folder)
        self._hooks, self._attention = hooks, attention
        self._lane_rows = lane_rows or (plan.streaming.micro_batch_rows if plan.streaming else _LANE_ROWS)
        self._taken: dict[int, int] = {}  # tokens of each micro-batch's batch, by the first of its requests

    @property
    def idle(self) -> bool:
        """True when nothing is queued or running."""
        return super().idle and not self._microbatches

    def step(self) -> Sequence[Generation]:
        """Sweep until a micro-batch has ended. May return nothing, when it failed and will be tried in
        smaller pieces.
        """
        if self._refused:
            return super().step()
        # The mode is the thread's: a micro-batch that ends puts back what was before it, which must be what
        # the others need.
        with torch.inference_mode(), attention_as(self._forward.model, self._attention):
            try:
                with self._hooks.waiting_for(self._microbatches):
                    self._fill()
                    return [done for ended in self._microbatches.run() for done in self._taken_out(*ended)]
            except BaseException:
                self._microbatches.stop()
                raise

    def _pulse(self) -> None:
        if self.listener is not None:
            self.listener.pulse()

    def _fill(self) -> None:
        """Start micro-batches while there is room for more."""
        while self._alone:
            if self._microbatches and not self._has_room([self._alone[0]]):
                return
            self._start([self._alone.popleft()])
        while self._queue:
            rows = self._plan.max_batch_rows - self._microbatches.rows
            tokens = self._plan.batch_tokens - sum(self._taken.values())
            if self._microbatches and (rows <= 0 or tokens <= 0):
                return
            room = replace(
                self._plan, max_batch_rows=max(1, min(rows, self._lane_rows)), batch_tokens=max(1, tokens)
            )
            batch = next_batch(
                self._queue.values(),
                room,
                row_limit=self._limits.rows,
                equal_lengths=self._forward.equal_lengths,
            )
            if self._microbatches and not self._has_room(batch):
                return
            for request in batch:
                del self._queue[request.request_id]
            self._start(batch)

    def _has_room(self, batch: Sequence[Request]) -> bool:
        return (
            self._microbatches.rows + len(batch) <= self._plan.max_batch_rows
            and sum(self._taken.values()) + len(batch) * batch_columns(batch) <= self._plan.batch_tokens
        )

    def _start(self, batch: Sequence[Request]) -> None:
        key = batch[0].request_id
        self._taken[key] = len(batch) * batch_columns(batch)
        self._microbatches.start(
            lambda: (key, self._run_alone(batch[0]) if len(batch) == 1 else self._run_together(batch)),
            len(batch),
        )

    def _taken_out(self, ended: tuple[int, Sequence[Generation]], seconds: float) -> list[Generation]:
        """The generations of a micro-batch that has ended, each with its share of the micro-batch's own
        time.
        """
        key, generations = ended
        del self._taken[key]
        return [replace(generation, seconds=seconds / len(generations)) for generation in generations]
