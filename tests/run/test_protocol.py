"""Messages come out as they went in; a stream that ends in the middle of one ends quietly, and what is no
message is refused.
"""

from __future__ import annotations

import io
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import Config, load_config, parse_config
from pipeline.records import Decode, Generation, Plan, Request, Sampling, Score, Streaming
from pipeline.run.protocol import (
    Admit,
    Configure,
    Finish,
    FromWorker,
    Load,
    Loaded,
    MalformedMessage,
    Pulse,
    Refused,
    Release,
    Replies,
    Says,
    Started,
    StoreFacts,
    ToWorker,
    admission,
    admitted,
    decode_from_worker,
    decode_to_worker,
    encode,
    read_payload,
    write_message,
)

INTEGERS = st.integers(-(2**63), 2**63 - 1)
IDS = st.lists(st.integers(0, 2**31), max_size=20).map(tuple)
SAMPLING = st.none() | st.builds(
    Sampling, st.floats(0.1, 2), st.floats(0.1, 1), st.integers(0, 99), st.integers(0, 2**60)
)
ASKS = st.builds(Decode, st.integers(1, 999), SAMPLING, st.booleans()) | st.builds(
    Score, st.lists(IDS, max_size=4).map(tuple), st.floats(0, 1), st.booleans()
)
REQUESTS = st.builds(
    Request, st.integers(0, 2**40), IDS, ASKS, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)
)
ERRORS = st.none() | st.tuples(st.text(max_size=9), st.text(max_size=30))
GENERATIONS = st.builds(
    Generation,
    st.integers(0, 2**40),
    IDS,
    st.lists(st.floats(-1e6, 0), max_size=5).map(tuple),
    st.binary(max_size=9),
    st.sampled_from(["stop", "length", "repetition", "error"]),
    st.integers(0, 9999),
    st.none() | st.integers(0, 9999),
    st.floats(0, 1e4),
    st.integers(1, 99),
    st.sampled_from(["device", "offloaded"]),
    ERRORS,
    st.lists(st.text(max_size=9), max_size=2).map(tuple),
)
PLANS = st.builds(
    Plan,
    dtype=st.sampled_from(["float32", "bfloat16"]),
    quantization=st.sampled_from(["none", "nf4"]),
    placement=st.sampled_from(["device", "offloaded", "disk", "quantized"]),
    layout=st.sampled_from(["instructions_first", "document_first"]),
    context_tokens=st.integers(1, 2**40),
    max_batch_rows=st.integers(1, 999),
    batch_tokens=st.integers(1, 2**40),
    prefill_chunk_tokens=st.integers(1, 2**20),
    kv_bytes_per_token=st.integers(0, 2**40),
    threads=st.none() | st.integers(1, 64),
    lossy_last_resort=st.booleans(),
    pass_logits=st.none() | st.integers(1, 2**40),
    streaming=st.none()
    | st.builds(
        Streaming,
        st.integers(0, 2**62),
        st.integers(0, 2**62),
        st.sampled_from(["layer", "module"]),
        st.integers(1, 2**40),
    ),
    reasons=st.lists(st.text(max_size=20), max_size=3).map(tuple),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | INTEGERS
    | st.floats(allow_nan=False)
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)
FACTS = st.dictionaries(st.text(max_size=9), VALUES, max_size=4)
ID_LISTS = st.lists(st.integers(0, 2**40), max_size=9).map(tuple)
TO_WORKER: st.SearchStrategy[ToWorker] = st.one_of(
    st.builds(Configure, FACTS),
    st.builds(Load, PLANS, st.text(max_size=20)),
    st.builds(admission, st.lists(REQUESTS, max_size=3)),
    st.builds(Release, ID_LISTS),
    st.builds(Finish),
)
SECONDS = st.floats(0, 1e6)
FROM_WORKER: st.SearchStrategy[FromWorker] = st.one_of(
    st.builds(Says, st.text(max_size=20)),
    st.builds(Refused, st.text(max_size=9), st.text(max_size=20)),
    st.builds(Loaded, FACTS),
    st.builds(Started, ID_LISTS),
    st.builds(Pulse),
    st.builds(
        Replies,
        st.lists(GENERATIONS, max_size=3).map(tuple),
        SECONDS,
        SECONDS,
        st.integers(0, 2**50),
        st.integers(0, 2**50),
    ),
    st.builds(StoreFacts, FACTS),
)


