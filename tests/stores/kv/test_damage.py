"""Files that are not what was written: a miss and a counted warning, the entry gone, never a wrong hit, never
a crash.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.stores.kv.entry import Loaded, Segment
from pipeline.stores.kv.files import Files
from pipeline.stores.kv.store import KvStore
from tests.stores.kv.caches import MODEL, entry, ids_of, is_right, opened, put, ranges, states

IDS = ids_of(1, 300)
OTHER = ids_of(2, 100)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grown checkpoint with states, turned into a document, and another entry, which is to survive
    everything.
    """
    folder = tmp_path_factory.mktemp("kv") / "store"
    with opened(folder) as store:
        for begin, end in ((0, 120), (120, 300)):
            put(store, IDS[:end], "checkpoint", begin=begin, owner={"d": 1}, with_states=True)
        store.finish_checkpoint(MODEL, {"d": 1}, become="document")
        put(store, OTHER)
    return folder


def entry_folders(folder: Path) -> dict[int, Path]:
    """By their number of files."""
    return {len(list(path.iterdir())): path for path in (folder / "v1" / "entries").iterdir()}


def broken(pristine: Path, folder: Path) -> Iterator[Path]:
    """Endless fresh copies."""
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        yield Path(shutil.copytree(pristine, folder))


def ask(folder: Path) -> tuple[Loaded | None, KvStore]:
    """What the store makes of it, after which it is in order."""
    with opened(folder) as store:
        found = store.lookup(IDS, MODEL)
        loaded = store.load(found) if found else None
        other = store.lookup(OTHER, MODEL)
        assert other is not None
        kept = store.load(other)
        assert kept is not None
        assert is_right(kept, OTHER)
        return loaded, store


def is_a_counted_miss(folder: Path) -> bool:
    loaded, store = ask(folder)
    gone = len(list((folder / "v1" / "entries").iterdir())) == 1
    return loaded is None and store.counters.warnings["damaged"] == 1 and gone


def test_undamaged_it_is_a_hit(pristine: Path, tmp_path: Path) -> None:
    loaded, store = ask(next(broken(pristine, tmp_path / "s")))
    assert loaded is not None
    assert is_right(loaded, IDS)
    assert not store.counters.warnings


def test_bits_flipped_at_200_random_offsets(pristine: Path, tmp_path: Path) -> None:
    dice = random.Random(5)
    copies = broken(pristine, tmp_path / "s")
    for number in range(200):
        path = dice.choice(sorted(entry_folders(next(copies))[4].iterdir()))
        content = bytearray(path.read_bytes())
        # headers are small and matter most
        place = dice.randrange(min(len(content), 600 if number % 4 == 0 else len(content)))
        content[place] ^= 1 << dice.randrange(8)
        path.write_bytes(content)
        assert is_a_counted_miss(tmp_path / "s"), (path.name, place)


def test_cut_at_every_4_kb(pristine: Path, tmp_path: Path) -> None:
    copies = broken(pristine, tmp_path / "s")
    for name in sorted(path.name for path in entry_folders(pristine)[4].iterdir()):
        size = (entry_folders(pristine)[4] / name).stat().st_size
        for length in {*range(0, size, 4096), size - 1}:
            path = entry_folders(next(copies))[4] / name
            with path.open("r+b") as stream:
                stream.truncate(length)
            assert is_a_counted_miss(tmp_path / "s"), (name, length)


def test_bytes_added(pristine: Path, tmp_path: Path) -> None:
    copies = broken(pristine, tmp_path / "s")
    for name in sorted(path.name for path in entry_folders(pristine)[4].iterdir()):
        with (entry_folders(next(copies))[4] / name).open("ab") as stream:
            stream.write(b"{}")
        assert is_a_counted_miss(tmp_path / "s"), name


def test_files_removed(pristine: Path, tmp_path: Path) -> None:
    copies = broken(pristine, tmp_path / "s")
    for name in sorted(path.name for path in entry_folders(pristine)[4].iterdir()):
        (entry_folders(next(copies))[4] / name).unlink()
        assert is_a_counted_miss(tmp_path / "s"), name


