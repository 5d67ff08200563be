"""The tables that people know, and their text."""

from __future__ import annotations

import pytest

from pipeline.planner.model.shape import ModelShape
from pipeline.planner.tables import (
    CARD_GIB,
    attention_table,
    cache_table,
    common_sizes,
    render_attention,
    render_cache,
    render_sizes,
    sizes_table,
)
from tests.planner.known_models import KNOWN, known_shape

GIB = 2**30


def test_llama_2_7b_by_context_and_link() -> None:
    shape = known_shape("Llama 2 7B")
    rows = {row.tokens: row for row in cache_table(shape, "float16")}
    assert [rows[tokens].cache_bytes // GIB for tokens in (2048, 8192, 32768)] == [1, 4, 16]
    assert rows[2048].seconds["PCIe 4.0 x16"] == pytest.approx(0.043, abs=0.001)
    assert rows[32768].seconds["PCIe 4.0 x16"] > 0.6
    for row in rows.values():
        times = list(row.seconds.values())
        assert row.seconds["PCIe 3.0 x16"] == pytest.approx(2 * row.seconds["PCIe 4.0 x16"])
        assert max(times) == row.seconds["SATA SSD"]


def test_nine_gib_hold_eight_times_more_with_an_eighth_of_the_heads() -> None:
    shape = ModelShape(64, 64, 8, 128, 8192, 22016, 32000, 131072)
    rows = {row.attention: row for row in attention_table(shape, "float16", 9 * GIB)}
    assert rows["GQA"].bytes_per_token == 256 * 1024
    assert (rows["GQA"].tokens, rows["MHA"].tokens, rows["MQA"].tokens) == (36_864, 4_608, 294_912)


def test_other_kinds_of_attention_stand_alone() -> None:
    assert [row.attention for row in attention_table(known_shape("DeepSeek V3"), "bfloat16", GIB)] == ["MLA"]
    mamba = attention_table(known_shape("Mamba 2.8B"), "bfloat16", GIB)
    assert mamba[0].tokens == -1


def test_sizes_match_the_published_models() -> None:
    shapes = dict(common_sizes())
    pairs = {
        "1B (Llama 3.2)": "Llama 3.2 1B",
        "3B (Llama 3.2)": "Llama 3.2 3B",
        "7B (Llama 2)": "Llama 2 7B",
        "8B (Llama 3)": "Llama 3 8B",
        "13B (Llama 2)": "Llama 2 13B",
        "70B (Llama 3)": "Llama 3.1 70B",
    }
    for name, known in pairs.items():
        assert shapes[name].parameters == KNOWN[known].parameters
    assert shapes["32B (Qwen 2.5)"].parameters == pytest.approx(32.8e9, rel=0.01)
    assert shapes["123B (Mistral Large)"].parameters == pytest.approx(123e9, rel=0.01)


def test_what_fits_in_a_card_fits_in_a_larger_one() -> None:
    rows = {row.name: row for row in sizes_table(common_sizes())}
    for row in rows.values():
        fits = [row.fits[size] for size in CARD_GIB]
        assert fits == sorted(fits)
        assert row.bits_alone_bytes < row.weights_bytes
    assert not rows["70B (Llama 3)"].fits[24]
    assert rows["70B (Llama 3)"].fits[48]
    assert rows["8B (Llama 3)"].fits[8]


def test_tables_are_text_with_every_row() -> None:
    shape = known_shape("Llama 2 7B")
    text = render_cache(shape, "float16", cache_table(shape, "float16"))
    assert "32,768" in text
    assert "16.0 GiB" in text
    assert "\x1b" not in text
    assert "no limit" in render_attention(GIB, attention_table(known_shape("Mamba 2.8B"), "bfloat16", GIB))
    sizes = render_sizes(sizes_table(common_sizes()))
    assert all(name in sizes for name, _ in common_sizes())
    assert "…" not in text + sizes
