"""bitsandbytes' own choice between its fused 4-bit kernel and a copy in 16 bits, asked for cards that are not
here.
"""

from __future__ import annotations

from types import CodeType

import pytest

from pipeline.engine.model import fused_products
from pipeline.engine.model.fused_products import fused_rows
from pipeline.planner.model.shape import ModelShape
from pipeline.system.hardware_datasheet import named_card

QWEN3_4B = ModelShape(36, 32, 8, 128, 2560, 9728, 151936, 40960)
SHAPES = ((4096, 2560), (1024, 2560), (2560, 4096), (9728, 2560), (2560, 9728))
# Rows up to which q, k and v, o, gate and up, and down run fused, by the library's table in 0.50.
TABLE = {
    "RTX 4060": (128, 4, 32, 256, 128),
    "RTX 3060": (128, 4, 128, 128, 128),
    "RTX 3090": (64, 23, 16, 128, 16),
    "T4": (64, 64, 64, 128, 64),
    "RTX 5060 Ti": (64, 16, 96, 256, 96),
    "H200": (7, 32, 5, 32, 5),
}


@pytest.mark.parametrize("name", TABLE)
def test_rows_of_named_cards(name: str) -> None:
    card = named_card(name)
    assert card is not None
    found = fused_rows(QWEN3_4B, card, "float16" if name == "T4" else "bfloat16")
    assert tuple(found.rows[shape] for shape in SHAPES) == TABLE[name]
    assert f"{card.multiprocessors} multiprocessors" in found.origin


def test_numbers_that_a_card_has_no_kernel_for() -> None:
    card = named_card("T4")
    assert card is not None
    assert set(fused_rows(QWEN3_4B, card, "bfloat16").rows.values()) == {7}


@pytest.mark.parametrize("module", [None, "without it", "with another signature"])
def test_a_release_that_does_not_say(module: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_products, "_library_module", lambda: _module(module))
    card = named_card("RTX 4060")
    assert card is not None
    found = fused_rows(QWEN3_4B, card, "bfloat16")
    assert set(found.rows.values()) == {1}
    assert "does not say" in found.origin


def _module(kind: str | None) -> tuple[CodeType, dict[str, object]] | None:
    if kind is None:
        return None
    name = "_something_else" if kind == "without it" else "_gemm_4bit_use_custom_cuda"
    return compile(f"def {name}(device):\n    return True\n", "a release", "exec"), {}
