"""What to do about it: the changes that lead to the next better step, and what the user should know before
the night.
"""

from __future__ import annotations

from pipeline.planner.budget import Need, Room, Wish
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.placement import Where
from pipeline.system.units import amount

_SHORTEST_USEFUL_TOKENS = 512
_LESS: dict[str, tuple[str, ...]] = {"none": ("int8", "nf4"), "int8": ("nf4",), "nf4": ()}


def next_steps(shape: ModelShape, need: Need, have: Room, wish: Wish, verdict: str, rows: int) -> list[str]:
    """What would have to change for the next better step, the cheapest first."""
    if verdict == "resident":
        most = wish.rows or have.most_rows
        if rows >= most:
            return []
        more = shape.kv_bytes(wish.typical_tokens, wish.kept_dtype, rows) / have.cache_share
        return [
            (
                f"{amount(more / have.usable_share)} more {have.memory_name} would let {2 * rows} rows "
                f"decode "
                f"together instead of {rows}"
            )
        ]
    found = []
    if wish.cache_place in ("ram", "disk") and need.together_bytes <= have.device_bytes:
        return [f"with kv_cache.placement auto everything stays {have.device_name}: it fits"]
    if have.device_weights_bytes < need.weights_bytes and need.together_bytes <= have.device_bytes:
        return [
            (
                f"with {amount(need.weights_bytes)} allowed by model.max_memory everything fits "
                f"{have.device_name}"
            )
        ]
    left = have.device_bytes - need.weights_bytes - need.activation_bytes
    if left > 0:
        shorter = shape.tokens_in(left, wish.kept_dtype)
        if shorter >= _SHORTEST_USEFUL_TOKENS or shorter < 0:
            context = wish.context_tokens if shorter < 0 else min(wish.context_tokens, shorter // 128 * 128)
            found.append(
                f"with model.context_tokens {context:,} everything fits {have.device_name}; longer "
                f"documents are split"
            )
    if left > 0 and not wish.cache_dtype and all(layer.kind == "full" for layer in shape.kinds):
        packed = amount(shape.kv_bytes(wish.row_tokens, "float8"))
        found.append(
            f"with kv_cache.placement quantized the cache takes {packed} in 8 bits, which may change answers"
        )
    for less in _LESS[wish.quantization]:
        smaller = shape.weights_bytes(less, wish.dtype)
        if smaller + need.row_bytes + need.activation_bytes <= have.device_bytes:
            found.append(
                f"with model.quantization {less} the weights take {amount(smaller)} and everything fits "
                f"{have.device_name}"
            )
            break
    if verdict == "does not fit" and wish.quantization != "none":
        found.append(
            "with model.quantization none the weights may be split over card, RAM and disk, which works "
            "but is slow"
        )
    if verdict == "does not fit" and have.on_card and need.together_bytes <= have.ram_bytes:
        found.append(
            f"with model.device_map cpu everything is computed in RAM ({amount(have.ram_bytes)} may be "
            f"used), slowly"
        )
    if verdict == "does not fit" and wish.cache_place is not None and not wish.cache_dtype:
        found.append(
            f"with kv_cache.placement auto RAM ({amount(have.ram_bytes)} beside) and disk "
            f"({amount(have.disk_bytes)}) are tried too"
        )
    short = need.together_bytes - have.device_bytes
    found.append(f"{amount(short / have.usable_share)} more {have.memory_name} would hold everything")
    return found


def warnings_about(shape: ModelShape, need: Need, wish: Wish, where: Where, have: Room) -> list[str]:
    """What saves less than hoped, what costs more than it need, what a run will refuse."""
    found: list[str] = []
    experts = sum(weight.parameters for weight in shape.weights if weight.module == "experts")
    if wish.quantization != "none" and experts * 2 > shape.parameters:
        found.append(
            f"{experts / shape.parameters:.0%} of the parameters are experts, which bitsandbytes does not "
            f"shrink: "
            f"{wish.quantization} saves only "
            f"{1 - need.weights_bytes / shape.weights_bytes('none', wish.dtype):.0%}; "
            "take a dense model, or one published in 4 bits"
        )
    elif wish.quantization != "none" and not any(weight.shrinks for weight in shape.weights):
        found.append(f"bitsandbytes shrinks nothing of this family: {wish.quantization} saves no memory")
    if shape.attention() == "MHA" and where.verdict == "cache offloaded" and shape.query_heads >= 16:
        grouped = shape.with_kv_heads(8).kv_bytes(wish.row_tokens, wish.kept_dtype)
        found.append(
            f"it is the cache that does not fit, and this model keeps keys and values for all "
            f"{shape.query_heads} heads (MHA); a GQA model "
            f"of this size with 8 KV heads would need {amount(grouped)} instead of {amount(need.row_bytes)}"
        )
    if where.cache_place == "disk" and wish.cache_place is None:
        found.append(
            "the longest documents' caches fit in no memory: all rows are decoded from the disk, layer by "
            "layer"
        )
    if have.on_card and shape.assumed and shape.family:
        found.append(f"the model ({shape.family}) could not be asked: all of this is reckoned as for a Llama")
    return found
