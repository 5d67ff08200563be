"""What the host is told of a pass: chosen tokens, log-probabilities of labels, states; gathered on the device
and brought over in one transfer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pipeline.engine.packed.answers import LabelAnswer, Running, TextAnswer
from pipeline.engine.packed.feed import Feed
from pipeline.engine.sampling.choice import choose
from pipeline.engine.sampling.sampler import TokenSampler
from pipeline.engine.transfers import Arrival, sent

_ROWS_AT_ONCE = 128  # of logits that are normalized: what that takes beside them is bounded


@dataclass(frozen=True, slots=True)
class Found:
    """A sequence's part: whether its logits are numbers, the token chosen by the first of them, the
    log-probabilities of its targets, its state (hidden,) where it wants one.
    """

    running: Running
    finite: bool
    token: int
    targets: list[float]
    state: torch.Tensor | None


@dataclass(slots=True)
class _Part:
    running: Running
    begin: int
    end: int
    targets: int = 0
    state: bool = False


class PassResults:
    """Of one pass; made as soon as it is under way, read when its tokens are needed on the host.

    ``started`` is when the host began with it. Who takes part knows its place among the tokens it chooses.
    """

    def __init__(
        self,
        feeds: Sequence[tuple[Running, Feed]],
        logits: torch.Tensor,
        states: torch.Tensor | None,
        started: float,
    ) -> None:
        """``logits`` (wanted, vocabulary) float32, feed by feed; ``states`` (1, wanted, hidden) or None."""
        self.feeds, self.started = feeds, started
        self.only_text = all(isinstance(one.answer, TextAnswer) and not one.reading for one, _ in feeds)
        """Whether all that it does is to decode."""
        self._parts = list(_parts(feeds))
        best, tokens = choose(logits, self._samplers())
        self.chosen = self._of_texts(tokens)
        """Token ids (texts,) on the device: of each that is a text, what it goes on with."""
        if states is not None and states.shape[1] != len(logits):
            states = None
        wanting = [part for part in self._parts if part.running.answer.wants_features and states is not None]
        for part in wanting:
            part.state = True
        gathered = [best.view(torch.int32), tokens.int(), self._targets(logits).view(torch.int32)]
        if wanting and states is not None:
            places = sent([part.begin for part in wanting], torch.long, logits.device)
            gathered.append(states[0].index_select(0, places).float().flatten().view(torch.int32))
        self._wanted, self._states = len(logits), len(wanting)
        self._arrival = Arrival(torch.cat(gathered))

        self._settled = False
        for part, place in zip(self._parts, self._places, strict=True):
            part.running.under_way = place

    def settle(self) -> None:
        """Nobody's next token is looked for here any more."""
        for part in () if self._settled else self._parts:
            part.running.under_way = None
        self._settled = True

    @property
    def asking(self) -> Iterator[Running]:
        """Who gets something of it."""
        return (part.running for part in self._parts)

    def read(self) -> Iterator[Found]:
        """Everybody's part, in the order of the feeds. Waits for the pass."""
        words = self._arrival.wait()
        numbers, count = words.view(torch.float32), self._wanted
        finite, tokens = numbers[:count].isfinite().tolist(), words[count : 2 * count].tolist()
        scored = 2 * count + sum(part.targets for part in self._parts)
        targets = numbers[2 * count : scored].tolist()
        states = iter(numbers[scored:].view(self._states, -1) if self._states else ())
        begin = 0
        for part in self._parts:
            end = begin + part.targets
            yield Found(
                part.running,
                all(finite[part.begin : part.end]),
                tokens[part.begin],
                targets[begin:end],
                next(states) if part.state else None,
            )
            begin = end

    @property
    def _places(self) -> list[int]:
        """Where in ``chosen`` the token of each part is, if it is a text."""
        texts = [isinstance(part.running.answer, TextAnswer) for part in self._parts]
        return [before - text for before, text in zip(itertools.accumulate(texts), texts, strict=True)]

    def _of_texts(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = [part.begin for part in self._parts if isinstance(part.running.answer, TextAnswer)]
        if len(rows) == len(tokens):
            return tokens
        return tokens.index_select(0, sent(rows, torch.long, tokens.device))

    def _samplers(self) -> Iterator[tuple[int, TokenSampler]]:
        """(row of the logits, sampler) of the texts that are sampled."""
        for part in self._parts:
            answer = part.running.answer
            if isinstance(answer, TextAnswer) and answer.sampler is not None:
                yield part.begin, answer.sampler

    def _targets(self, logits: torch.Tensor) -> torch.Tensor:
        """Log-probabilities (targets,) of what labels go on with, of all sequences that are scored."""
        rows: list[int] = []
        tokens: list[int] = []
        spans: list[list[int]] = []  # of rows that are normalized
        for part in self._parts:
            if not isinstance(part.running.answer, LabelAnswer):
                continue
            for offset, wanted in enumerate(part.running.answer.targets()):
                rows += [part.begin + offset] * len(wanted)
                tokens += wanted
                part.targets += len(wanted)
            if spans and spans[-1][1] == part.begin:
                spans[-1][1] = part.end
            else:
                spans.append([part.begin, part.end])
        if not rows:
            return logits.new_empty(0)
        places = sent([rows, tokens], torch.long, logits.device)
        return logits[places[0], places[1]] - _normalizers(logits, spans)[places[0]]


def _parts(feeds: Sequence[tuple[Running, Feed]]) -> Iterator[_Part]:
    """Those that get something."""
    begin = 0
    for running, feed in feeds:
        end = begin + len(feed.logits)
        if end > begin:
            yield _Part(running, begin, end)
        begin = end


def _normalizers(logits: torch.Tensor, spans: Sequence[Sequence[int]]) -> torch.Tensor:
    """Log-sum-exps (wanted,) of the rows in ``spans``."""
    normalizers = logits.new_zeros(len(logits))
    for first, last in spans:
        for begin in range(first, last, _ROWS_AT_ONCE):
            end = min(begin + _ROWS_AT_ONCE, last)
            normalizers[begin:end] = logits[begin:end].logsumexp(dim=-1)
    return normalizers
