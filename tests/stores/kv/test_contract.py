"""What any store must do; the perfect one is here to show that the suite asks for nothing impossible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.stores.kv.entry import Segment
from tests.stores.kv.caches import MODEL, entry, equal, ids_of, is_right, opened, put, ranges
from tests.stores.kv.perfect import PerfectStore

OWNER = {"task": "summary", "document": "d1", "part": 0}


@pytest.fixture(params=["perfect", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made: Any = PerfectStore() if request.param == "perfect" else opened(tmp_path / "store")
    yield made
    made.close()


def loaded(store: Any, ids: list[int], model: Any = MODEL) -> Any:
    found = store.lookup(ids, model)
    return store.load(found) if found else None


def test_nothing_is_found_in_an_empty_store(store: Any) -> None:
    assert store.lookup(ids_of(1, 100), MODEL) is None
    assert store.find_checkpoint(MODEL, OWNER) is None
    assert not store.finish_checkpoint(MODEL, OWNER)
    assert not store.discard("0" * 32)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 300])
def test_what_was_put_is_loaded_bit_for_bit(store: Any, count: int) -> None:
    ids = ids_of(1, count)
    receipt = put(store, ids, seconds=2.5, owner=OWNER)
    assert receipt.stored
    found = store.lookup(ids, MODEL)
    assert (found.entry_id, found.tokens, found.entry_tokens, found.entry_seconds) == (
        receipt.entry_id,
        count,
        count,
        2.5,
    )
    assert (found.kind, found.owner) == ("document", OWNER)
    got = store.load(found)
    assert is_right(got, ids)
    assert got.layer_kinds == ("full", "full")


def test_every_dtype_and_shape_comes_back(store: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"{dtype}.x": torch.randint(0, 2 if dtype == torch.bool else 100, (3, 10, 5), generator=generator).to(
            dtype
        )
        for dtype in (
            torch.float64,
            torch.float32,
            torch.float16,
            torch.bfloat16,
            torch.int64,
            torch.int32,
            torch.int8,
            torch.uint8,
            torch.bool,
        )
    }
    tensors["nan.k"] = torch.full((10, 4), float("nan"))
    kept = {
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "flat.k": torch.arange(7.0),
        "turned": torch.randn(4, 6).T,
    }
    store.put(entry(range(10)), Segment(0, tensors, kept))
    got = loaded(store, list(range(10)))
    assert equal(got.ranges, tensors)
    assert equal(got.states, kept)


def test_a_longer_question_uses_all_of_the_entry(store: Any) -> None:
    ids = ids_of(1, 130)
    put(store, ids)
    got = loaded(store, [*ids, 7, 8])
    assert got.tokens == 130
    assert is_right(got, ids)


def test_a_beginning_in_common_is_used_to_the_token(store: Any) -> None:
    ids = ids_of(1, 300)
    put(store, ids)
    got = loaded(store, [*ids[:150], -1 % 50_000, 3])
    assert got.tokens == 150
    assert is_right(got, ids)
    assert all(
        tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        for tensor in got.ranges.values()
    )


def test_the_longest_beginning_wins(store: Any) -> None:
    ids = ids_of(1, 400)
    put(store, ids[:100], "prefix")
    put(store, ids[:320])
    put(store, [*ids[:200], *ids_of(2, 300)])
    assert loaded(store, ids).tokens == 320
    assert loaded(store, ids[:250]).tokens == 250
    assert store.lookup(ids[:320], MODEL).compute_seconds == pytest.approx(1)
    assert store.lookup(ids[:160], MODEL).compute_seconds < 1
    assert loaded(store, ids[:100]).tokens == 100


def test_states_are_of_one_place_only(store: Any) -> None:
    ids = ids_of(1, 200)
    put(store, ids, with_states=True)
    assert store.lookup(ids[:199], MODEL) is None
    assert store.lookup([*ids[:199], 1], MODEL) is None
    got = loaded(store, [*ids, 5])
    assert got.tokens == 200
    assert is_right(got, ids)


def test_an_entry_of_states_alone(store: Any) -> None:
    store.put(entry(range(70)), Segment(0, {}, {"L0.state": torch.arange(5.0)}))
    got = loaded(store, list(range(70)))
    assert (got.tokens, dict(got.ranges), got.states["L0.state"].tolist()) == (70, {}, [0, 1, 2, 3, 4])


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"revision": "2"},
        {"quantization": "nf4"},
        {"dtype": "bfloat16"},
        {"attention": "eager"},
        {"rope": {"theta": 1e6}},
        {"more": 1},
    ],
)
def test_another_fingerprint_is_another_store(store: Any, change: dict[str, Any]) -> None:
    ids = ids_of(1, 100)
    put(store, ids)
    other = {**MODEL, **change}
    assert store.lookup(ids, other) is None
    assert put(store, ids, model=other).stored
    assert is_right(loaded(store, ids, other), ids, other)
    assert is_right(loaded(store, ids), ids)


def test_the_order_of_a_fingerprints_keys_means_nothing(store: Any) -> None:
    put(store, ids_of(1, 100))
    assert (
        store.lookup(ids_of(1, 100), {name: MODEL[name] for name in sorted(MODEL, reverse=True)}) is not None
    )


def test_what_is_stored_is_not_stored_again(store: Any) -> None:
    ids = ids_of(1, 100)
    first = put(store, ids)
    second = put(store, ids)
    assert (second.entry_id, second.reason, second.stored) == (first.entry_id, "already_stored", False)
    assert put(store, ids, "prefix").reason == "already_stored"
    assert store.lookup(ids, MODEL).kind == "prefix"


@pytest.mark.parametrize("with_states", [False, True])
def test_a_checkpoint_grows(store: Any, with_states: bool) -> None:
    ids = ids_of(1, 300)
    first = put(store, ids[:100], "checkpoint", owner=OWNER, with_states=with_states, extra={"decoded": []})
    for begin, end in ((100, 190), (190, 191), (191, 300)):
        grown = put(
            store,
            ids[:end],
            "checkpoint",
            begin=begin,
            owner=OWNER,
            with_states=with_states,
            extra={"decoded": [end]},
            seconds=end,
        )
        assert grown.entry_id == first.entry_id
        found = store.find_checkpoint(MODEL, OWNER)
        assert (found.tokens, found.entry_seconds) == (end, end)
        got = store.load(found)
        assert got.extra == {"decoded": [end]}
        assert is_right(got, ids)


def test_a_checkpoint_does_not_grow_over_a_gap_or_with_other_ids(store: Any) -> None:
    ids = ids_of(1, 300)
    put(store, ids[:100], "checkpoint", owner=OWNER)
    assert put(store, ids[:200], "checkpoint", begin=120, owner=OWNER).reason == "gap"
    assert put(store, ids[:200], "checkpoint", begin=90, owner=OWNER).reason == "gap"
    assert put(store, ids[:200], "checkpoint", begin=100, owner={"task": "other"}).reason == "gap"
    assert put(store, [*ids[:99], 1, *ids[100:200]], "checkpoint", begin=100, owner=OWNER).reason == "gap"
    assert store.find_checkpoint(MODEL, OWNER).tokens == 100


def test_a_new_checkpoint_takes_the_place_of_the_old(store: Any) -> None:
    put(store, ids_of(1, 200), "checkpoint", owner=OWNER)
    put(store, ids_of(2, 100), "checkpoint", owner=OWNER)
    assert is_right(store.load(store.find_checkpoint(MODEL, OWNER)), ids_of(2, 100))
    assert store.lookup(ids_of(1, 200), MODEL) is None


def test_a_finished_checkpoint_goes_or_stays_as_a_document(store: Any) -> None:
    ids = ids_of(1, 200)
    put(store, ids[:100], "checkpoint", owner=OWNER, extra={"decoded": [1]})
    put(store, ids, "checkpoint", begin=100, owner=OWNER, extra={"decoded": [1]})
    assert store.finish_checkpoint(MODEL, OWNER, become="document")
    assert store.find_checkpoint(MODEL, OWNER) is None
    assert store.lookup(ids, MODEL).kind == "document"
    got = loaded(store, ids)
    assert is_right(got, ids)
    assert got.extra == {}
    put(store, ids_of(2, 100), "checkpoint", owner=OWNER)
    assert store.finish_checkpoint(MODEL, OWNER)
    assert store.lookup(ids_of(2, 100), MODEL) is None


def test_a_checkpoint_serves_others_too(store: Any) -> None:
    ids = ids_of(1, 200)
    put(store, ids, "checkpoint", owner=OWNER)
    assert is_right(loaded(store, ids[:150]), ids)


def test_discarded_is_gone_even_for_who_had_found_it(store: Any) -> None:
    receipt = put(store, ids_of(1, 100))
    found = store.lookup(ids_of(1, 100), MODEL)
    assert store.discard(receipt.entry_id)
    assert store.load(found) is None
    assert store.lookup(ids_of(1, 100), MODEL) is None


def test_what_is_loaded_is_the_users_own(store: Any) -> None:
    ids = ids_of(1, 100)
    put(store, ids)
    for tensor in loaded(store, ids).ranges.values():
        tensor.zero_()
    assert is_right(loaded(store, ids), ids)


def test_impossible_puts_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        with pytest.raises(ValueError, match="holds nothing"):
            store.put(entry([]), Segment(0, {}))
        with pytest.raises(ValueError, match=r"is not \(\.\.\., 3, width\)"):
            store.put(entry([1, 2, 3]), Segment(0, {"L0.k": torch.zeros(2, 4, 8)}))
        with pytest.raises(ValueError, match="only checkpoints grow"):
            put(store, ids_of(1, 100), begin=50)
        with pytest.raises(ValueError, match="name is taken"):
            store.put(entry([1]), Segment(0, {"ids": torch.zeros(1, 1)}))
        with pytest.raises(ValueError, match="complex64"):
            store.put(entry([1]), Segment(0, {}, {"x": torch.zeros(1, dtype=torch.complex64)}))
        with pytest.raises(TypeError):
            store.put(entry([1], model={"model": object()}), Segment(0, ranges([1])))
        assert store.counters.stored == 0
