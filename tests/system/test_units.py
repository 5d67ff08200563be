"""Bytes and seconds in words, and sizes read from words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.system.units import amount, duration, parse_bytes


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (12, "12 B"),
        (16 * 2**10, "16 KiB"),
        (512 * 2**20, "512 MiB"),
        (1000 * 2**20, "1,000 MiB"),
        (2**30, "1.0 GiB"),
        (7.5 * 2**30, "7.5 GiB"),
    ],
)
def test_sizes(count: float, words: str) -> None:
    assert amount(count) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.0021, "2.1 ms"),
        (0.043, "43 ms"),
        (1.23, "1.2 s"),
        (45, "45 s"),
        (99.9, "99.9 s"),
        (100, "2 min"),
        (600, "10 min"),
        (5960, "99 min"),
        (6000, "1 h 40 min"),
        (11_100, "3 h 05 min"),
        (27_000, "7 h 30 min"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@given(st.floats(0, 10**7))
def test_a_duration_says_its_seconds_within_its_last_digit(seconds: float) -> None:
    units = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
    found = re.findall(r"([\d.,]+) (ms|s|min|h)\b", duration(seconds))
    said = sum(float(number.replace(",", "")) * units[unit] for number, unit in found)
    assert said == pytest.approx(seconds, abs=30 if seconds >= 99 else 0.05 + 0.0005)


@given(st.floats(2**20, 2**50))
def test_a_size_that_is_written_can_be_read(count: float) -> None:
    read = parse_bytes(amount(count).replace(",", ""))
    assert read == pytest.approx(count, rel=0.05)
