"""What this machine has shown of a model: how fast it reads and writes, how long it loads, how long its
answers are. Kept between nights.

Written by `overnight bench`, by `overnight plan --measure` and by every run; read by the plan. A file a
model, its backend, numbers and machine, in the user's cache folder; losing it costs only the measuring.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.engine.model.demo_model import cache_folder
from pipeline.errors import StoppedEarly
from pipeline.records import digest
from pipeline.system.atomic_write import replace_file
from pipeline.system.graphics_cards import graphics_cards
from pipeline.system.hardware import Hardware, Rates
from pipeline.system.hardware_rates import machine_key
from pipeline.system.machine_load import OthersLoad
from pipeline.system.units import moment

_FORMAT = 1
_LIBRARY = ("auto", "transformers")  # what there was when the first speeds were kept


@dataclass(frozen=True, slots=True)
class MeasuredSpeeds:
    """None: not seen yet. ``output_tokens``: mean tokens written a request, by task fingerprint. Rates as in
    ``planner.hardware.Rates``. ``origin``: by what they were measured, when, and beside what.
    """

    prefill_tokens_per_second: float | None = None
    prefill_at_tokens: int | None = None
    decode_tokens_per_second: float | None = None
    decode_at_rows: int | None = None
    decode_at_tokens: int | None = None
    load_seconds: float | None = None
    process_bytes: int | None = None
    origin: str | None = None
    output_tokens: Mapping[str, float] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether speeds are known."""
        return self.prefill_tokens_per_second is not None


def calibrated(hardware: Hardware, calibration: MeasuredSpeeds) -> Hardware:
    """The same machine, with what it has shown of the model."""
    known = {name: getattr(calibration, name) for name in _RATES if getattr(calibration, name) is not None}
    origin = hardware.rates.origin
    if calibration.measured:
        origin = f"measured with this model {calibration.origin or ''}".rstrip()
    return replace(hardware, rates=replace(hardware.rates, origin=origin, **known))


_RATES = tuple(
    entry.name
    for entry in fields(MeasuredSpeeds)
    if entry.name in {rate.name for rate in fields(Rates)} and entry.name != "origin"
)


def recall(config: Config, dtype: str) -> MeasuredSpeeds:
    """What was kept; an empty one where there is nothing, or nothing that can be read."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        raw = json.loads(_path(config, dtype).read_text(encoding="utf-8"))
        if raw.pop("format", None) == _FORMAT:
            return _checked(MeasuredSpeeds(**raw))
    return MeasuredSpeeds()


def remember(config: Config, dtype: str, **seen: Any) -> None:
    """Add what was seen to what is kept; ``output_tokens`` are merged. A cache that cannot be written is
    none.
    """
    kept = recall(config, dtype)
    seen["output_tokens"] = {**kept.output_tokens, **seen.get("output_tokens", {})}
    path = _path(config, dtype)
    with contextlib.suppress(OSError, StoppedEarly):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as stream:
            stream.write(json.dumps({"format": _FORMAT, **asdict(replace(kept, **seen))}).encode())


def measured_by(command: str, others: OthersLoad) -> str:
    """The ``origin`` of speeds that a command has measured just now, beside ``others``."""
    return f"by {command}, {moment(time.time())}{', ' + others.words if others.words else ''}"


def _checked(calibration: MeasuredSpeeds) -> MeasuredSpeeds:
    """Raises ValueError for what is not a positive number."""
    words = ("origin", "output_tokens")
    numbers = [getattr(calibration, entry.name) for entry in fields(calibration) if entry.name not in words]
    numbers += calibration.output_tokens.values()
    if not isinstance(calibration.origin, str | None):
        raise ValueError("where the speeds come from is told in words")
    if any(number is not None and not (isinstance(number, int | float) and number > 0) for number in numbers):
        raise ValueError("a calibration holds positive numbers")
    return calibration


def _path(config: Config, dtype: str) -> Path:
    model = config.model
    parts = (
        model.id,
        str(model.revision),
        model.quantization,
        dtype,
        model.attention,
        model.device_map,
        str(model.max_memory),
    )
    backend = () if config.engine.backend in _LIBRARY else (config.engine.backend,)
    cards = [card.name for card in graphics_cards()] if model.device_map == "auto" else []
    key = digest(*parts, str(config.engine.threads), *backend, machine_key(None, dtype, cards))
    return cache_folder() / "speeds" / f"{key}.json"