@given(st.lists(TO_WORKER, max_size=4), st.lists(FROM_WORKER, max_size=4))
def test_every_message_comes_out_as_it_went_in(down: list[ToWorker], up: list[FromWorker]) -> None:
    stream = io.BytesIO()
    for message in (*down, *up):
        write_message(stream, message)
    stream.seek(0)
    assert [decode_to_worker(read_payload(stream) or b"") for _ in down] == down
    assert [decode_from_worker(read_payload(stream) or b"") for _ in up] == up
    assert read_payload(stream) is None


@given(st.lists(REQUESTS, max_size=4))
def test_requests_come_out_in_their_order_and_whole(requests: list[Request]) -> None:
    message = decode_to_worker(encode(admission(requests)))
    assert isinstance(message, Admit)
    assert admitted(message) == requests
    assert list(map(repr, admitted(message))) == list(map(repr, requests))  # down to ints that are floats


@given(st.data())
def test_a_torn_message_is_the_end(data: st.DataObject) -> None:
    stream = io.BytesIO()
    write_message(stream, data.draw(TO_WORKER | FROM_WORKER))
    whole = stream.getvalue()
    torn = io.BytesIO(whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert read_payload(torn) is None


@given(st.binary(max_size=40))
def test_what_is_no_message_is_refused(junk: bytes) -> None:
    with pytest.raises(MalformedMessage, match="begins no message of this program"):
        read_payload(io.BytesIO(b"x" + junk))
    for decode in (decode_to_worker, decode_from_worker):
        with pytest.raises(MalformedMessage, match="no message of this program"):
            decode(b"\xc1" + junk)  # a byte that msgpack never uses


@pytest.mark.parametrize(
    "payload", [encode(Says("x")), b"", b"\x80", b"\x91" * 100_000, encode(Pulse())[:-1]]
)
def test_a_worker_takes_only_what_is_meant_for_it(payload: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_to_worker(payload)


def test_a_huge_message_is_fine() -> None:
    huge = Replies((Generation(1, tuple(range(2_000_000)), features=bytes(2**26)),), 0, 0, 0, 0)
    stream = io.BytesIO()
    write_message(stream, huge)
    stream.seek(0)
    assert decode_from_worker(read_payload(stream) or b"") == huge


def test_facts_may_come_in_mappings_of_any_kind_and_nothing_else_is_packed() -> None:
    message = decode_from_worker(encode(Loaded({"map": MappingProxyType({"": "cpu"})})))
    assert message == Loaded({"map": {"": "cpu"}})
    with pytest.raises(NotImplementedError, match="complex"):
        encode(Loaded({"number": 1j}))


def arrived(config: Config) -> Config:
    message = decode_to_worker(encode(Configure(config.model_dump())))
    assert isinstance(message, Configure)
    return parse_config(message.config)


BASE: dict[str, Any] = {
    "model": {"id": "m"},
    "source": {"path": "in.jsonl"},
    "tasks": [{"name": "s", "kind": "summarize"}],
    "run": {"directory": "run"},
}


@given(
    st.none()
    | st.dictionaries(st.integers(0, 7) | st.just("cpu"), st.integers(1, 2**50), max_size=3)
    | st.just({0: "7GiB", "cpu": "24GiB"}),
    st.dictionaries(
        st.text(max_size=9), st.booleans() | st.text(max_size=9) | st.lists(st.floats(0, 1)), max_size=3
    ),
    st.dictionaries(
        st.text("abc", min_size=1, max_size=9), st.none() | st.text(max_size=9), min_size=2, max_size=4
    ),
    st.none() | st.just({"temperature": 0.5, "seed": 3}),
)
def test_a_configuration_arrives_as_it_was(
    memory: Any, options: dict[str, Any], labels: dict[str, Any], sampling: Any
) -> None:
    config = parse_config(
        {
            **BASE,
            "model": {"id": "m", "max_memory": memory, "template_options": options},
            "tasks": [*BASE["tasks"], {"name": "l", "kind": "label", "labels": labels}],
            "generation": {"sampling": sampling},
        }
    )
    assert arrived(config) == config


@pytest.mark.parametrize("path", sorted(Path("configs").glob("*.yaml")), ids=lambda path: path.name)
def test_so_do_the_ones_that_come_with_the_program(path: Path) -> None:
    config = load_config(path)
    assert arrived(config) == config
