"""Whole runs on pretended cards: the real command line and its worker, and what each process did there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tests.nights import ANight
from tests.programs import ROOT

LOG = "PRETEND_LOG"


@dataclass
class CardNight(ANight):
    """A night in a process with cards; ``options`` are variables of ``options.py``."""

    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, **self.options, LOG: str(self.folder / "cards")}

    @cached_property
    def processes(self) -> list[dict[str, Any]]:
        """What each process left behind, see ``report.report``; the runner's first."""
        found = [json.loads(path.read_text()) for path in (self.folder / "cards").glob("*.json")]
        return sorted(found, key=lambda each: "worker_main" in each["argv"][0])

    @property
    def workers(self) -> list[dict[str, Any]]:
        return self.that_ran("worker_main")

    def that_ran(self, module: str) -> list[dict[str, Any]]:
        """Of the processes, those that were started as ``module``."""
        return [each for each in self.processes if Path(each["argv"][0]).stem == module]

    @property
    def races(self) -> list[str]:
        return [race for each in self.processes for race in each["races"]]


def shipped(name: str, model: Path, source: Path) -> dict[str, Any]:
    """Settings of ``configs/NAME.yaml``, for another model and other documents, at any time of the day."""
    settings: dict[str, Any] = yaml.safe_load((ROOT / "configs" / f"{name}.yaml").read_text(encoding="utf-8"))
    settings["model"]["id"] = str(model)
    settings["source"] = {
        **{key: value for key, value in settings["source"].items() if key != "split"},
        "path": str(source),
    }
    settings["run"].pop("deadline", None)
    return settings
