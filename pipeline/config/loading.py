"""A configuration from a file, or from plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.config.faults import Written, faults_of, told
from pipeline.config.overrides import Place, apply_overrides
from pipeline.config.sections import Config
from pipeline.errors import ConfigError
from pipeline.system.plain_values import what_is_lost
from pipeline.system.yaml_text import read_yaml_file


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read ``path`` and apply ``overrides`` ("a.b=c"). Raises ConfigError with the line of each fault."""
    text = read_yaml_file(Path(path), "configuration file")
    if not isinstance(text.value, dict):
        raise ConfigError(
            f"{path} holds no configuration: its top level must be keys such as model, source, tasks and run"
        )
    said = apply_overrides(text.value, overrides)
    written = Written(str(path), text.lines, said)
    config = _validated(text.value, written)
    idle = list(_idle(config))
    if idle:
        raise ConfigError(told(written, idle))
    return config


def parse_config(raw: Mapping[str, Any], origin: str = "configuration") -> Config:
    """Validate plain values. Raises ConfigError that lists every fault with its place."""
    return _validated(raw, Written(origin))


def _validated(raw: Mapping[str, Any], written: Written) -> Config:
    try:
        config = Config.model_validate(raw)
        faults = list(what_is_lost(config.model_dump()))
    except ValidationError as error:
        faults = list(faults_of(error, raw))
    if faults:
        raise ConfigError(told(written, faults))
    return config


def _idle(config: Config) -> Iterator[tuple[Place, str]]:
    """Keys that were given and that nothing obeys."""
    for index, task in enumerate(config.tasks):
        yield from ((("tasks", index, key), why) for key, why in task.idle_keys())
    yield from ((("source", key), why) for key, why in config.source.idle_keys())
