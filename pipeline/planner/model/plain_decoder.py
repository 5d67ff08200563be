"""The weights of a plain decoder, as Llama is one: what there is to reckon with where a model cannot be asked
itself. No biases, a gated MLP, two norms a layer.
"""

from __future__ import annotations

from dataclasses import replace

from pipeline.planner.model.layers import Block, Weight


def layer_weights(query: int, key: int, hidden: int, intermediate: int) -> tuple[Weight, ...]:
    """One layer, whose queries are ``query`` numbers wide and whose keys and values ``key``."""
    return (
        Weight("attention", query, hidden, shrinks=True),
        Weight("attention", key, hidden, copies=2, shrinks=True),
        Weight("attention", hidden, query, shrinks=True),
        Weight("norms", hidden, copies=2),
        Weight("mlp", intermediate, hidden, copies=2, shrinks=True),
        Weight("mlp", hidden, intermediate, shrinks=True),
    )


def all_weights(
    layer: tuple[Weight, ...], layers: int, hidden: int, vocabulary: int, *, tied: bool
) -> tuple[Weight, ...]:
    """Of the whole model: embeddings, equal layers, the last norm; a head, unless it is the embeddings."""
    table = Weight("embeddings", vocabulary, hidden)
    head = () if tied else (replace(table, module="head"),)
    every = (replace(weight, copies=weight.copies * layers) for weight in layer)
    return (table, *every, Weight("norms", hidden), *head)


def all_blocks(
    weights: tuple[Weight, ...], layer_weights: tuple[tuple[Weight, ...], ...], layers: int
) -> tuple[Block, ...]:
    """Of a model that does not say what goes together: equal layers, and all else. Nothing is found by their
    paths.
    """
    if len(layer_weights) != 1:
        return ()
    (layer,) = layer_weights
    inside = {replace(weight, copies=weight.copies * layers) for weight in layer}
    table = Block("", tuple(weight for weight in weights if weight not in inside))
    return (table, *(Block(f"{number}", layer, layer=True) for number in range(layers)))
