"""Whole runs on pretended cards: the real command line with its worker, and what each process did there."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engine.small_models import save_llama
from tests.nights import TASKS, ANight, documents

BOOT = Path(__file__).parent / "boot"


@dataclass
class CardNight(ANight):
    """A night on ``card`` (as PRETEND_CARD says it); ``pretend`` are further options, without PRETEND_."""

    card: str = "8GiB"
    pretend: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        plain = super().environment
        options = {"CARD": self.card, "LOG": str(self.log), **self.pretend}
        return {
            **plain,
            **{f"PRETEND_{name}": value for name, value in options.items()},
            "PYTHONPATH": f"{BOOT}:{plain['PYTHONPATH']}",
        }

    @property
    def log(self) -> Path:
        return self.folder / "cards"

    def processes(self, module: str) -> list[dict[str, Any]]:
        """Reports of the processes that ran ``module``, such as ``worker_main``."""
        found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.log.glob("*.json"))]
        return [report for report in found if Path(report["argv"][0]).stem == module]


def a_night(folder: Path, count: int = 6, *, tasks: Any = TASKS, **settings: Any) -> CardNight:
    """A night over a tiny model with random weights; ``model``, ``kv_cache`` and so on add to the
    configuration.
    """
    pretend, card = settings.pop("pretend", {}), settings.pop("card", "8GiB")
    model = {
        "id": str(save_llama(folder / "model", max_position_embeddings=2048)),
        "quantization": "none",
        "context_tokens": 1024,
        **settings.pop("model", {}),
    }
    rows = documents(count, longest=6)
    return CardNight(folder, rows, tasks, {}, {"model": model, **settings}, card, pretend)
