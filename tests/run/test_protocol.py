"""Messages come out as they went in, and a stream that ends in the middle of one ends quietly."""

from __future__ import annotations

import io
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.records import Decode, Generation, Request, Sampling, Score, pack_generation, unpack_generation
from pipeline.run.protocol import pack_request, read_message, unpack_request, write_message

IDS = st.lists(st.integers(0, 2**31), max_size=20).map(tuple)
SAMPLING = st.none() | st.builds(
    Sampling, st.floats(0.1, 2), st.floats(0.1, 1), st.integers(0, 99), st.integers(0, 2**60)
)
ASKS = st.builds(Decode, st.integers(1, 999), SAMPLING) | st.builds(
    Score, st.lists(IDS, max_size=4).map(tuple), st.floats(0, 1), st.booleans()
)
REQUESTS = st.builds(Request, st.integers(0, 2**40), IDS, ASKS, st.integers(0, 9))
ERRORS = st.none() | st.tuples(st.text(max_size=9), st.text(max_size=30))
GENERATIONS = st.builds(
    Generation,
    st.integers(0, 2**40),
    IDS,
    st.lists(st.floats(-1e6, 0), max_size=5).map(tuple),
    st.binary(max_size=9),
    st.sampled_from(["stop", "length", "repetition", "error"]),
    st.integers(0, 9999),
    st.floats(0, 1e4),
    st.integers(1, 99),
    st.sampled_from(["device", "offloaded"]),
    ERRORS,
)


@given(st.lists(REQUESTS, max_size=3), st.lists(GENERATIONS, max_size=3))
def test_round_trip(requests: list[Request], generations: list[Generation]) -> None:
    stream = io.BytesIO()
    write_message(stream, {"admit": [pack_request(request) for request in requests]})
    write_message(stream, {"replies": [pack_generation(generation) for generation in generations]})
    stream.seek(0)
    first, second = read_message(stream), read_message(stream)
    assert first is not None
    assert second is not None
    assert [unpack_request(packed) for packed in first["admit"]] == requests
    assert [unpack_generation(packed) for packed in second["replies"]] == generations
    assert read_message(stream) is None


@given(
    st.dictionaries(
        st.text(max_size=5), st.integers().filter(lambda n: abs(n) < 2**60) | st.text(max_size=9), max_size=4
    ),
    st.data(),
)
def test_a_torn_message_is_the_end(message: dict[str, Any], data: st.DataObject) -> None:
    stream = io.BytesIO()
    write_message(stream, message)
    whole = stream.getvalue()
    torn = io.BytesIO(whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert read_message(torn) is None
