"""Fixtures for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.engine.demo_model import demo_model


@pytest.fixture(scope="session")
def demo_model_folder() -> Path:
    """The packaged demo model as a plain folder; converted once, into the user's cache."""
    return demo_model(print)
