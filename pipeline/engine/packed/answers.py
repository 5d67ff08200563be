"""What a sequence's answer is made of: which tokens it feeds to the next pass, and what it takes from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.engine.packed.feed import Feed, Row
from pipeline.engine.packed.label_trie import ROOT, LabelTrie, Search, SearchWorth
from pipeline.engine.packed.text_checkpoints import TextCheckpoints
from pipeline.engine.sampling.hidden_state import packed
from pipeline.engine.sampling.sampler import TokenSampler
from pipeline.engine.static.generate import Output
from pipeline.records import Decode, Request, Score

_Answer = Mapping[str, Any]


class TextAnswer:
    """A text, token by token. ``resumed`` are those that an earlier process decoded."""

    wants_features = False

    def __init__(
        self, request: Request, ask: Decode, end_ids: Collection[int], checkpoints: TextCheckpoints
    ) -> None:
        self._request, self._checkpoints = request, checkpoints
        self._output = Output(ask, end_ids)
        self.resumed = checkpoints.begun(request, self._output)

    @property
    def sampler(self) -> TokenSampler | None:
        """What its tokens are drawn by; None: the likeliest is chosen."""
        return self._output.sampler

    def feed_last(self, row: Row, tokens: Sequence[int], *, keep: bool) -> Feed:
        """The last stretch of the prompt."""
        return Feed(row, tokens, keep, (len(tokens) - 1,))

    def feed(self, row: Row) -> Feed:
        """The token it decoded."""
        return Feed(row, self._output.reply.token_ids[-1:], keep=True, logits=(0,))

    def feed_late(self, row: Row, place: int) -> Feed | None:
        """The token that the pass under way chooses, ``place`` of them; None where that is its last one. An
        end that nobody knows yet costs the row one pass.
        """
        return None if self._output.room <= 1 else Feed(row, (0,), keep=True, logits=(0,), late=place)

    def take_in(self, token: int, _targets: Sequence[float], _state: torch.Tensor | None) -> _Answer | None:
        """The next token; the text, once it has ended."""
        output = self._output
        output.push(token)
        self._checkpoints.grown(self._request, output)
        if not output.ended:
            return None
        return {"token_ids": tuple(output.reply.token_ids), "finish_reason": output.reply.finish_reason}


class LabelAnswer:
    """The scores of labels: all of their tree with the prompt, or a search of it in rounds
    (``searching``).
    """

    def __init__(self, ask: Score, tree: LabelTree, *, searching: bool) -> None:
        self._tree = tree
        self._wants_features, self._features = ask.features, b""
        self._search = Search(tree.trie, ask.tolerance) if searching else None
        self._asked = [] if searching else list(range(len(tree.trie.nodes)))

    @property
    def wants_features(self) -> bool:
        """Whether the state at its prompt's last token is asked for and not seen yet."""
        return self._wants_features and self._first

    @property
    def searching(self) -> bool:
        """Whether its next nodes depend on what it learns."""
        return self._search is not None

    @property
    def nodes(self) -> list[int]:
        """Those that its search asks for, with their ancestors."""
        return sorted({above for node in self._asked for above in self._tree.trie.ancestors(node)})

    @property
    def _first(self) -> bool:
        return self._search is None or not self._search.known_root

    def feed_last(self, row: Row, tokens: Sequence[int], *, keep: bool) -> Feed:
        """The last stretch of the prompt, and the tree that rides along."""
        last = len(tokens) - 1
        if not self._asked:
            return Feed(row, tokens, keep, (last,))
        nodes = [last + 1 + offset for offset in range(len(self._asked))]
        return Feed(row, tokens, keep, (last, *nodes), self._tree.trie, self._asked)

    def feed(self, row: Row) -> Feed:
        """What its search asks for."""
        nodes = self.nodes
        wanted = [nodes.index(node) for node in self._asked]
        return Feed(row, (), keep=False, logits=wanted, trie=self._tree.trie, nodes=nodes)

    def feed_late(self, _row: Row, _place: int) -> Feed | None:
        """None: what is left of its tree, if anything, depends on the pass under way."""
        return None

    def targets(self) -> list[list[int]]:
        """What each prediction it has asked for is of: tokens, the prompt's first if it was just read."""
        return [self._tree.trie.targets[node] for node in self._predicting]

    @property
    def _predicting(self) -> list[int]:
        return [*([ROOT] if self._first else []), *self._asked]

    def take_in(self, _token: int, targets: Sequence[float], state: torch.Tensor | None) -> _Answer | None:
        """The log-probabilities of ``targets``, end to end, and ``state`` (hidden,) at the first prediction;
        the scores, once nothing more is needed.
        """
        if self.wants_features and state is not None:
            self._features = packed(state)
        values, trie = iter(targets), self._tree.trie
        scores = self._scores(
            {node: {token: next(values) for token in trie.targets[node]} for node in self._predicting}
        )
        return None if scores is None else {"scores": tuple(scores), "features": self._features}

    def _scores(self, predicted: Mapping[int, Mapping[int, float]]) -> list[float] | None:
        if self._search is None:
            self._tree.learn(predicted)
            return self._tree.trie.scores(
                {(node, token): value for node, found in predicted.items() for token, value in found.items()}
            )
        for node, found in predicted.items():
            self._search.learn(node, found)
        self._asked = self._search.wanted()
        return None if self._asked else self._search.scores()


