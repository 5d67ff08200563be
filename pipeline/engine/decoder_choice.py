"""Which decoder a configuration means, and what ``overnight bench`` has found fastest here. Imports no
torch.
"""

from __future__ import annotations

import json
from typing import Literal

from pipeline.config import Config
from pipeline.engine.model.demo_model import cache_folder
from pipeline.records import digest
from pipeline.system.atomic_write import replace_file

Decoder = Literal["overnight", "transformers", "continuous"]
_FORMAT = 1


def chosen_decoder(config: Config, dtype: str, device: str) -> Decoder:
    """The decoder asked for; for ``auto`` the one that was measured fastest for this model on this device,
    else ``overnight``.
    """
    if config.engine.decoder != "auto":
        return config.engine.decoder
    return recall(config, dtype, device) or "overnight"


def remember(config: Config, dtype: str, device: str, decoder: Decoder) -> None:
    """Keep ``decoder`` as the fastest for this model, in these numbers, on this device."""
    path = cache_folder() / "decoders" / f"{_key(config, dtype, device)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as file:
        file.write(
            json.dumps(
                {"format": _FORMAT, "decoder": decoder, "model": config.model.id, "device": device}
            ).encode()
        )


def recall(config: Config, dtype: str, device: str) -> Decoder | None:
    """What was remembered; None when nothing was, or what lies there cannot be read."""
    try:
        found = json.loads(
            (cache_folder() / "decoders" / f"{_key(config, dtype, device)}.json").read_text("utf-8")
        )
    except (OSError, ValueError):
        return None
    decoder: Decoder | None = (
        found.get("decoder") if isinstance(found, dict) and found.get("format") == _FORMAT else None
    )
    return decoder if decoder in ("overnight", "transformers", "continuous") else None


def _key(config: Config, dtype: str, device: str) -> str:
    model = config.model
    return digest(model.id, str(model.revision), model.quantization, dtype, device)
