"""The kind ``label``: the labels' probabilities, from the model's own scores. What is shown of them:
``pipeline.results.kinds.label``.
"""

from __future__ import annotations

from typing import Any

from pipeline.tasks.base import Setting
from pipeline.tasks.label.examples_file import labelled_for
from pipeline.tasks.label.section import LabelTask
from pipeline.tasks.label.task import Label
from pipeline.tasks.registry import Column, TaskKind

__all__ = ["KIND", "Label", "LabelTask"]


def _build(config: LabelTask, setting: Setting, shared: dict[str, Any]) -> Label:
    return Label(config, setting, shared, labelled_for(config))


KIND = TaskKind(
    name="label",
    section=LabelTask,
    build=_build,
    does="Give one of the labels to every document",
    columns=(Column("_probability", "number"), Column("_probabilities", "numbers by name")),
    answers="pipeline.results.kinds.label:LabelAnswers",
)
"""The kind as the registry knows it."""
