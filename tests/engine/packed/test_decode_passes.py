"""Which passes are for recorded decoding."""

from __future__ import annotations

from typing import Any

import torch

from pipeline.engine.packed.decode_passes import DecodePasses
from pipeline.engine.packed.feed import Feed, Row
from pipeline.engine.packed.page_allocator import Run
from pipeline.engine.packed.page_pool import KvPool


def test_a_token_of_a_prompt_that_goes_on_is_no_row_that_decodes() -> None:
    """It looks like one, and is asked for nothing: a recorded pass gives logits for each of its rows."""
    nobody: Any = None
    passes = DecodePasses(nobody, nobody, KvPool(4, torch.device("cpu")), rows=4, longest=64)
    decoded = Feed(Row(None, Run(0, 1), 3), (5,), keep=True, logits=(0,))
    stretch = Feed(Row(None, Run(1, 1), 8), (7,), keep=True, logits=())
    assert passes.takes([decoded])
    assert not passes.takes([decoded, stretch])
    assert not passes.takes([stretch])
