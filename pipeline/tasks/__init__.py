"""What is asked of every document: one small module a task kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.config import LabelTask, SummarizeTask
from pipeline.quality.examples import Example
from pipeline.tasks.base import Setting, Task, Work
from pipeline.tasks.label import Label
from pipeline.tasks.summarize import Summarize

__all__ = ["Setting", "Task", "Work", "build_task"]


def build_task(
    config: SummarizeTask | LabelTask,
    setting: Setting,
    shared: dict[str, Any],
    examples: Sequence[Example] = (),
) -> Task:
    """The task of a configuration entry. Raises ConfigError when it cannot work with this model.

    ``examples`` are labelled documents that a label task may show to the model: all of them, or
    ``examples_per_label``.
    """
    return (
        Summarize(config, setting, shared)
        if isinstance(config, SummarizeTask)
        else Label(config, setting, shared, examples)
    )
