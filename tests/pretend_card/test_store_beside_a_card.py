"""The KV store beside a card: what waits to be written lies in host memory, what computes waits for none of
it, and what was loaded goes into memory of the card.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.engine.packed.page_allocator import Run
from pipeline.engine.packed.page_pool import KvPool
from pipeline.stores.kv.entry import Segment
from pipeline.stores.kv.writer import BackgroundWriter
from tests.stores.kv.caches import MODEL, entry, ids_of, is_right, opened, ranges
from tests.stores.kv.test_writer import Gate

CARD = torch.device("cuda", 0)


def near(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to(CARD) for name, tensor in tensors.items()}


def written(folder: Path, put: Callable[[BackgroundWriter], Any], ids: tuple[int, ...]) -> bool:
    """Whether what ``put`` puts is right on the disk, which begins to write when all has been put."""
    disk = Gate()
    with opened(folder, files=disk) as store:
        writer = BackgroundWriter(store)
        put(writer)
        disk.open.set()
        assert writer.close(20)
        found = store.lookup(ids, MODEL)
        loaded = None if found is None else store.load(found)
        return loaded is not None and is_right(loaded, ids)


@pytest.mark.parametrize("copy", [False, True])
def test_what_waits_to_be_written_is_not_on_the_card(copy: bool, tmp_path: Path, card: Any) -> None:
    ids, before = ids_of(1, 3000), card.memory(0)["allocated"]
    waiting: list[int] = []

    def put(writer: BackgroundWriter) -> None:
        writer.put(entry(ids), Segment(0, near(ranges(ids))), copy=copy)
        torch.cuda.synchronize()  # the copy is done; the disk has not begun
        waiting.append(card.memory(0)["allocated"] - before)

    assert written(tmp_path, put, ids)
    assert waiting == [0]


def test_copies_go_out_beside_the_computing_stream_and_no_one_waits(tmp_path: Path, card: Any) -> None:
    ids = ids_of(1, 300)
    tensors = near(ranges(ids))
    computed = {name: tensor * 2 for name, tensor in tensors.items()}  # still on its way, too
    before = card.counts()

    def put(writer: BackgroundWriter) -> None:
        halves = {name: tensor / 2 for name, tensor in computed.items()}
        writer.put(entry(ids), Segment(0, halves), copy=False)
        for tensor in tensors.values():
            tensor.add_(1.0)  # computing goes on in its own stream

    assert written(tmp_path, put, ids)
    after = card.counts()
    counts = {name: after[name] - before.get(name, 0) for name in after}
    assert counts.get("waiting copies from the card", 0) == 0
    assert counts["non_blocking copies from the card"] == len(tensors)
    assert counts.get("host waits: device", 0) == counts.get("host waits: stream", 0) == 0


def test_slices_of_a_pool_may_be_used_again_at_once(tmp_path: Path) -> None:
    ids = ids_of(1, 100)
    pool = {name: torch.cat([tensor, tensor], dim=-2).to(CARD) for name, tensor in ranges(ids).items()}

    def put(writer: BackgroundWriter) -> None:
        writer.put(entry(ids), Segment(0, {name: tensor[:, :100] for name, tensor in pool.items()}))
        for tensor in pool.values():
            tensor.zero_()

    assert written(tmp_path, put, ids)


def test_the_queue_counts_what_is_in_host_memory(tmp_path: Path) -> None:
    disk = Gate()
    with opened(tmp_path, files=disk) as store:
        writer = BackgroundWriter(store, queued_bytes=20_000)
        put = [
            writer.put(entry(ids_of(n, 50)), Segment(0, near(ranges(ids_of(n, 50)))), copy=False)
            for n in (1, 2)
        ]
        assert [one is None for one in put] == [False, True]  # 12,800 bytes each
        disk.open.set()
        assert writer.close(20)


def test_a_pool_that_begins_with_what_was_loaded_is_on_the_card() -> None:
    pool = KvPool(4, CARD)
    loaded = torch.arange(24, dtype=torch.float16).view(6, 2, 2)
    run = Run(1, 1)
    pool.fill(0, run, (loaded, -loaded))
    ((_, (keys, values)),) = pool.read(run, 0, 6)
    assert keys.device == values.device == CARD
    assert torch.equal(keys.cpu(), loaded)
    assert torch.equal(values.cpu(), -loaded)
