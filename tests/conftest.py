"""Fixtures for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pipeline.engine.demo_model import demo_model

# Machines are shared: how long an example takes says nothing about whether it is right.
settings.register_profile("overnight", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("overnight")


@pytest.fixture(scope="session")
def demo_model_folder() -> Path:
    """The packaged demo model as a plain folder; converted once, into the user's cache."""
    return demo_model(print)
