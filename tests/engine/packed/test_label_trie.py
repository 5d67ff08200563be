"""The trie of labels and the best-first search over it, against scoring every label alone."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.packed.label_trie import ROOT, LabelTrie, Search, SearchWorth, nodes_needed
from pipeline.records import digest

LABELS = st.lists(
    st.lists(st.integers(0, 4), min_size=1, max_size=5).map(lambda ids: (*ids, 9)),
    min_size=1,
    max_size=20,
    unique=True,
)


def predictions(trie: LabelTrie, spread: float) -> dict[int, dict[int, float]]:
    """A language model over ten tokens: each node's distribution depends on the node alone."""
    table = {}
    for node in [ROOT, *range(len(trie.nodes))]:
        weights = [
            math.exp(spread * int(digest(str(node), str(token))[:4], 16) / 16**4) for token in range(10)
        ]
        table[node] = {token: math.log(weights[token] / sum(weights)) for token in trie.targets[node]}
    return table


def exact(trie: LabelTrie, table: dict[int, dict[int, float]]) -> list[float]:
    return trie.scores(
        {(node, token): value for node, values in table.items() for token, value in values.items()}
    )


def normalized(scores: list[float]) -> list[float]:
    best = max(scores)
    weights = [math.exp(score - best) for score in scores]
    return [weight / sum(weights) for weight in weights]


@given(LABELS)
def test_paths_spell_the_labels_and_parents_come_first(labels: list[tuple[int, ...]]) -> None:
    trie = LabelTrie(labels)
    for label, path in zip(labels, trie.paths, strict=True):
        assert tuple(token for _, token in path) == label
        for (node, token), (child, _) in itertools.pairwise(path):
            assert trie.nodes[child].token == token
            assert trie.nodes[child].parent == node
    assert all(node.parent < index for index, node in enumerate(trie.nodes))
    assert len(trie.nodes) == len({label[:length] for label in labels for length in range(1, len(label))})


@given(LABELS, st.sampled_from([1.0, 4.0, 12.0]), st.sampled_from([0.0, 0.001, 0.05]), st.integers(1, 6))
def test_a_search_finds_the_winner_and_its_probability(
    labels: list[tuple[int, ...]], spread: float, tolerance: float, at_once: int
) -> None:
    trie = LabelTrie(labels)
    table = predictions(trie, spread)
    truth = exact(trie, table)
    search = Search(trie, tolerance, at_once)
    search.learn(ROOT, table[ROOT])
    fed = []
    while wanted := search.wanted():
        for node in wanted:
            assert trie.nodes[node].parent in (ROOT, *fed)
            fed.append(node)
            search.learn(node, table[node])
    assert len(fed) == len(set(fed))
    found = search.scores()
    assert len(found) == len(labels)
    winner = found.index(max(found))
    assert truth[winner] == max(truth)
    assert abs(normalized(found)[winner] - normalized(truth)[winner]) <= tolerance + 1e-9
    if tolerance == 0:
        assert len(fed) == len(trie.nodes)
        assert max(abs(a - b) for a, b in zip(found, truth, strict=True)) < 1e-9


def test_a_clear_case_computes_little() -> None:
    labels = [(first, second, 9) for first in range(8) for second in range(8)]
    trie = LabelTrie(labels)
    search = Search(trie, 0.001)
    search.learn(ROOT, {first: math.log(0.9993 if first == 3 else 0.0001) for first in range(8)})
    fed = 0
    while wanted := search.wanted():
        fed += len(wanted)
        for node in wanted:
            search.learn(
                node, {token: math.log(0.9993 if token in (3, 9) else 0.0001) for token in trie.targets[node]}
            )
    assert fed < len(trie.nodes) // 4


def _sure(trie: LabelTrie, favourite: int, strength: float) -> dict[int, dict[int, float]]:
    """Predictions of a model that gives the favourite's next token ``strength`` of every node's probability,
    the rest in equal shares.
    """
    path = dict(trie.paths[favourite])
    predicted = {}
    for node, tokens in trie.targets.items():
        liked = path.get(node)
        others = (1 - strength) / max(1, len(tokens))
        predicted[node] = {token: math.log(strength if token == liked else others) for token in tokens}
    return predicted


def test_searching_pays_for_a_sure_model_and_not_for_one_that_spreads_its_probability() -> None:
    trie = LabelTrie(
        [(first, second, third, 9) for first in range(4) for second in range(4) for third in range(4)]
    )
    for strength, pays in ((0.9999, True), (0.05, False)):
        worth = SearchWorth(trie, 0.001)
        assert not worth.pays  # nothing is known yet
        for favourite in range(4):
            worth.learn(_sure(trie, favourite, strength))
        assert worth.pays is pays


def test_needed_nodes_are_all_of_them_without_a_tolerance() -> None:
    trie = LabelTrie([(1, 2, 9), (1, 3, 9), (4, 9)])
    assert nodes_needed(trie, _sure(trie, 0, 0.5), 1e-12) == len(trie.nodes)
