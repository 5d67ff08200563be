"""A pytest plugin (``-p tests.pretend_card.on_card``): tests written for the CPU, with their tiny
models on the card and the references on the CPU. It works on a real card, too.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.equivalence import equality, families

_plain = families.tiny_model
torch.backends.cuda.matmul.allow_tf32 = False


def _tiny_model(
    name: str, dtype: torch.dtype = torch.float32, attention: str | None = None, seed: int = 0
) -> Any:
    twin = _plain(name, dtype, attention, seed)
    model = copy.deepcopy(twin).to("cuda")
    model.__dict__["_twin"] = twin  # beside the modules, so that nothing moves or counts it
    return model


def _on_twin(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(model: Any, *args: Any, **kwargs: Any) -> Any:
        return function(model.__dict__.get("_twin", model), *args, **kwargs)

    return call


families.tiny_model = _tiny_model
for _name in ("reference_text", "reference_scores", "reference_features"):
    setattr(equality, _name, _on_twin(getattr(equality, _name)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if "tests.pretend_card.extension" in sys.modules:
        from tests.pretend_card.report import report

        found = report()
        terminalreporter.write_line(f"pretended card: {len(found['races'])} races, {found['memory'][0]}")
        for race in found["races"][:5]:
            terminalreporter.write_line(race)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A race that was only noted, or found where nothing may be raised, is a failure of the session."""
    if "tests.pretend_card.extension" in sys.modules:
        from tests.pretend_card.extension import card

        if card.races():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
