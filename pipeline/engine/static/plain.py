"""Static batches where other engines use the same model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.engine.model.forward import attention_as
from pipeline.engine.static.engine import StaticEngine
from pipeline.records import Generation, Plan


class PlainEngine(StaticEngine):
    """The static engine where others use the same model: it computes with the attention the model was loaded
    with.
    """

    def __init__(
        self,
        model: Any,
        plan: Plan,
        *,
        end_ids: Sequence[int],
        pad_id: int,
        attention: str,
        kv_folder: Path | None = None,
    ) -> None:
        super().__init__(model, plan, end_ids=end_ids, pad_id=pad_id, kv_folder=kv_folder)
        self._model = model
        self._attention = attention

    def step(self) -> Sequence[Generation]:
        """As ``StaticEngine.step``."""
        with attention_as(self._model, self._attention):
            return super().step()
