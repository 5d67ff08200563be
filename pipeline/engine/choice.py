"""Which decoder a configuration means. Imports no torch, so that commands which load no model can ask."""

from __future__ import annotations

from typing import Literal

from pipeline.config import EngineConfig

Decoder = Literal["overnight", "transformers", "continuous"]


def chosen_decoder(config: EngineConfig, measured: Decoder | None = None) -> Decoder:
    """The decoder asked for; for ``auto`` the one that was ``measured`` fastest on this device, ``overnight`` while nothing was."""
    if config.decoder != "auto":
        return config.decoder
    return measured or "overnight"
