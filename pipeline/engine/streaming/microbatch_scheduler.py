"""Many micro-batches in one sweep: each runs the model's own forward in a micro-batch of its own, and stops
wherever weights are needed.

A micro-batch is a greenlet: one thread, one at a time, handed on where a micro-batch stops at a gate. When
all micro-batches of a sweep stand at a gate, it is opened once and all of them pass, one after another; so a
layer is loaded once for all rows there are (Sheng et al., FlexGen, 2023), and what is inside of it (masks,
rotary positions, caches, routing) stays the model's own code. A micro-batch that begins its next pass waits
for the next sweep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import torch
from greenlet import GreenletExit, getcurrent, greenlet

from pipeline.engine.kv.cache import AnyCache
from pipeline.engine.model.forward import Forward

T = TypeVar("T")
Gate = int


class _Microbatch(Generic[T]):
    """One piece of work; ``gate`` is where it stands, ``steps`` how many gates it has reached in its present
    pass.
    """

    def __init__(self, work: Callable[[], T], rows: int) -> None:
        self.work, self.rows = work, rows
        self.seconds = 0.0
        self.gate: Gate | None = None
        self.states: torch.Tensor | None = None
        self.steps = self.passes = 0
        self.result: T | None = None
        self.failure: BaseException | None = None
        self.greenlet = greenlet(self._run)

    def _run(self, *_: object) -> None:
        try:
            self.result = self.work()
        except GreenletExit:
            raise
        except BaseException as error:  # noqa: BLE001  # handed to the one who runs the micro-batches
            self.failure = error

    @property
    def ended(self) -> bool:
        """Whether its work is over, well or not."""
        return bool(self.greenlet.dead)


class MicrobatchScheduler(Generic[T]):
    """Micro-batches over one set of gates. ``open_gate`` loads what is behind a gate; ``head`` computes
    several heads' products together.
    """

    def __init__(
        self,
        open_gate: Callable[[Gate], None],
        head: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]],
        pulse: Callable[[], None],
    ) -> None:
        self._open_gate, self._head = open_gate, head
        self._pulse = pulse
        self._microbatches: list[_Microbatch[T]] = []

    def __len__(self) -> int:
        return len(self._microbatches)

    @property
    def rows(self) -> int:
        """Rows of all micro-batches together."""
        return sum(microbatch.rows for microbatch in self._microbatches)

    def start(self, work: Callable[[], T], rows: int) -> None:
        """Another micro-batch; it takes part from the next sweep on. ``work`` calls the model, or not at
        all.
        """
        self._microbatches.append(_Microbatch(work, rows))

    def run(self) -> list[tuple[T, float]]:
        """Sweep until at least one micro-batch has ended; results and each micro-batch's share of the time.
        Raises what a micro-batch raised.
        """
        while self._microbatches:
            self._sweep()
            if any(microbatch.ended for microbatch in self._microbatches):
                break
        ended = [microbatch for microbatch in self._microbatches if microbatch.ended]
        self._microbatches = [microbatch for microbatch in self._microbatches if not microbatch.ended]
        for microbatch in ended:
            if microbatch.failure is not None:
                raise microbatch.failure
        return [(cast("T", microbatch.result), microbatch.seconds) for microbatch in ended]

    def stop(self) -> None:
        """End all micro-batches where they stand."""
        microbatches, self._microbatches = self._microbatches, []
        for microbatch in microbatches:
            if not microbatch.ended:
                microbatch.greenlet.parent = getcurrent()
                microbatch.greenlet.throw(GreenletExit)

    # ── inside of a micro-batch ─────────────────────────────────────────────────────────────────────────────

    def current(self) -> _Microbatch[T] | None:
        """The micro-batch that runs now; None outside of micro-batches."""
        here = getcurrent()
        return next((microbatch for microbatch in self._microbatches if microbatch.greenlet is here), None)

    def begin_pass(self) -> None:
        """The micro-batch that runs now calls the model anew."""
        microbatch = self.current()
        if microbatch is not None:
            microbatch.passes += 1
            microbatch.steps = 0

    def wait(self, microbatch: _Microbatch[T], gate: Gate, states: torch.Tensor | None = None) -> Any:
        """Stop ``microbatch``, which runs now, at ``gate`` until it is open; with ``states``, until the
        head's product with them is there.
        """
        microbatch.gate, microbatch.states = gate, states
        microbatch.steps += 1
        return microbatch.greenlet.parent.switch()

    # ── outside ─────────────────────────────────────────────────────────────────────────────────────────────

    def _sweep(self) -> None:
        """Every micro-batch does one pass."""
        for microbatch in self._microbatches:
            if microbatch.gate is None and not microbatch.ended:
                self._resume(microbatch, None)
        at = {id(microbatch): microbatch.passes for microbatch in self._microbatches}
        while True:
            going = [
                microbatch
                for microbatch in self._microbatches
                if not microbatch.ended and microbatch.passes == at[id(microbatch)]
            ]
            if not going:
                return
            steps = min(microbatch.steps for microbatch in going)
            gate = next(microbatch.gate for microbatch in going if microbatch.steps == steps)
            assert gate is not None
            self._pass(
                gate,
                [microbatch for microbatch in going if microbatch.steps == steps and microbatch.gate == gate],
            )

    def _pass(self, gate: Gate, microbatches: Sequence[_Microbatch[T]]) -> None:
        started = time.perf_counter()
        rows = sum(microbatch.rows for microbatch in microbatches)
        try:
            if microbatches[0].states is None:
                self._open_gate(gate)
                values: Sequence[Any] = [None] * len(microbatches)
            else:
                values = self._head(
                    [microbatch.states for microbatch in microbatches if microbatch.states is not None]
                )
        except Exception as error:  # noqa: BLE001  # as out of memory: each micro-batch has its own way out
            for microbatch in microbatches:
                self._resume(microbatch, error)
            return
        opening = time.perf_counter() - started
        for microbatch, value in zip(microbatches, values, strict=True):
            microbatch.seconds += opening * microbatch.rows / rows
            self._resume(microbatch, value)
            self._pulse()

    def _resume(self, microbatch: _Microbatch[T], value: Any) -> None:
        """Let ``microbatch`` run to its next gate or its end; an exception is raised in it."""
        started = time.perf_counter()
        microbatch.gate = microbatch.states = None
        microbatch.greenlet.parent = getcurrent()
        if isinstance(value, Exception):
            microbatch.greenlet.throw(value.with_traceback(None))
        else:
            microbatch.greenlet.switch(value)
        microbatch.seconds += time.perf_counter() - started


class MicrobatchForward(Forward):
    """``Forward`` whose calls take part in sweeps when they come out of a micro-batch."""

    def __init__(self, model: torch.nn.Module, microbatches: MicrobatchScheduler[Any]) -> None:
        super().__init__(model)
        self._microbatches = microbatches

    def __call__(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: AnyCache, keep: int = 1
    ) -> torch.Tensor:
        """As ``Forward``."""
        self._microbatches.begin_pass()
        return super().__call__(ids, mask, positions, cache, keep)
