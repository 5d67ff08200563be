"""Tests that ask for a CUDA device, on a pretended one."""

from __future__ import annotations

import pytest

from tests.engine.streaming.test_graphics_card import (  # noqa: F401  # the fixture goes with the test
    folder,
    test_as_resident_and_within_the_plan,
)

pytestmark = pytest.mark.full
