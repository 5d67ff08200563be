"""Which cases of a long list are in the quick tier."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick(every: Iterable[Any], *chosen: Any) -> list[Any]:
    """``every`` case as parameters, all but the ``chosen`` ones of the full tier only."""
    cases = list(every)
    assert all(case in cases for case in chosen), "a case that is not there"
    return [case if case in chosen else pytest.param(case, marks=pytest.mark.full) for case in cases]
