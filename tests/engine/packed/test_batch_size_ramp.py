"""The ramp finds where more rows stop paying, and stays within its bound."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.packed.batch_size_ramp import BatchSizeRamp


def _climb(ramp: BatchSizeRamp, seconds: Callable[[int], float], passes: int = 60) -> int:
    for _ in range(passes):
        ramp.observe(ramp.rows, seconds(ramp.rows))
    return ramp.rows


def test_grows_while_a_token_gets_cheaper() -> None:
    assert _climb(BatchSizeRamp(128), lambda rows: 0.1 + 0.0001 * rows) == 128


def test_steps_back_where_more_rows_gain_nothing() -> None:
    saturated = lambda rows: 0.1 if rows <= 32 else 0.1 * rows / 32  # noqa: E731  # a machine in one line
    assert _climb(BatchSizeRamp(128), saturated) == 32


def test_passes_with_few_rows_say_nothing() -> None:
    ramp = BatchSizeRamp(128)
    for _ in range(50):
        ramp.observe(3, 0.01)
    assert ramp.rows == 16


def test_out_of_memory_is_final() -> None:
    ramp = BatchSizeRamp(128)
    ramp.shrink(5)
    assert _climb(ramp, lambda rows: 0.1) == 5


@given(st.integers(1, 300), st.lists(st.floats(1e-6, 10), max_size=200))
def test_stays_within_the_bound(most: int, seconds: list[float]) -> None:
    ramp = BatchSizeRamp(most)
    for value in seconds:
        ramp.observe(ramp.rows, value)
        assert 1 <= ramp.rows <= most
