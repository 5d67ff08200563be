"""The store on disk against the perfect one, through any order of events: puts, finds, kills, damage, cuts of
the quota, clocks.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pipeline.stores.kv import admin
from pipeline.stores.kv.files import used_bytes
from pipeline.stores.kv.prefix_hash import BLOCK_TOKENS
from pipeline.stores.kv.store import KvStore
from tests.stores.kv.caches import MODEL, ids_of, is_right, opened, put
from tests.stores.kv.perfect import PerfectStore

LINES = [
    ids_of(1, 400),
    [*ids_of(1, 150), *ids_of(2, 250)],
    [*ids_of(1, 64), *ids_of(3, 336)],
    ids_of(4, 400),
]
LENGTHS = st.one_of(st.integers(1, 400), st.sampled_from([1, 63, 64, 65, 128, 150, 192, 400]))
PROMPTS = st.tuples(st.sampled_from(LINES), LENGTHS).map(lambda pair: pair[0][: pair[1]])
MODELS = st.sampled_from([MODEL, {**MODEL, "quantization": "nf4"}])
OWNERS = st.sampled_from([{"document": name} for name in "ab"])
AMPLE = 10**9


class StoreMachine(RuleBasedStateMachine):
    """``perfect`` remembers all that is surely in the store; what eviction or damage took is taken from it
    too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kv-"))
        self.perfect = PerfectStore()
        self.names: dict[str, str] = {}  # of the perfect store's entries, by the disk's
        self.quota_bytes = AMPLE
        self.now = 1e9

    @initialize()
    def start(self) -> None:
        self.stores = [self._open(), self._open()]  # as two processes would: nothing shared but the folder

    def _open(self) -> KvStore:
        return opened(self.folder / "store", quota_bytes=self.quota_bytes, clock=lambda: self.now)

    def teardown(self) -> None:
        for store in getattr(self, "stores", ()):
            store.close()
        shutil.rmtree(self.folder)

    def _agree(self) -> None:
        """Take from the perfect store what the disk gave up."""
        left = {held.entry_id for held in admin.ls(self.folder / "store").entries}
        for name in set(self.names) - left:
            self.perfect.discard(self.names.pop(name))

    @rule(
        who=st.integers(0, 1),
        ids=PROMPTS,
        kind=st.sampled_from(["document", "prefix"]),
        model=MODELS,
        with_states=st.booleans(),
        seconds=st.sampled_from([0.1, 1.0, 10.0]),
    )
    def put(self, who: int, ids: list[int], kind: str, model: Any, with_states: bool, seconds: float) -> None:
        receipt = put(self.stores[who], ids, kind, model=model, with_states=with_states, seconds=seconds)
        self._agree()
        if receipt.stored or receipt.reason == "already_stored":
            other = put(self.perfect, ids, kind, model=model, with_states=with_states, seconds=seconds)
            assert other.reason == receipt.reason
            assert self.names.setdefault(receipt.entry_id, other.entry_id) == other.entry_id
        else:
            assert self.quota_bytes < AMPLE
            assert receipt.reason in ("quota", "worth_less")

    @rule(
        who=st.integers(0, 1),
        ids=PROMPTS,
        owner=OWNERS,
        model=MODELS,
        data=st.data(),
        with_states=st.booleans(),
    )
    def checkpoint(
        self, who: int, ids: list[int], owner: Any, model: Any, data: st.DataObject, with_states: bool
    ) -> None:
        there = self.perfect.find_checkpoint(model, owner)
        begin = data.draw(st.sampled_from([0, there.tokens if there else 0, 50]))
        if begin >= len(ids):
            return
        options = {
            "begin": begin,
            "owner": owner,
            "model": model,
            "with_states": with_states,
            "extra": {"n": len(ids)},
        }
        receipt = put(self.stores[who], ids, "checkpoint", **options)
        if receipt.stored or receipt.reason == "gap":
            other = put(self.perfect, ids, "checkpoint", **options)
            assert other.reason == receipt.reason
            if receipt.stored:
                assert self.names.setdefault(receipt.entry_id, other.entry_id) == other.entry_id
        self._agree()

    @rule(who=st.integers(0, 1), owner=OWNERS, model=MODELS, become=st.sampled_from([None, "document"]))
    def finish(self, who: int, owner: Any, model: Any, become: Any) -> None:
        assert self.stores[who].finish_checkpoint(
            model, owner, become=become
        ) == self.perfect.finish_checkpoint(model, owner, become=become)
        self._agree()

    @rule(who=st.integers(0, 1), ids=PROMPTS, model=MODELS)
    def find(self, who: int, ids: list[int], model: Any) -> None:
        store = self.stores[who]
        found = store.lookup(ids, model)
        usable = self.perfect.usable_tokens(ids, model)
        best = max(usable.values(), default=0)
        if found is None:
            assert best < BLOCK_TOKENS
            return
        loaded = store.load(found)
        assert loaded is not None
        assert is_right(loaded, ids, model)
        assert loaded.tokens == usable[self.names[found.entry_id]]
        assert loaded.tokens >= best // BLOCK_TOKENS * BLOCK_TOKENS

    @rule(who=st.integers(0, 1), owner=OWNERS, model=MODELS)
    def resume(self, who: int, owner: Any, model: Any) -> None:
        found, wanted = (
            self.stores[who].find_checkpoint(model, owner),
            self.perfect.find_checkpoint(model, owner),
        )
        assert (found and found.tokens) == (wanted and wanted.tokens)
        if found and wanted:
            loaded, right = self.stores[who].load(found), self.perfect.load(wanted)
            assert loaded is not None
            assert right is not None
            assert (loaded.ids, loaded.extra) == (right.ids, right.extra)
            assert is_right(loaded, right.ids, model)

    @rule(who=st.integers(0, 1), data=st.data())
    def discard(self, who: int, data: st.DataObject) -> None:
        if self.names:
            name = data.draw(st.sampled_from(sorted(self.names, key=self.names.__getitem__)))
            assert self.stores[who].discard(name)
            self.perfect.discard(self.names.pop(name))

    @rule(who=st.integers(0, 1))
    def leave_and_come_back(self, who: int) -> None:
        self.stores[who].close()
        self.stores[who] = self._open()

    @rule(data=st.data(), where=st.floats(0, 1, exclude_max=True), cut=st.booleans())
    def damage(self, data: st.DataObject, where: float, cut: bool) -> None:
        """One entry loses or changes a byte; whoever looks for it next removes it and nothing else."""
        if not self.names:
            return
        name = data.draw(st.sampled_from(sorted(self.names, key=self.names.__getitem__)))
        folder = self.folder / "store" / "v1" / "entries" / name
        path = data.draw(st.sampled_from(sorted(folder.iterdir())))
        content = bytearray(path.read_bytes())
        place = int(where * len(content))
        content[place] ^= 1
        path.write_bytes(bytes(content[:place] if cut else content))
        admin.verify(self.folder / "store")
        self.perfect.discard(self.names.pop(name))

    @rule(share=st.floats(0, 1.5))
    def change_quota(self, share: float) -> None:
        self.quota_bytes = max(60_000, int(used_bytes(self.folder / "store") * share))
        for number, store in enumerate(self.stores):
            store.close()
            self.stores[number] = self._open()
        self._agree()

    @rule(days=st.floats(0, 30))
    def wait(self, days: float) -> None:
        self.now += days * 86_400

    @invariant()
    def never_over_quota(self) -> None:
        assert used_bytes(self.folder / "store") <= self.quota_bytes

    @invariant()
    def holds_what_it_should(self) -> None:
        listed = admin.ls(self.folder / "store").entries if hasattr(self, "stores") else ()
        assert {self.names[one.entry_id]: (one.kind, one.tokens) for one in listed} == {
            name: (kept.entry.kind, len(kept.entry.ids)) for name, kept in self.perfect.kept.items()
        }


QUICK = settings(
    max_examples=6, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
StoreMachine.TestCase.settings = QUICK
TestStoreMachine = StoreMachine.TestCase


@pytest.mark.full
def test_long_lives() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    thorough = settings(
        max_examples=40, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(StoreMachine, settings=thorough)
