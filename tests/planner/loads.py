"""A night's work for forecasts: documents of given lengths, one question about each."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.planner.workload import Asked, Question, TaskLoad


def load_of(
    lengths: Sequence[int],
    documents: int,
    new_tokens: int,
    *,
    instructions: int = 0,
    shared: int = 0,
    characters_a_token: int = 4,
) -> TaskLoad:
    """``documents`` documents, of which those of ``lengths`` tokens were looked at; ``shared`` of the
    instructions stand before all of them. With 0 characters a token nothing tells a document's length.
    """
    sample = tuple(
        Asked(
            length * characters_a_token or 1000,
            length,
            (Question(instructions - shared + length, shared, new_tokens),),
        )
        for length in lengths
    )
    characters = sum(asked.characters for asked in sample) * documents // max(1, len(sample))
    return TaskLoad("t", "summarize", documents, characters, sample)