@dataclass(slots=True)
class LabelTree:
    """The tree of a task's labels, and whether searching it pays; ``worth`` None: it is always computed."""

    number: int
    trie: LabelTrie
    worth: SearchWorth | None

    def learn(self, predicted: Mapping[int, Mapping[int, float]]) -> None:
        """Take in a document whose tree was computed as a whole."""
        if self.worth is not None:
            self.worth.learn(predicted)


class LabelTrees:
    """The trees of all that was asked, made once each."""

    def __init__(self) -> None:
        self._trees: dict[tuple[tuple[tuple[int, ...], ...], float], LabelTree] = {}

    def of(self, ask: Score) -> LabelTree:
        """The tree of ``ask``."""
        key = ask.continuations, ask.tolerance
        if key not in self._trees:
            trie = LabelTrie(ask.continuations)
            worth = SearchWorth(trie, ask.tolerance) if ask.tolerance > 0 else None
            self._trees[key] = LabelTree(len(self._trees), trie, worth)
        return self._trees[key]

    @property
    def searched(self) -> set[int]:
        """Numbers of the trees of which a search computes little."""
        return {tree.number for tree in self._trees.values() if tree.worth is not None and tree.worth.pays}


@dataclass(slots=True)
class Running:
    """A request in the model. ``own`` are the tokens that are read for it, ``read`` of them so far.

    ``under_way``: its place among the tokens that the pass under way chooses; None where it knows all of its
    own.
    """

    request: Request
    row: Row
    own: tuple[int, ...]
    answer: TextAnswer | LabelAnswer
    read: int = 0
    seconds: float = 0.0
    company: int = 1
    under_way: int | None = None

    def decode(self) -> Feed | None:
        """What goes on with its answer; None where that depends on the pass under way."""
        if self.under_way is None:
            return self.answer.feed(self.row)
        return self.answer.feed_late(self.row, self.under_way)

    def prefill(self, tokens: int, *, keep: bool) -> Feed:
        """The next ``tokens`` of its prompt; with the last of them it is asked for its answer."""
        stretch = self.own[self.read : self.read + tokens]
        if self.read + tokens < len(self.own):
            return Feed(self.row, stretch, keep, logits=())
        return self.answer.feed_last(self.row, stretch, keep=keep)

    @property
    def reading(self) -> bool:
        """Whether some of the prompt is still to be read."""
        return self.read < len(self.own)
