"""Tests in this folder run on pretended cards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def card() -> Iterator[Any]:
    """The device; a test that leaves a race behind has failed."""
    if not os.environ.get("PRETEND_CARD"):
        pytest.skip("this process was not started with PRETEND_CARD")
    from tests.pretend_card.extension import card as device

    device.forget_races()
    yield device
    assert device.races() == []
