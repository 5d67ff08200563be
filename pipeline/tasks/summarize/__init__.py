"""The kind ``summarize``: one summary a document. What is shown of them:
``pipeline.results.kinds.summarize``.
"""

from __future__ import annotations

from pipeline.tasks.registry import TaskKind
from pipeline.tasks.summarize.section import SummarizeTask
from pipeline.tasks.summarize.task import Summarize

__all__ = ["KIND", "Summarize", "SummarizeTask"]

KIND = TaskKind(
    name="summarize",
    section=SummarizeTask,
    build=Summarize,
    does="Write a summary of every document",
    writes_text=True,
    answers="pipeline.results.kinds.summarize:SummarizeAnswers",
)
"""The kind as the registry knows it."""
