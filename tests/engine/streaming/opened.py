"""Models opened for streaming, and engines on them, as tests want them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.config import Config, parse_config
from pipeline.engine.interface import Engine
from pipeline.engine.model.identity import weights_identity
from pipeline.engine.model.location import locate
from pipeline.engine.streaming.engine import StreamedEngine
from pipeline.engine.streaming.load import StreamedModel, open_streamed
from pipeline.records import Generation, Plan, Request, Streaming


def configured(
    folder: Path,
    quantization: str = "none",
    cpu_bytes: int | None = None,
    dtype: str = "float32",
    **engine: Any,
) -> Config:
    return parse_config(
        {
            "model": {
                "id": str(folder),
                "quantization": quantization,
                "dtype": dtype,
                "max_memory": None if cpu_bytes is None else {"cpu": cpu_bytes},
            },
            "source": {"path": "none"},
            "tasks": [{"name": "none", "kind": "summarize"}],
            "run": {"directory": "none"},
            "engine": engine,
        }
    )


def opened(
    folder: Path,
    quantization: str = "none",
    cpu_bytes: int | None = None,
    *,
    said: list[str] | None = None,
    dtype: str = "float32",
) -> StreamedModel:
    """Without ``cpu_bytes`` everything is read for each sweep, whatever would fit."""
    config = configured(folder, quantization, cpu_bytes, dtype)
    location = locate(config.model)
    say = (lambda _: None) if said is None else said.append
    identity = weights_identity(config.model, location)
    planned = None if cpu_bytes is not None else Streaming(0, 0, "layer", 32)
    return open_streamed(config, location, dtype, identity, say, "for a test", planned)


def engine_on(
    loaded: StreamedModel, plan: Plan, end_ids: Sequence[int] = (), lane_rows: int = 4
) -> StreamedEngine:
    attention = str(loaded.facts["attention"])
    return StreamedEngine(
        loaded.model, loaded.hooks, plan, end_ids=end_ids, pad_id=0, attention=attention, lane_rows=lane_rows
    )


def answers(engine: Engine, requests: Sequence[Request]) -> list[Generation]:
    engine.admit(requests)
    done: list[Generation] = []
    while not engine.idle:
        done += engine.step()
    assert [generation.error for generation in done] == [None] * len(requests)
    return sorted(done, key=lambda generation: generation.request_id)
