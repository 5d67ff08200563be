"""Label sequences as a trie, and which of its nodes must be computed: pure Python on ints and floats.

Labels share beginnings, so their log-probabilities share work: a node is one token after one beginning, fed
once however many labels pass through it. The logits of the prompt's last token give the first level; those of
a node give its children. End tokens are only ever predicted, never fed.

With a tolerance, nodes are computed best first: what is left uncomputed can together weigh at most as much as
the probability of the beginnings it hangs on, so the search ends when that can change neither the winner nor
its probability beyond the tolerance.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

ROOT = -1
_TRIED_DOCUMENTS = 4


@dataclass(frozen=True, slots=True)
class Node:
    """A token that is fed: its parent node (ROOT: the prompt), its depth (0: right after the prompt)."""

    token: int
    parent: int
    depth: int


class LabelTrie:
    """The trie of non-empty token sequences. ``nodes`` are listed parents first; ``targets`` pair a node with
    a token it must predict.
    """

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self.nodes: list[Node] = []
        self._children: dict[tuple[int, int], int] = {}
        self.paths: list[list[tuple[int, int]]] = [self._insert(sequence) for sequence in sequences]
        self.below: dict[int, list[int]] = {}
        for label, path in enumerate(self.paths):
            for node, _ in path:
                self.below.setdefault(node, []).append(label)
        self.targets: dict[int, list[int]] = {}
        for path in self.paths:
            for node, token in path:
                wanted = self.targets.setdefault(node, [])
                if token not in wanted:
                    wanted.append(token)

    def _insert(self, sequence: Sequence[int]) -> list[tuple[int, int]]:
        """The label's predictions: (node, token) from the root to its last token."""
        path, node = [], ROOT
        for depth, token in enumerate(sequence):
            path.append((node, token))
            if depth + 1 < len(sequence):
                if (node, token) not in self._children:
                    self._children[node, token] = len(self.nodes)
                    self.nodes.append(Node(token, node, depth))
                node = self._children[node, token]
        return path

    def ancestors(self, node: int) -> list[int]:
        """The node and those above it, up to the prompt."""
        chain = []
        while node != ROOT:
            chain.append(node)
            node = self.nodes[node].parent
        return chain

    def scores(self, predicted: Mapping[tuple[int, int], float]) -> list[float]:
        """Each label's log-probability, all predictions given as (node, token) → log-probability."""
        return [sum(predicted[step] for step in path) for path in self.paths]

    def child(self, node: int, token: int) -> int | None:
        """The node fed with ``token`` after ``node``, None when the label ends there."""
        return self._children.get((node, token))


class Search:
    """Best-first computation of one document's label scores, to ``tolerance`` in the winner's normalized
    probability.
    """

    def __init__(self, trie: LabelTrie, tolerance: float, at_once: int = 16) -> None:
        self._trie = trie
        self._tolerance = tolerance
        self._at_once = at_once
        self._reached: dict[int, float] = {ROOT: 0.0}
        self._complete: dict[int, float] = {}
        self._frontier: list[tuple[float, int]] = []  # (-log-probability, node)
        self.known_root = False

    def learn(self, node: int, predicted: Mapping[int, float]) -> None:
        """The log-probabilities that ``node`` gives to its targets."""
        self.known_root = True
        for token, value in predicted.items():
            reached = self._reached[node] + value
            child = self._trie.child(node, token)
            if child is not None:
                self._reached[child] = reached
                heapq.heappush(self._frontier, (-reached, child))
        for label in self._trie.below[node]:
            last_node, last_token = self._trie.paths[label][-1]
            if last_node == node:
                self._complete[label] = self._reached[node] + predicted[last_token]

    def wanted(self) -> list[int]:
        """Nodes to compute next, their parents all known; empty when nothing left can matter. Taken off the
        frontier.
        """
        if self._settled():
            return []
        chosen: list[int] = []
        done = math.fsum(math.exp(value) for value in self._complete.values())
        while self._frontier and len(chosen) < self._at_once:
            chosen.append(heapq.heappop(self._frontier)[1])
            # What stays out could not matter beside what is computed now, if all of that came to labels.
            if self._open_mass() <= self._tolerance * (done + self._mass(chosen)):
                break
        return chosen

    def scores(self) -> list[float]:
        """Log-probability of every label; of one left uncomputed, an equal share of the most that its
        beginning allows.
        """
        scores = dict(self._complete)
        for minus, node in self._frontier:
            labels = self._trie.below[node]
            scores.update((label, -minus - math.log(len(labels))) for label in labels)
        return [scores[label] for label in range(len(self._trie.paths))]

    def _open_mass(self) -> float:
        return math.fsum(math.exp(-minus) for minus, _ in self._frontier)

    def _mass(self, nodes: Iterable[int]) -> float:
        return math.fsum(math.exp(self._reached[node]) for node in nodes)

    def _settled(self) -> bool:
        """Whether the frontier's mass, spread in any way, can change neither the winner nor its probability
        beyond the tolerance.
        """
        if not self._frontier:
            return True
        if not self._complete or self._tolerance <= 0:
            return False
        best = math.exp(max(self._complete.values()))
        total = math.fsum(math.exp(value) for value in self._complete.values())
        most, open_mass = math.exp(-self._frontier[0][0]), self._open_mass()
        return total > 0 and most < best and open_mass / (total + open_mass) <= self._tolerance


def nodes_needed(trie: LabelTrie, predicted: Mapping[int, Mapping[int, float]], tolerance: float) -> int:
    """How many nodes a search would have computed, given what all of them (and ROOT) predict: token →
    log-probability.
    """
    search = Search(trie, tolerance)
    search.learn(ROOT, predicted[ROOT])
    needed = 0
    while wanted := search.wanted():
        needed += len(wanted)
        for node in wanted:
            search.learn(node, predicted[node])
    return needed


class SearchWorth:
    """Whether searching a tree pays, or all of it had better ride along with the prompt: found on the first
    few documents.

    A model that is sure of itself leaves most of a tree uncomputed; one that spreads its probability needs
    nearly all of it, and then many small passes cost more than a large one.
    """

    def __init__(self, trie: LabelTrie, tolerance: float) -> None:
        self._trie = trie
        self._tolerance = tolerance
        self._needed: list[int] = []

    @property
    def pays(self) -> bool:
        """True once the first documents have shown that less than a third of the tree is needed; each node
        comes with its ancestors.
        """
        return len(self._needed) >= _TRIED_DOCUMENTS and sum(self._needed) * 3 < len(self._trie.nodes) * len(
            self._needed
        )

    def learn(self, predicted: Mapping[int, Mapping[int, float]]) -> None:
        """Take in a document whose tree was computed as a whole."""
        if len(self._needed) < _TRIED_DOCUMENTS:
            self._needed.append(nodes_needed(self._trie, predicted, self._tolerance))
