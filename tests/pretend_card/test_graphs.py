"""Graphs: captured without running anything, replayed on the same places; what may not happen meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

Cards = Callable[..., None]


@pytest.fixture(autouse=True)
def _streams_as_before(card: Any) -> Iterator[None]:
    """As in torch, a capture that fails leaves its stream the current one."""
    yield
    torch.cuda.set_stream(torch.cuda.default_stream())


def _captured(work: Callable[[], Any], **how: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **how):
        found = work()
    return graph, found


def test_a_capture_runs_nothing_and_a_replay_does_all(card: Any) -> None:
    given, held = torch.zeros(4, device="cuda"), torch.ones(4, device="cuda")

    def work() -> torch.Tensor:
        assert torch.cuda.is_current_stream_capturing()
        given.add_(1)
        return (given + held) * 2

    graph, out = _captured(work)
    assert not torch.cuda.is_current_stream_capturing()
    assert given.tolist() == [0] * 4
    assert out.isnan().all()
    for number in (1, 2):
        graph.replay()
        assert given.tolist() == [number] * 4
        assert out.tolist() == [2 * number + 2] * 4
    given.fill_(10)
    held.fill_(5)
    graph.replay()
    assert out.tolist() == [32] * 4


def test_a_replay_is_one_launch_of_its_nodes(card: Any) -> None:
    given = torch.zeros(4, device="cuda")
    card.reset_counts()
    graph, _ = _captured(lambda: (given + 1) * 2 - 3)
    assert card.counts().get("launches", 0) == 0
    assert graph.nodes() == ["aten::add.out", "aten::mul.out", "aten::sub.out"]
    graph.replay()
    counts = card.counts()
    assert (counts["launches"], counts["op graph replay"]) == (1, 1)
    assert (counts["graph replays"], counts["graph nodes"], counts["in graphs aten::mul.out"]) == (1, 3, 1)
    assert counts["bytes read by kernels"] == counts["bytes written by kernels"] == 3 * 16


def test_kernels_of_libraries_are_captured(card: Any, cards: Cards) -> None:
    """4-bit products, attention over sequences, norms and a random choice, on new values in old places."""
    import bitsandbytes
    from torch.nn.attention.varlen import varlen_attn

    cards("rtx4060")
    layer = bitsandbytes.nn.Linear4bit(64, 64, bias=False, compute_dtype=torch.float16, quant_type="nf4")
    layer.weight = bitsandbytes.nn.Params4bit(torch.randn(64, 64), requires_grad=False, quant_type="nf4")
    layer = layer.to("cuda")
    values = torch.randn(4, 64, dtype=torch.float16, device="cuda")
    ends = torch.tensor([0, 2, 4], dtype=torch.int32, device="cuda")
    used = torch.tensor([1, 2], dtype=torch.int32, device="cuda")

    def work() -> torch.Tensor:
        rows = torch.nn.functional.rms_norm(layer(values), (64,), values.new_ones(64))
        heads = rows.view(4, 4, 16)
        return varlen_attn(heads, heads, heads, ends, ends, 2, 2, seqused_k=used).argmax(-1)

    with torch.inference_mode():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # what a library makes at its first call is not made in a capture
            work()
        torch.cuda.current_stream().wait_stream(side)
        graph, out = _captured(work)
        for _ in range(3):
            values.normal_()
            used.copy_(torch.tensor([2, 1], dtype=torch.int32))
            graph.replay()
            assert torch.equal(out.cpu(), work().cpu())


def test_side_streams_join_by_events(card: Any) -> None:
    given, side = torch.ones(4, device="cuda"), torch.cuda.Stream()

    def work() -> torch.Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            twice = given * 2
        once = given + 1
        torch.cuda.current_stream().wait_stream(side)
        return twice + once

    graph, out = _captured(work)
    graph.replay()
    assert out.tolist() == [4] * 4


def test_pinned_copies_are_captured_and_look_again(card: Any) -> None:
    host, given = torch.ones(4, pin_memory=True), torch.empty(4, device="cuda")
    back = torch.zeros(4, pin_memory=True)

    def work() -> None:
        given.copy_(host, non_blocking=True)
        back.copy_(given * 2, non_blocking=True)

    graph, _ = _captured(work)
    assert back.tolist() == [0] * 4
    for number in (3.0, 4.0):
        host.fill_(number)
        graph.replay()
        assert back.isnan().all()  # under way
        torch.cuda.synchronize()
        assert back.tolist() == [2 * number] * 4
    assert card.counts()["bytes to the card"] == 2 * 16


def test_memory_of_a_graph_is_its_own_and_shared_by_its_pool(card: Any) -> None:
    given = torch.zeros(1 << 20, device="cuda")
    graph, out = _captured(lambda: given + 1)
    place = out.data_ptr()
    del out
    torch.cuda.empty_cache()
    kept = torch.cuda.memory_reserved()
    assert torch.empty(1 << 20, device="cuda").data_ptr() != place  # nobody else gets it
    other, out = _captured(lambda: given + 2, pool=graph.pool())
    assert out.data_ptr() == place
    del out
    for one in (graph, other):
        one.reset()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < kept


def test_the_drivers_nodes_take_memory(card: Any, cards: Cards) -> None:
    cards("8GiB", graph_node="1MiB")
    given = torch.zeros(4, device="cuda")
    free, others = torch.cuda.mem_get_info()[0], card.memory(0)["graphs"]
    graph, _ = _captured(lambda: given + 1 + 2)
    assert free - torch.cuda.mem_get_info()[0] == (2 << 20) + (
        2 << 20
    )  # two nodes, and a segment for outputs
    graph.reset()
    assert card.memory(0)["graphs"] == others


def _waits_for_another(given: torch.Tensor) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        given + 1


def _waits_for_what_was_before(given: torch.Tensor) -> None:
    torch.cuda.current_stream().wait_event(_EVENT[0])


_EVENT: list[Any] = []
_HOST = torch.ones(4)
REFUSED: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "a number for the host": (lambda given: given.sum().item(), "not permitted when stream is capturing"),
    "a truth for the host": (lambda given: bool((given > 0).all()), "not permitted when stream is capturing"),
    "nonzero": (lambda given: given.nonzero(), "not permitted when stream is capturing"),
    "selection by booleans": (lambda given: given[given > 0], "not permitted when stream is capturing"),
    "indices of the host": (lambda given: given[torch.tensor([1, 2])], "unless the CPU tensor is pinned"),
    "waiting for the card": (lambda _: torch.cuda.synchronize(), "not permitted when stream is capturing"),
    "waiting for a stream": (lambda _: torch.cuda.current_stream().synchronize(), "not permitted when"),
    "asking a stream": (lambda _: torch.cuda.current_stream().query(), "not permitted when stream is"),
    "waiting for an event": (
        lambda _: torch.cuda.current_stream().record_event().synchronize(),
        "last recorded in a capturing stream",
    ),
    "freeing": (lambda _: torch.cuda.empty_cache(), "not permitted when stream is capturing"),
    "a pageable copy": (lambda given: given.copy_(_HOST), "unless the CPU tensor is pinned"),
    "a pageable copy back": (lambda given: given.cpu(), "unless the CPU tensor is pinned"),
    "a pinned copy that waits": (
        lambda given: given.copy_(_HOST.pin_memory()),
        "not permitted when stream is capturing",
    ),
    "a tensor made of numbers": (lambda _: torch.tensor([1.0], device="cuda"), "unless the CPU tensor is"),
    "a stream that has not joined": (_waits_for_another, "uncaptured work in another stream"),
    "an event from before": (_waits_for_what_was_before, "uncaptured work in another stream"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_while_capturing(card: Any, name: str) -> None:
    work, message = REFUSED[name]
    given = torch.zeros(4, device="cuda")
    _EVENT[:] = [torch.cuda.current_stream().record_event()]
    torch.cuda.synchronize()
    work(given)  # all of it is fine at other times
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError) as found, torch.cuda.graph(graph):
        work(given)
    said = [str(error) for error in (found.value, found.value.__context__) if error is not None]
    assert any(message in text for text in said), said
    if "not permitted" in message or "uncaptured" in message:  # what CUDA itself refuses breaks the capture
        assert "previous error during capture" in str(found.value)
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            graph.replay()


def test_refuses_the_default_stream(card: Any) -> None:
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="captured on a non-default stream"):
        graph.capture_begin()


def test_refuses_work_that_nobody_waits_for_at_the_end(card: Any) -> None:
    given, side = torch.zeros(4, device="cuda"), torch.cuda.Stream()

    def work() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            given.add_(1)

    with pytest.raises(RuntimeError, match="unjoined work"):
        _captured(work)


def test_refuses_a_race_between_its_streams(card: Any) -> None:
    given, side = torch.zeros(4, device="cuda"), torch.cuda.Stream()

    def work() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            given.add_(1)
        given.mul_(2)

    with pytest.raises(RuntimeError) as found:
        _captured(work)
    assert "RACE: aten::mul.out" in str(found.value.__context__)
    card.forget_races()


def test_refuses_an_allocation_outside_of_its_pool(card: Any) -> None:
    def work() -> None:
        with torch.cuda.stream(torch.cuda.default_stream()):
            torch.empty(1000, device="cuda")

    with pytest.raises(RuntimeError) as found:
        _captured(work)
    assert "outside of the graph's pool" in str(found.value.__context__)


def test_memory_does_not_come_from_what_others_gave_back(card: Any, cards: Cards) -> None:
    """While a graph is captured nothing is freed, so that what is cached cannot help."""
    cards(f"{card.memory(0)['reserved'] + (1 << 30)}B", context="0B")
    kept = [torch.empty(900 << 20, dtype=torch.uint8, device="cuda")]

    def work() -> None:
        kept.clear()
        torch.empty(500 << 20, dtype=torch.uint8, device="cuda")

    with pytest.raises(torch.OutOfMemoryError):
        _captured(work)
    torch.cuda.set_stream(torch.cuda.default_stream())
    torch.empty(500 << 20, dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize("pinned", [False, True])
def test_a_replay_refuses_places_that_were_given_back(card: Any, pinned: bool) -> None:
    given = [torch.ones(4, pin_memory=True) if pinned else torch.ones(4, device="cuda")]
    target = torch.zeros(4, device="cuda")
    graph, _ = _captured(lambda: target.copy_(given[0], non_blocking=True))
    graph.replay()
    torch.cuda.synchronize()
    given.clear()
    again = torch.ones(4, pin_memory=True) if pinned else torch.ones(4, device="cuda")  # perhaps there
    assert again.sum() == 4
    with pytest.raises(RuntimeError, match="that was given back since it was captured"):
        graph.replay()


def test_a_replay_refuses_a_tensor_that_grew_elsewhere(card: Any) -> None:
    given = torch.ones(4, device="cuda")
    graph, _ = _captured(lambda: given + 1)
    given.resize_(1 << 20)
    with pytest.raises(RuntimeError, match="given back"):
        graph.replay()


def test_replays_are_ordered_as_all_else(card: Any) -> None:
    given, side = torch.zeros(4, device="cuda"), torch.cuda.Stream()
    graph, out = _captured(lambda: given + 1)
    graph.replay()
    with torch.cuda.stream(side), pytest.raises(RuntimeError, match="RACE"):
        out + 1
    card.forget_races()
    with torch.cuda.stream(side), pytest.raises(RuntimeError, match="RACE"):
        graph.replay()
    card.forget_races()
    torch.cuda.synchronize()


def test_only_followed_graphs_are_counted_alike(card: Any, cards: Cards) -> None:
    cards("8GiB", dry="1")
    given = torch.zeros(1 << 20, device="cuda")

    def work() -> torch.Tensor:
        return (given + 1).sum()

    graph, _ = _captured(work)
    graph.replay()
    assert graph.nodes() == ["aten::add.out", "aten::sum.IntList_out"]
    assert card.counts()["graph nodes"] == 2
