"""Which documents' caches a night keeps on disk, what they take, and from which length on reading one beats
computing it.

The rules are those of the store and of the engine that asks it: sizes, formats and the comparison of speeds
are theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.planner.budget import Wish
from pipeline.planner.model.layers import dtype_bytes
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.roofline import Speed, prefill_seconds
from pipeline.stores.kv.io_speed import worth_loading
from pipeline.stores.kv.sizes import entry_bytes
from pipeline.system.units import amount

_SHORTEST_TOKENS, _LONGEST_TOKENS = 64, 1 << 20


@dataclass(frozen=True, slots=True)
class Keeping:
    """``all_bytes``: the caches of all documents; ``store_bytes``: what the store then holds of them. None:
    lengths are not known.
    """

    keeps: bool
    all_bytes: int | None = None
    store_bytes: int = 0


def document_bytes(shape: ModelShape, tokens: int, wish: Wish) -> int:
    """Bytes of one document's entry in the store."""
    element = dtype_bytes(wish.dtype)
    full = [layer for layer in shape.kinds if layer.window is None and layer.numbers_per_token]
    states: list[tuple[int, ...]] = [
        (layer.heads, layer.kept_tokens(tokens), width)
        for layer in shape.kinds
        if layer.window is not None
        for width in (layer.key_dim, layer.value_dim)
    ]
    states += [
        (layer.fixed_bytes(wish.dtype) // element,) for layer in shape.kinds if layer.fixed_bytes(wish.dtype)
    ]
    return entry_bytes(
        [(layer.heads, layer.key_dim, layer.value_dim) for layer in full],
        tokens,
        element_bytes=element,
        storage_format=wish.store.storage_format,
        states=states,
    )


def crossover_tokens(shape: ModelShape, speed: Speed, wish: Wish) -> int | None:
    """Tokens from which on reading a stored cache beats computing it again; None where it does not at any
    length that is used.

    Bytes grow with the length, computing grows faster (attention), so that beyond the first such length all
    are.
    """
    rate = wish.store.read_bytes_per_second or speed.rates.disk_read_bytes_per_second
    if rate is None:
        return None

    def pays(tokens: int) -> bool:
        computing = tokens / prefill_seconds(shape, tokens, speed)
        return worth_loading(document_bytes(shape, tokens, wish), rate, tokens, computing)

    low, high = _SHORTEST_TOKENS, _LONGEST_TOKENS
    if not pays(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle + 1, high)
    return low


def keeping(shape: ModelShape, wish: Wish, crossover: int | None, reasons: list[str]) -> Keeping:
    """What the store will do, with its sentence."""
    lengths = [asked.tokens for asked in wish.loads[0].sample] if wish.loads else []
    if not lengths:
        return Keeping(False)
    size = _all_bytes(shape, wish, lengths)
    keeps = _keeps(wish, sum(lengths) / len(lengths), crossover, size, reasons)
    return Keeping(keeps, size, min(size, wish.store.quota_bytes) if keeps else 0)


def _all_bytes(shape: ModelShape, wish: Wish, lengths: list[int]) -> int:
    sizes = [document_bytes(shape, tokens, wish) for tokens in lengths]
    return int(wish.loads[0].total(sizes).value)


def _keeps(wish: Wish, mean_tokens: float, crossover: int | None, size: int, reasons: list[str]) -> bool:
    store = wish.store
    if not store.quota_bytes or store.documents == "never":
        why = "kv_cache.store.quota is 0" if not store.quota_bytes else "kv_cache.store.documents is never"
        reasons.append(f"documents' caches are not kept: {why}")
        return False
    if store.documents == "auto" and (wish.questions_asked < 2 or wish.layout == "instructions_first"):
        reasons.append(_why_not_asked_again(wish, crossover, size))
        return False
    if store.documents == "auto" and (crossover is None or mean_tokens < crossover):
        pays = (
            "reading a stored cache never beats computing it here"
            if crossover is None
            else f"only beyond {crossover:,} tokens it pays"
        )
        reasons.append(f"documents' caches are not kept on disk: {pays}")
        return False
    why = (
        "kv_cache.store.documents is always"
        if store.documents == "always"
        else f"{wish.questions_asked} questions are asked about each document"
    )
    order = "the document comes first" if wish.layout == "document_first" else "instructions come first"
    beats = (
        f", as reading one beats computing it beyond {crossover:,} tokens" if crossover is not None else ""
    )
    reasons.append(f"{why}: {order}, and documents' caches ({amount(size)} in all) are kept{beats}")
    if size > store.quota_bytes:
        reasons.append(
            f"the quota of {amount(store.quota_bytes)} holds about {store.quota_bytes / size:.0%} of "
            f"them, the others are read again: "
            "raise kv_cache.store.quota"
        )
    return True


def _why_not_asked_again(wish: Wish, crossover: int | None, size: int) -> str:
    if wish.questions_asked < 2:
        return (
            "one question only: instructions come first, so that all prompts share them; documents' "
            "caches would not be read again"
        )
    pays = (
        f", and reading its stored cache would beat computing it beyond {crossover:,} tokens "
        f"({amount(size)} in all)"
        if crossover
        else ""
    )
    return (
        f"{wish.questions_asked} questions are asked about each document{pays}; this night puts "
        f"instructions first, so that a task's "
        "prompts share their beginning instead"
    )
