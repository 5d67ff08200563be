"""The keys of a task of ``kind: summarize``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.config import TaskSection


class SummarizeTask(TaskSection):
    """Write a summary of every document."""

    kind: Literal["summarize"] = Field(description="write a summary")
    max_output_tokens: int = Field(128, ge=1, description="the most tokens a summary may take")
    long_documents: Literal["map_reduce", "refine", "fail", "truncate"] = Field(
        "map_reduce",
        description="a document that does not fit in one prompt: map_reduce, its parts are summarized, then "
        "the summaries; refine, one summary is carried through the parts; fail; truncate, which is counted "
        "and reported",
    )

    @property
    def most_new_tokens(self) -> int:
        """See TaskSection."""
        return self.max_output_tokens
