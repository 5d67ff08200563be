"""Many micro-batches in one sweep: each runs the model's own forward in a lane of its own, and stops wherever
weights are needed.

A lane is a greenlet: one thread, one at a time, handed on where a lane stops at a gate. When all lanes of a
sweep stand at a gate, it is opened once and all of them pass, one after another; so a layer is loaded once
for all rows there are (Sheng et al., FlexGen, 2023), and what is inside of it (masks, rotary positions,
caches, routing) stays the model's own code. A lane that begins its next pass waits for the next sweep.
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


class _Lane(Generic[T]):
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
        except BaseException as error:  # noqa: BLE001  # handed to the one who runs the lanes
            self.failure = error

    @property
    def ended(self) -> bool:
        """Whether its work is over, well or not."""
        return bool(self.greenlet.dead)


class Lanes(Generic[T]):
    """Lanes over one set of gates. ``open_gate`` loads what is behind a gate; ``head`` computes several
    heads' products together.
    """

    def __init__(
        self,
        open_gate: Callable[[Gate], None],
        head: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]],
        pulse: Callable[[], None],
    ) -> None:
        self._open_gate, self._head = open_gate, head
        self._pulse = pulse
        self._lanes: list[_Lane[T]] = []

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def rows(self) -> int:
        """Rows of all lanes together."""
        return sum(lane.rows for lane in self._lanes)

    def start(self, work: Callable[[], T], rows: int) -> None:
        """Another lane; it takes part from the next sweep on. ``work`` calls the model, or not at all."""
        self._lanes.append(_Lane(work, rows))

    def run(self) -> list[tuple[T, float]]:
        """Sweep until at least one lane has ended; results and each lane's share of the time. Raises what a
        lane raised.
        """
        while self._lanes:
            self._sweep()
            if any(lane.ended for lane in self._lanes):
                break
        ended = [lane for lane in self._lanes if lane.ended]
        self._lanes = [lane for lane in self._lanes if not lane.ended]
        for lane in ended:
            if lane.failure is not None:
                raise lane.failure
        return [(cast("T", lane.result), lane.seconds) for lane in ended]

    def stop(self) -> None:
        """End all lanes where they stand."""
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            if not lane.ended:
                lane.greenlet.parent = getcurrent()
                lane.greenlet.throw(GreenletExit)

    # ── inside of a lane ────────────────────────────────────────────────────────────────────────────────────

    def current(self) -> _Lane[T] | None:
        """The lane that runs now; None outside of lanes."""
        here = getcurrent()
        return next((lane for lane in self._lanes if lane.greenlet is here), None)

    def begin_pass(self) -> None:
        """The lane that runs now calls the model anew."""
        lane = self.current()
        if lane is not None:
            lane.passes += 1
            lane.steps = 0

    def wait(self, lane: _Lane[T], gate: Gate, states: torch.Tensor | None = None) -> Any:
        """Stop ``lane``, which runs now, at ``gate`` until it is open; with ``states``, until the head's
        product with them is there.
        """
        lane.gate, lane.states = gate, states
        lane.steps += 1
        return lane.greenlet.parent.switch()

    # ── outside ─────────────────────────────────────────────────────────────────────────────────────────────

    def _sweep(self) -> None:
        """Every lane does one pass."""
        for lane in self._lanes:
            if lane.gate is None and not lane.ended:
                self._resume(lane, None)
        at = {id(lane): lane.passes for lane in self._lanes}
        while True:
            going = [lane for lane in self._lanes if not lane.ended and lane.passes == at[id(lane)]]
            if not going:
                return
            steps = min(lane.steps for lane in going)
            gate = next(lane.gate for lane in going if lane.steps == steps)
            assert gate is not None
            self._pass(gate, [lane for lane in going if lane.steps == steps and lane.gate == gate])

    def _pass(self, gate: Gate, lanes: Sequence[_Lane[T]]) -> None:
        started = time.perf_counter()
        rows = sum(lane.rows for lane in lanes)
        try:
            if lanes[0].states is None:
                self._open_gate(gate)
                values: Sequence[Any] = [None] * len(lanes)
            else:
                values = self._head([lane.states for lane in lanes if lane.states is not None])
        except Exception as error:  # noqa: BLE001  # as out of memory: each lane has its own way out
            for lane in lanes:
                self._resume(lane, error)
            return
        opening = time.perf_counter() - started
        for lane, value in zip(lanes, values, strict=True):
            lane.seconds += opening * lane.rows / rows
            self._resume(lane, value)
            self._pulse()

    def _resume(self, lane: _Lane[T], value: Any) -> None:
        """Let ``lane`` run to its next gate or its end; an exception is raised in it."""
        started = time.perf_counter()
        lane.gate = lane.states = None
        lane.greenlet.parent = getcurrent()
        if isinstance(value, Exception):
            lane.greenlet.throw(value.with_traceback(None))
        else:
            lane.greenlet.switch(value)
        lane.seconds += time.perf_counter() - started


class LaneForward(Forward):
    """``Forward`` whose calls take part in sweeps when they come out of a lane."""

    def __init__(self, model: torch.nn.Module, lanes: Lanes[Any]) -> None:
        super().__init__(model)
        self._lanes = lanes

    def __call__(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: AnyCache, keep: int = 1
    ) -> torch.Tensor:
        """As ``Forward``."""
        self._lanes.begin_pass()
        return super().__call__(ids, mask, positions, cache, keep)
