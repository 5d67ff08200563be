"""What passes may cost on a card: bars of counted launches, waits and bytes, which cannot be noisy.

Counted by ``tests.bench.card.counting`` over whole-size layers that are followed and not computed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.planner.pass_time import COUNTED, SHARED_LAUNCHES, UNRECORDED
from tests.bench.card import pairs
from tests.bench.card.children import on_a_card
from tests.bench.card.tables import link_share, written_share

pytestmark = pytest.mark.timeout(900)  # half a minute where nothing else goes on


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All counts, by a process of its own: a dry card is one from the first import on."""
    folder: Path = tmp_path_factory.mktemp("models")
    asked = ("decode", "shared", "labels", "offloaded")  # the processors of a 4060, and room for all logits
    return on_a_card("tests.bench.card.counting", str(folder), *asked, cards="24GiB", folder=folder)


def test_a_layer_takes_at_most_30_launches(counted: Any) -> None:
    decode = counted["decode"]
    assert (decode["rows"], decode["layers"]) == (32, 36)
    assert 0 < decode["layer_launches"] <= pairs.LAYER_LAUNCHES, decode["layer_kernels"]


def test_a_layer_behind_a_shared_beginning_takes_five_more(counted: Any) -> None:
    shared = counted["shared"]
    kernels = shared["layer_kernels"]
    assert kernels["flash_attn::varlen_fwd"] == 2
    assert shared["layer_launches"] <= pairs.SHARED_LAYER_LAUNCHES, kernels
    assert shared["layer_launches"] <= counted["decode"]["layer_launches"] + SHARED_LAUNCHES
    assert shared["host_waits"] <= pairs.HOST_WAITS


def test_a_recorded_pass_is_one_replay(counted: Any) -> None:
    decode = counted["decode"]
    assert decode["replays"] == 1
    assert decode["launches"] <= pairs.REPLAYED_LAUNCHES


def test_the_host_waits_once_a_pass(counted: Any) -> None:
    decode = counted["decode"]
    assert decode["host_waits"] <= pairs.HOST_WAITS, decode["waits_by_kind"]


def test_offloaded_keys_and_values_go_over_the_link_once(counted: Any) -> None:
    offloaded = counted["offloaded"]
    assert offloaded["to_be_read_bytes"] > 2**20
    assert 0.9 < link_share(offloaded) <= pairs.LINK_SHARE
    assert 0.9 < written_share(offloaded) <= pairs.LINK_SHARE


def test_scores_of_a_label_batch_come_in_two_transfers(counted: Any) -> None:
    labels = counted["labels"]
    assert (labels["documents"], labels["labels"], labels["passes"]) == (64, 77, 1)
    assert 0 < labels["transfers"] <= pairs.LABEL_TRANSFERS


def test_the_plan_reckons_with_no_less_than_what_is_counted(counted: Any) -> None:
    decode = counted["decode"]
    assert decode["layer_launches"] <= COUNTED.layer_launches == UNRECORDED.layer_launches
    assert decode["nodes"] <= COUNTED.layer_launches * decode["layers"]
    assert decode["launches"] <= COUNTED.pass_launches
    beside = decode["eager_launches"] - decode["layers"] * decode["layer_launches"]
    assert beside <= UNRECORDED.pass_launches
    assert decode["host_waits"] <= COUNTED.host_waits
    assert COUNTED.replayed == bool(decode["replays"])
