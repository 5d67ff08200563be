"""Which engine answers on a loaded model."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.engine.select import select_engine
from pipeline.engine.static.engine import StaticEngine
from pipeline.errors import ConfigError
from tests.bench.library.test_library import PLAN, loaded
from tests.equivalence.families import tiny_model
from tests.equivalence.test_families import END_IDS


def test_a_quantized_cache_is_refused_where_layers_are_not_all_full_attention() -> None:
    plan = dataclasses.replace(PLAN, placement="quantized")
    for family in ("mistral (sliding window)", "qwen3_next (hybrid)"):
        with pytest.raises(ConfigError, match=r"kv_cache\.placement: quantized"):
            select_engine(loaded(tiny_model(family)), plan, end_ids=END_IDS, pad_id=0)
    engine, told = select_engine(loaded(tiny_model("llama (GQA)")), plan, end_ids=END_IDS, pad_id=0)
    assert isinstance(engine, StaticEngine)
    assert "quantized" in told
