"""Where weights and cache go: the first of the steps that works, with its sentence, and the rows that the
room then holds.

Fits as it is; else the cache goes to RAM; else to the disk; else weights are split, by streaming them
(``planner/streaming.py``) where they are quantized or the page cache cannot hold what would be offloaded to
the disk. Only the user may choose what changes answers (quantization of weights or of the cache, a shorter
context): that is suggested, never done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.planner.budget import FAR_CACHE_SHARE, SHORTEST_TOKENS, Need, Place, Room, Wish
from pipeline.planner.memory import page_bytes
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.weight_split import Split, far_split, near_split, room_beside
from pipeline.planner.weight_streaming import Sweep, best_sweep, tokens_per_second
from pipeline.system.hardware import Rates
from pipeline.system.units import amount

Verdict = Literal["resident", "cache offloaded", "split", "does not fit"]
# How many times faster streaming must be than weights that stay, to be taken where they could.
_MUCH = 1.5


@dataclass(frozen=True, slots=True)
class Where:
    """Bytes of weights by place, the place of the cache, and the bytes that rows may fill together: there,
    and in memory beside it.

    ``sweep`` where weights are streamed, ``split`` where each block has its device.
    """

    verdict: Verdict
    weights: dict[Place, int]
    cache_place: Place
    room_bytes: int = 0
    near_room_bytes: int = 0
    sweep: Sweep | None = None
    split: Split | None = None

    @property
    def fetched_bytes(self) -> int:
        """Of weights, at every step."""
        return self.sweep.swept_bytes if self.sweep else self.weights["ram"] + self.weights["disk"]

    def most_rows(self, have: Room, wish: Wish) -> int:
        """Rows worth decoding together, whether they fit or not."""
        return wish.rows or (max(self.sweep.rows, have.most_rows) if self.sweep else have.most_rows)

    def rows(self, shape: ModelShape, have: Room, wish: Wish) -> int:
        """Rows of a typical length that decode together; none where nothing fits."""
        if self.verdict == "does not fit":
            return 0
        most, tokens, dtype = self.most_rows(have, wish), wish.typical_tokens, wish.kept_dtype
        fit = _times(self.room_bytes, shape.kv_bytes(tokens, dtype), most)
        if self.cache_place != "device":
            fit = min(fit, _times(self.near_room_bytes, shape.near_bytes(tokens, dtype), most))
        return max(1, min(most, fit))

    def batch_tokens(self, shape: ModelShape, wish: Wish, rows: int) -> int:
        """Rows x longest row that fit, whatever the lengths: every token counted in every layer, states
        counted a row.
        """
        dtype, most = wish.kept_dtype, rows * wish.context_tokens
        states = rows * shape.fixed_bytes_per_row(dtype)
        if self.room_bytes < states:
            return 0
        fit = min(most, _times(self.room_bytes - states, shape.kv_bytes_per_token(dtype), most))
        if self.cache_place != "device":
            a_token = shape.near_bytes(2, dtype) - shape.near_bytes(1, dtype)
            fit = min(fit, _times(max(0, self.near_room_bytes - states), a_token, most))
        # One row alone was found to fit; a layer at a time, it may be larger than a batch may be.
        return (
            max(fit, wish.row_tokens)
            if self.cache_place != "device" and self.verdict != "does not fit"
            else fit
        )


def _times(room_bytes: int, each_bytes: int, most: int) -> int:
    return room_bytes // each_bytes if each_bytes else most


def settle(shape: ModelShape, need: Need, have: Room, wish: Wish, rates: Rates, reasons: list[str]) -> Where:
    """Decide; each step that is passed leaves its sentence in ``reasons``."""
    verdict, weights, cache_place = _place(shape, need, have, wish, reasons)
    sweep = split = None
    if verdict == "split" and (wish.quantization != "none" or wish.must_stream):
        verdict, weights, cache_place, sweep = _stream(shape, need, have, wish, rates, reasons)
    elif verdict == "split" and wish.may_stream and weights["disk"]:
        sweep = _streamed_past_the_page_cache(shape, need, have, wish, rates, weights, cache_place, reasons)
    elif verdict == "resident" and wish.quantization != "none" and wish.may_stream:
        sweep = _faster_streamed(shape, need, have, wish, rates, reasons)
    near = have.device_bytes - weights["device"] - need.activation_bytes
    if sweep is not None:
        verdict, weights = "split", sweep.weights
        near = have.first_device_bytes - weights["device"] - sweep.pass_bytes - sweep.working_bytes
    elif verdict == "does not fit":
        near = 0 if need.weights_bytes > have.device_weights_bytes else near
    else:
        split = _split_of(shape, need, have, wish, verdict, cache_place)
        weights, near = split.by_place(have.computing), room_beside(split, shape, wish, need, have)
    near -= page_bytes(shape, wish.kept_dtype) if have.on_card else 0
    left = {
        "device": near,
        "ram": have.ram_bytes - weights["ram"],
        "disk": have.disk_bytes - weights["disk"],
    }[cache_place]
    beside = near if cache_place != "device" else 0
    return Where(
        verdict,
        weights,
        cache_place,
        max(0, int(left * (have.cache_share if cache_place == "device" else FAR_CACHE_SHARE))),
        max(0, int(beside * have.cache_share)),
        sweep,
        split,
    )


def _split_of(shape: ModelShape, need: Need, have: Room, wish: Wish, verdict: Verdict, cache: Place) -> Split:
    """The one that the verdict was found with."""
    if verdict == "split":
        found = far_split(shape, wish, need, have, cache)
    else:
        found = near_split(shape, wish, need, have)
    assert found is not None
    return found


def _place(
    shape: ModelShape, need: Need, have: Room, wish: Wish, reasons: list[str]
) -> tuple[Verdict, dict[Place, int], Place]:
    name, resident = have.device_name, _resident(need)
    asked = _asked(have, wish)
    held = need.weights_bytes <= have.device_weights_bytes
    held = held and near_split(shape, wish, need, have) is not None
    layer_by_layer = need.weights_bytes + need.activation_bytes + need.near_bytes
    if held and asked in ("ram", "disk") and layer_by_layer <= have.device_bytes:
        return _as_configured(need, have, asked, reasons)
    if held and asked in (None, "device") and need.together_bytes <= have.device_bytes:
        reasons.append(
            f"all of it fits {name}: {amount(need.together_bytes)} of {amount(have.device_bytes)} that "
            f"may be used"
        )
        return "resident", resident, "device"
    beside = need.weights_bytes + need.activation_bytes <= have.device_bytes
    if held and beside and (asked == "device" or layer_by_layer <= have.device_bytes):
        left = have.device_bytes - need.weights_bytes - need.activation_bytes
        reasons.append(
            f"the weights fit {name}, the cache of one row does not: it needs {amount(need.row_bytes)}, "
            f"{amount(left)} are left"
        )
        return _overflow(need, have, asked, reasons)
    most = min(have.device_weights_bytes, have.device_bytes)
    alone = need.weights_bytes > most
    what = "the weights alone do not fit" if alone else "the weights and what computes with them do not fit"
    least = need.weights_bytes if alone else min(layer_by_layer, need.together_bytes)
    reasons.append(
        f"{what} {name}: {amount(least)}, and {amount(most if alone else have.device_bytes)} may be used"
    )
    if wish.quantization != "none" and not wish.may_stream:
        reasons.append(
            f"weights in {wish.quantization} can be elsewhere only if they are streamed, which "
            f"engine.weights does not allow"
        )
        return "does not fit", resident, "device"
    if wish.quantization != "none" or wish.must_stream:
        return "split", resident, asked or "device"  # by streaming, if that holds
    return _split(shape, need, have, wish, reasons)


def _resident(need: Need) -> dict[Place, int]:
    return {"device": need.weights_bytes, "ram": 0, "disk": 0}


def _as_configured(
    need: Need, have: Room, asked: Place, reasons: list[str]
) -> tuple[Verdict, dict[Place, int], Place]:
    size, free = (need.row_bytes, have.ram_bytes) if asked == "ram" else (need.far_bytes, have.disk_bytes)
    where = "RAM" if asked == "ram" else "the disk of the run directory"
    if size > free:
        reasons.append(
            f"{where} does not hold the cache of one row: it needs {amount(size)}, {amount(free)} may be used"
        )
        return "does not fit", _resident(need), asked
    reasons.append(
        f"the cache goes to {where}, as configured ({amount(free)} that may be used), and comes back "
        f"layer by layer at every step"
    )
    return "cache offloaded", _resident(need), asked


def _overflow(
    need: Need, have: Room, asked: Place | None, reasons: list[str]
) -> tuple[Verdict, dict[Place, int], Place]:
    """The weights fit, the cache of the longest row does not."""
    if asked == "device":
        reasons.append("the cache stays there, as configured; kv_cache.placement auto would look further")
        return "does not fit", _resident(need), "device"
    if have.on_card and need.row_bytes <= have.ram_bytes:
        reasons.append(
            f"the cache goes to RAM ({amount(have.ram_bytes)} that may be used) and comes back layer by "
            f"layer at every step"
        )
        return "cache offloaded", _resident(need), "ram"
    if need.far_bytes <= have.disk_bytes:
        reasons.append(
            f"only the disk of the run directory holds the cache ({amount(have.disk_bytes)} free): one "
            f"layer at a time is in memory, and "
            "each is read again at every step, which is very slow"
        )
        return "cache offloaded", _resident(need), "disk"
    reasons.append("neither RAM nor disk holds that cache either")
    return "does not fit", _resident(need), "device"


def _asked(have: Room, wish: Wish) -> Place | None:
    """Where the configuration wants the cache. Without a card RAM is where it computes anyway."""
    return None if wish.cache_place == "ram" and not have.on_card else wish.cache_place


def _cache_places(have: Room, asked: Place | None) -> tuple[Place, ...]:
    return (asked,) if asked else ("device", "ram", "disk") if have.on_card else ("device", "disk")


def _split(
    shape: ModelShape, need: Need, have: Room, wish: Wish, reasons: list[str]
) -> tuple[Verdict, dict[Place, int], Place]:
    """Blocks on the device first, then RAM, then disk; room is kept free for the one that is computed, and
    for one row.
    """
    for place in _cache_places(have, _asked(have, wish)):
        split = far_split(shape, wish, need, have, place)
        if split is not None:
            weights = split.by_place(have.computing)
            _say_where("unquantized weights may be split", weights, place, have, reasons)
            return "split", weights, place
    reasons.append(_nothing_holds(have))
    return "does not fit", _resident(need), "device"


def _stream(
    shape: ModelShape, need: Need, have: Room, wish: Wish, rates: Rates, reasons: list[str]
) -> tuple[Verdict, dict[Place, int], Place, Sweep | None]:
    """The first place of the cache with which a sweep holds."""
    asked = _asked(have, wish)
    for place in _cache_places(have, asked):
        sweep = best_sweep(shape, need, have, wish, place, rates, have.chunk_tokens(shape, wish))
        if sweep is not None:
            _say_where(_streamed(wish), sweep.weights, place, have, reasons)
            if sweep.rows > 1:
                together = min(sweep.rows, sweep.micro_batch_rows)
                reasons.append(
                    f"up to {sweep.rows} rows share a sweep, {together} at a time in each layer: more "
                    f"weights on the device and fewer "
                    "rows, or the other way round, would give fewer tokens a second"
                )
            return "split", sweep.weights, place, sweep
    reasons.append(_nothing_holds(have))
    return "does not fit", _resident(need), "device", None


def _streamed_past_the_page_cache(
    shape: ModelShape,
    need: Need,
    have: Room,
    wish: Wish,
    rates: Rates,
    offloaded: dict[Place, int],
    cache: Place,
    reasons: list[str],
) -> Sweep | None:
    """Where the page cache cannot hold what the library would offload to the disk; None where it can, or a
    sweep does not hold.

    Where it can, plain offload is faster: its pages are used where they lie. ``why_streamed`` asks the same
    of the machine when it loads.
    """
    cached = have.page_cache_bytes(offloaded, beside=need.activation_bytes + need.row_bytes)
    if offloaded["disk"] <= cached:
        return None
    sweep = best_sweep(shape, need, have, wish, cache, rates, have.chunk_tokens(shape, wish))
    if sweep is not None:
        reasons.append(
            f"but {amount(cached)} of page cache cannot hold what is on the disk: it would be read anew "
            f"at every step"
        )
        _say_where(_streamed(wish), sweep.weights, cache, have, reasons)
    return sweep


def _streamed(wish: Wish) -> str:
    return (
        f"weights in {wish.quantization} are streamed"
        if wish.quantization != "none"
        else "weights are streamed"
    )


def _faster_streamed(
    shape: ModelShape, need: Need, have: Room, wish: Wish, rates: Rates, reasons: list[str]
) -> Sweep | None:
    """Where weights fit but leave room for so few rows that letting some of them go would be much faster; on
    a processor only.

    Between host and card nothing of this was measured, so there weights stay if they can; not if that leaves
    no room to work in.
    """
    room = int((have.device_bytes - need.weights_bytes - need.activation_bytes) * have.cache_share)
    rows = min(wish.rows or have.most_rows, _times(room, need.row_bytes, have.most_rows))
    too_few = room < shape.kv_bytes(min(wish.context_tokens, SHORTEST_TOKENS), wish.kept_dtype)
    if (have.on_card or rows >= (wish.rows or have.most_rows)) and not too_few:
        return None
    sweep = best_sweep(shape, need, have, wish, "device", rates, have.chunk_tokens(shape, wish))
    if sweep is None:
        return None
    streamed = tokens_per_second(shape, have, wish, rates, sweep.rows, wish.row_tokens, sweep)
    gain = streamed / tokens_per_second(shape, have, wish, rates, max(1, rows), wish.row_tokens)
    if gain < _MUCH and not too_few:
        return None
    reasons.append(
        f"but that leaves room for {rows} such rows; streaming makes room for {sweep.rows}, and "
        f"{gain:.1f} times the speed"
    )
    _say_where(_streamed(wish), sweep.weights, "device", have, reasons)
    return sweep


def _say_where(how: str, spread: dict[Place, int], cache: Place, have: Room, reasons: list[str]) -> None:
    names: dict[Place, str] = {"device": have.device_name, "ram": "in RAM", "disk": "on the disk"}
    parts = [f"{amount(spread[where])} {names[where]}" for where in names if spread[where]]
    reasons.append(
        f"{how}: {', '.join(parts)}; what is not on the device is fetched at every step, once for all rows"
    )
    if cache != "device":
        reasons.append(f"the cache is {names[cache]} and comes back layer by layer at every step")


def _nothing_holds(have: Room) -> str:
    return (
        "graphics card, RAM and disk together do not hold it"
        if have.on_card
        else "RAM and disk together do not hold it"
    )
