"""The sequences in the model, and what they amount to: kept as sums, because everything that waits is
measured against them before each pass.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.engine.packed.sequence import Sequence


class RunningSequences:
    """By number, in the order in which they were admitted. ``pages`` are their own, ``decoding`` of them
    write text, ``reading_tokens`` are still to be read, label trees that ride along included; their next
    answers are found at ``logits`` positions.

    What is summed must change through this class alone.
    """

    def __init__(self) -> None:
        self.pages = self.decoding = self.reading_tokens = self.logits = 0
        self._sequences: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    @property
    def numbers(self) -> tuple[int, ...]:
        """Theirs, in their order."""
        return tuple(self._sequences)

    def get(self, number: int) -> Sequence | None:
        """One of them, None where there is none of that number."""
        return self._sequences.get(number)

    def add(self, sequence: Sequence) -> None:
        """It runs from now on."""
        self._sequences[sequence.number] = sequence
        self._count(sequence, 1)

    def remove(self, number: int) -> Sequence | None:
        """It runs no more; None where it did not."""
        sequence = self._sequences.pop(number, None)
        if sequence is not None:
            self._count(sequence, -1)
        return sequence

    def read(self, number: int, tokens: int) -> None:
        """So many tokens less are to be read of it; fewer than none where there are more."""
        sequence = self._sequences[number]
        self._count_reading(sequence, -1)
        sequence.unread -= tokens
        self._count_reading(sequence, 1)

    def search(self, number: int, nodes: int) -> None:
        """Its search feeds ``nodes`` to the next pass."""
        sequence = self._sequences[number]
        self._count_reading(sequence, -1)
        sequence.asked = nodes
        self._count_reading(sequence, 1)

    def _count(self, sequence: Sequence, sign: int) -> None:
        self.pages += sign * sequence.pages
        self.decoding += sign * sequence.decodes
        self._count_reading(sequence, sign)

    def _count_reading(self, sequence: Sequence, sign: int) -> None:
        self.reading_tokens += sign * sequence.reading_tokens
        self.logits += sign * sequence.logits
