"""Streamed weights in 4 bits under 16-bit numbers: biases are of these numbers, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.config import ModelConfig
from pipeline.engine.model.location import locate
from pipeline.engine.model.meta import build_on_meta
from pipeline.engine.model.precision import architecture
from pipeline.engine.streaming.weight_file import Block
from tests.engine.small_models import save_llama
from tests.engine.streaming.opened import opened


@pytest.fixture
def biased(tmp_path: Path) -> Path:
    return save_llama(tmp_path / "model", attention_bias=True, mlp_bias=True)


def test_a_model_without_weights_has_biases_as_the_library_loads_them(biased: Path) -> None:
    config = ModelConfig(id=str(biased), quantization="nf4")
    model, _ = build_on_meta(architecture(locate(config), config), config, "bfloat16")
    found = {name: parameter.dtype for name, parameter in model.named_parameters() if name.endswith("bias")}
    assert set(found.values()) == {torch.bfloat16}
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("old", [False, True])
def test_a_streamed_model_with_biases_runs(biased: Path, old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if old:
        as_stored_before(monkeypatch)
    model = opened(biased, "nf4", dtype="bfloat16").model
    with torch.inference_mode():
        assert model(torch.arange(3, 20)[None]).logits.isfinite().all()


def as_stored_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared files of earlier versions have biases in 32 bits."""
    from pipeline.engine.streaming import prepared_weights

    real = prepared_weights.write_blocks

    def write(
        path: Path, described: list[tuple[str, torch.dtype, tuple[int, ...]]], *rest: object
    ) -> list[Block]:
        wide = [
            (name, torch.float32 if name.endswith("bias") else dtype, shape)
            for name, dtype, shape in described
        ]
        return real(path, wide, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(prepared_weights, "write_blocks", write)
