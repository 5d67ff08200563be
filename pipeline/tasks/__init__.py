"""What is asked of every document: one small room or module a kind of task, found through ``registry``."""

from __future__ import annotations

from typing import Any

from pipeline.config import TaskSection
from pipeline.tasks.base import Setting, Task, Work
from pipeline.tasks.registry import kind_of

__all__ = ["Setting", "Task", "Work", "build_task"]


def build_task(config: TaskSection, setting: Setting, shared: dict[str, Any]) -> Task:
    """The task of a configuration entry. Raises ConfigError when it cannot work with this model."""
    return kind_of(config.kind).build(config, setting, shared)