def test_damage_after_the_index_was_read(pristine: Path, tmp_path: Path) -> None:
    copies = broken(pristine, tmp_path / "s")
    for how in ("flip", "cut", "remove"):
        with opened(next(copies)) as store:
            found = store.lookup(IDS, MODEL)
            assert found is not None
            path = next(entry_folders(tmp_path / "s")[4].glob("0*120.safetensors"))
            content = path.read_bytes()
            if how == "remove":
                path.unlink()
            else:
                path.write_bytes(content[:-1] + (b"" if how == "cut" else bytes([content[-1] ^ 1])))
            assert store.load(found) is None
            assert store.lookup(IDS, MODEL) is None
            assert store.counters.warnings == {"damaged": 1}
            assert put(store, IDS).stored


def test_a_foreign_models_file_under_the_right_name(pristine: Path, tmp_path: Path) -> None:
    foreign = {**MODEL, "model": "another of the same shape"}
    with opened(tmp_path / "foreign") as store:
        for begin, end in ((0, 120), (120, 300)):
            tensors = Segment(begin, ranges(IDS[:end], begin, foreign), states(IDS[:end]))
            store.put(entry(IDS[:end], "checkpoint", model=foreign, owner={"d": 1}), tensors)
    theirs = entry_folders(tmp_path / "foreign")[4]
    copies = broken(pristine, tmp_path / "s")
    for name in sorted(path.name for path in theirs.iterdir()):
        ours = entry_folders(next(copies))[4]
        same = (ours / name).read_bytes() == (theirs / name).read_bytes()
        shutil.copyfile(theirs / name, ours / name)
        assert same == name.startswith("state")  # the test's states do not depend on the model
        assert same or is_a_counted_miss(tmp_path / "s"), name
    ours = entry_folders(next(copies))[4]
    shutil.rmtree(ours)
    shutil.copytree(theirs, ours)  # all of it, whole in itself
    assert is_a_counted_miss(tmp_path / "s")


def test_a_whole_entry_under_its_own_name_is_just_another_model(pristine: Path, tmp_path: Path) -> None:
    foreign = {**MODEL, "model": "another of the same shape"}
    with opened(tmp_path / "foreign") as store:
        put(store, IDS, model=foreign)
    theirs = next((tmp_path / "foreign" / "v1" / "entries").iterdir())
    folder = next(broken(pristine, tmp_path / "s"))
    shutil.copytree(theirs, folder / "v1" / "entries" / theirs.name)
    loaded, _ = ask(folder)
    assert loaded is not None
    assert is_right(loaded, IDS)


def test_ids_that_the_digests_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should digests ever collide, the ids themselves decide."""
    from pipeline.stores.kv import prefix_hash

    monkeypatch.setattr(prefix_hash, "_digest", lambda before, block: bytes(8))
    with opened(tmp_path) as store:
        put(store, IDS)
        found = store.lookup(ids_of(9, 300), MODEL)
        assert found is not None
        assert store.load(found) is None
        assert store.counters.warnings["damaged"] == 1


def test_a_disk_that_cannot_be_read_is_a_miss(tmp_path: Path) -> None:
    class Unreadable(Files):
        def read(self, descriptor: int, into: memoryview, offset: int) -> int:
            raise OSError(5, "Input/output error")

    with opened(tmp_path, files=Unreadable()) as store:
        put(store, IDS)
        found = store.lookup(IDS, MODEL)
        assert found is not None
        assert store.load(found) is None
        assert store.counters.warnings == {"unreadable": 1}


def test_strange_things_in_the_store_are_left_alone_and_counted(pristine: Path, tmp_path: Path) -> None:
    folder = next(broken(pristine, tmp_path / "s"))
    (folder / "notes.txt").write_bytes(b"x" * 10_000)
    (folder / "v1" / "entries" / ".DS_Store").write_bytes(b"x" * 10_000)
    (folder / "v1" / "speeds.json").write_bytes(b"[]")
    (folder / "v1" / "journal").write_bytes(b"\xff\x00garbage\n" * 100)
    with opened(pristine) as plain, opened(folder) as store:
        assert store.used_bytes() >= plain.used_bytes() + 20_000
    assert is_right(ask(folder)[0] or pytest.fail("missed"), IDS)
    assert (folder / "notes.txt").exists()


def test_the_library_reads_our_files(pristine: Path) -> None:
    folder = entry_folders(pristine)[4]
    first, second = (load_file(path) for path in sorted(folder.glob("0*.safetensors")))
    assert first["ids"].tolist() + second["ids"].tolist() == IDS
    for name, tensor in ranges(IDS).items():
        assert torch.equal(torch.cat([first[name], second[name]], dim=-2), tensor)
    kept = load_file(next(folder.glob("state*.safetensors")))
    assert torch.equal(kept["L9.recurrent"], states(IDS)["L9.recurrent"])
