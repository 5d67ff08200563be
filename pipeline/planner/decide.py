"""The decision, step by step: fits as it is, else quantize, else split, else offload the cache; then rows, layout and store.

The result is a Forecast: predictions to set beside the outcome, and reasons in sentences. Nothing here changes a configuration: what
is the user's choice (model, quantization, context) is only suggested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.planner.advice import next_steps, warnings_about
from pipeline.planner.describing import amount, duration
from pipeline.planner.hardware import Hardware
from pipeline.planner.rooms import Need, Room, Wish, rooms
from pipeline.planner.shape import ModelShape
from pipeline.planner.throughput import (
    Duration,
    Speed,
    Step,
    cache_write_bytes,
    decode_step,
    load_seconds,
    prefill_seconds,
    reuse_crossover_tokens,
    work_duration,
)

Verdict = Literal["resident", "cache offloaded", "split", "does not fit"]
Place = Literal["device", "ram", "disk"]
__all__ = ["Forecast", "Wish", "decide", "describe"]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What will be where, how much of it, how fast and for how long. Bytes by place; None: not known, as a rate is not.

    ``reasons`` follow the decision in order; ``next_steps`` say what would have to change for the next better one.
    """

    verdict: Verdict
    weights_bytes: dict[Place, int]
    cache_place: Place
    rows: int
    context_tokens: int
    vram_peak_bytes: int
    ram_peak_bytes: int
    disk_peak_bytes: int
    step: Step | None
    load_seconds: float | None
    prefill_seconds: float | None
    crossover_tokens: int | None
    work: Duration | None
    store_bytes: int | None
    layout: Literal["instructions_first", "document_first"]
    keep_documents: bool
    reasons: tuple[str, ...]
    next_steps: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether a run can be started."""
        return self.verdict != "does not fit"


def decide(shape: ModelShape, hardware: Hardware, wish: Wish) -> Forecast:
    """Where everything goes on this machine. Never raises for what does not fit: the verdict says it."""
    need = Need.of(shape, wish.quantization, wish.dtype, wish.context_tokens, wish.chunk_tokens)
    have = rooms(hardware)
    reasons = [_about(shape, need, wish, have)]
    verdict, weights, cache_place = _place(need, have, wish.quantization, reasons)
    typical = wish.typical_tokens
    rows = _rows(shape, need, have, wish, weights, cache_place) if verdict != "does not fit" else 0
    cache = max(need.row_bytes, shape.kv_bytes(typical, wish.dtype, rows)) if rows else 0
    steps = next_steps(shape, need, have, wish, verdict, rows)
    warnings = warnings_about(shape, need, wish, verdict, have)
    speed = Speed(hardware.rates)
    timing = _Timing.of(shape, have, speed, wish, weights, cache_place, rows) if rows else _Timing()
    reasons += _rows_and_time(rows, timing, wish, have)
    layout, keep, store = _store(shape, timing, wish, reasons)
    if have.on_card and verdict == "resident":
        reasons.append(
            "it fits in the card's memory: if many people wait for answers, serve it with vLLM or TGI; for a night's work stay here"
        )
    on_device = weights["device"] + need.activation_bytes + (cache if cache_place == "device" else 0)
    in_ram = weights["ram"] + (cache if cache_place == "ram" else 0)
    return Forecast(
        verdict=verdict,
        weights_bytes=weights,
        cache_place=cache_place,
        rows=rows,
        context_tokens=wish.context_tokens,
        vram_peak_bytes=on_device if have.on_card else 0,
        ram_peak_bytes=in_ram if have.on_card else on_device + in_ram,
        disk_peak_bytes=weights["disk"] + (cache if cache_place == "disk" else 0) + (store if keep and store else 0),
        step=timing.step,
        load_seconds=timing.load,
        prefill_seconds=timing.prefill,
        crossover_tokens=timing.crossover,
        work=timing.work,
        store_bytes=store,
        layout=layout,
        keep_documents=keep,
        reasons=tuple(reasons),
        next_steps=tuple(steps),
        warnings=tuple(warnings),
    )


def _about(shape: ModelShape, need: Need, wish: Wish, have: Room) -> str:
    return (
        f"{shape.parameters / 1e9:.2f} billion parameters ({shape.describe()}): {amount(need.weights_bytes)} of weights in "
        f"{wish.quantization} ({wish.dtype}), {amount(need.row_bytes)} of cache for one row of {wish.context_tokens:,} tokens and about "
        f"{amount(need.activation_bytes)} of activations; {have.describe()}"
    )


def _place(need: Need, have: Room, quantization: str, reasons: list[str]) -> tuple[Verdict, dict[Place, int], Place]:
    """The first of the steps that works, with its sentence."""
    name = have.device_name
    resident: dict[Place, int] = {"device": need.weights_bytes, "ram": 0, "disk": 0}
    if need.together_bytes <= have.device_bytes:
        reasons.append(f"all of it fits {name}: {amount(need.together_bytes)} of {amount(have.device_bytes)} that may be used")
        return "resident", resident, "device"
    if need.weights_bytes + need.activation_bytes <= have.device_bytes:
        left = have.device_bytes - need.weights_bytes - need.activation_bytes
        reasons.append(f"the weights fit {name}, the cache of one row does not: it needs {amount(need.row_bytes)}, {amount(left)} are left")
        if have.on_card and need.row_bytes <= have.ram_bytes:
            reasons.append(f"the cache goes to RAM ({amount(have.ram_bytes)} that may be used) and comes back layer by layer at every step")
            return "cache offloaded", resident, "ram"
        if need.row_bytes <= have.disk_bytes:
            reasons.append(f"only the disk holds the cache ({amount(have.disk_bytes)} free), which is very slow")
            return "cache offloaded", resident, "disk"
        reasons.append("neither RAM nor disk holds that cache either")
        return "does not fit", resident, "device"
    reasons.append(f"the weights alone do not fit {name}: {amount(need.weights_bytes)}, and {amount(have.device_bytes)} may be used")
    if quantization != "none":
        reasons.append(f"weights in {quantization} cannot be spread over RAM or disk: bitsandbytes wants them where they are computed")
        return "does not fit", resident, "device"
    return _split(need, have, reasons)


def _split(need: Need, have: Room, reasons: list[str]) -> tuple[Verdict, dict[Place, int], Place]:
    """Layers on the device first, then RAM, then disk; one layer's room is kept free for the one that is computed."""
    beside = need.row_bytes + need.activation_bytes + 2 * need.layer_bytes
    near = max(0, have.device_bytes - beside) if have.on_card or have.device_bytes > beside else 0
    near -= near % max(need.layer_bytes, 1)
    rest = need.weights_bytes - near
    in_ram = min(rest, have.ram_bytes)
    on_disk = rest - in_ram
    weights: dict[Place, int] = {"device": near, "ram": in_ram, "disk": on_disk}
    if on_disk > have.disk_bytes or have.device_bytes < beside:
        reasons.append("graphics card, RAM and disk together do not hold it")
        return "does not fit", weights, "device"
    parts = [f"{amount(size)} {where}" for size, where in ((near, have.device_name), (in_ram, "in RAM"), (on_disk, "on the disk")) if size]
    reasons.append(f"unquantized weights may be split: {', '.join(parts)}; what is not on the device is fetched at every step")
    return "split", weights, "device"


def _rows(shape: ModelShape, need: Need, have: Room, wish: Wish, weights: dict[Place, int], cache_place: Place) -> int:
    """Rows that decode together: from the room left where the cache is."""
    most = wish.rows or have.most_rows
    left = {
        "device": have.device_bytes - weights["device"] - need.activation_bytes,
        "ram": have.ram_bytes - weights["ram"],
        "disk": have.disk_bytes - weights["disk"],
    }[cache_place]
    row = shape.kv_bytes(wish.typical_tokens, wish.dtype)
    return max(1, min(most, left // row if row else most))


@dataclass(frozen=True, slots=True)
class _Timing:
    """Times, where the rates for them are known."""

    step: Step | None = None
    load: float | None = None
    prefill: float | None = None
    crossover: int | None = None
    work: Duration | None = None

    @classmethod
    def of(
        cls, shape: ModelShape, have: Room, speed: Speed, wish: Wish, weights: dict[Place, int], cache_place: Place, rows: int
    ) -> _Timing:
        if speed.rates.memory_bytes_per_second is None or speed.rates.matmul_per_second is None:
            return cls()
        far = weights["ram"] + weights["disk"]
        tokens = wish.typical_tokens
        moved = far + (shape.kv_bytes(tokens, wish.dtype, rows) if cache_place != "device" else 0)
        disk = bool(weights["disk"]) or cache_place == "disk"
        link = have.link_bytes_per_second(speed.rates, disk)
        step = decode_step(
            shape, speed, quantization=wish.quantization, dtype=wish.dtype, rows=rows, tokens=tokens,
            transferred_bytes=moved, link_bytes_per_second=link,
        )  # fmt: skip
        known_disk = speed.rates.disk_read_bytes_per_second is not None
        work = None
        if wish.work is not None:
            work = work_duration(
                shape, speed, wish.work, quantization=wish.quantization, dtype=wish.dtype, rows=rows, offloaded_bytes=far,
                cache_offloaded=cache_place != "device", link_bytes_per_second=link,
            )  # fmt: skip
        return cls(
            step=step,
            load=load_seconds(shape.weights_bytes("none", "bfloat16"), speed.rates) if known_disk else None,
            prefill=prefill_seconds(shape, wish.context_tokens, speed),
            crossover=reuse_crossover_tokens(shape, speed, wish.dtype) if known_disk else None,
            work=work,
        )


def _rows_and_time(rows: int, timing: _Timing, wish: Wish, have: Room) -> list[str]:
    if not rows:
        return []
    found = [f"{rows} row{'' if rows == 1 else 's'} of {wish.typical_tokens:,} tokens decode together in the room that is left"]
    step = timing.step
    if step is not None and step.transfer_seconds:
        hides = "computing hides the transfer" if step.hidden else "computing does not hide it"
        found.append(
            f"each step moves bytes for {duration(step.transfer_seconds)} over {have.link_name}, and computes for "
            f"{duration(step.resident_seconds)}: {hides}, decoding is {step.slowdown:.1f} times slower than with everything on the device"
        )
    if timing.work is not None and timing.work.documents:
        low, high = timing.work.range_seconds
        found.append(
            f"{timing.work.documents:,} documents take about {duration(timing.work.seconds)} ({duration(low)} to {duration(high)} by the "
            f"sample of lengths): {timing.work.documents_per_hour:,.0f} an hour"
        )
        if wish.deadline_seconds is not None:
            late = timing.work.seconds - wish.deadline_seconds
            found.append(
                f"that is {duration(late)} too long for the deadline; the rest is done by running the same command again"
                if late > 0
                else f"that ends {duration(-late)} before the deadline"
            )
    return found


def _store(
    shape: ModelShape, timing: _Timing, wish: Wish, reasons: list[str]
) -> tuple[Literal["instructions_first", "document_first"], bool, int | None]:
    """Layout and whether documents' caches are worth keeping, with the reason."""
    if wish.work is None:
        return "instructions_first", False, None
    size = cache_write_bytes(shape, wish.work, wish.dtype)
    if wish.tasks < 2:
        reasons.append("one task only: instructions come first, so that all prompts share them; documents' caches would not be read again")
        return "instructions_first", False, size
    crossover = timing.crossover
    if crossover is None or wish.work.mean_tokens <= crossover:
        why = "reading a stored cache never beats computing it here" if crossover is None else f"only beyond {crossover:,} tokens it pays"
        reasons.append(f"documents' caches are not kept: {why}")
        return "instructions_first", False, size
    if size > wish.store_quota_bytes:
        reasons.append(
            f"documents' caches would pay (beyond {crossover:,} tokens), but take {amount(size)} and the quota is "
            f"{amount(wish.store_quota_bytes)}: raise kv_cache.store.quota"
        )
        return "instructions_first", False, size
    reasons.append(
        f"{wish.tasks} tasks ask about each document: the document comes first, and its cache ({amount(size)} in all) is kept, as "
        f"reading it beats computing it beyond {crossover:,} tokens"
    )
    return "document_first", True, size


def describe(forecast: Forecast) -> Sequence[str]:
    """The forecast as lines for people."""
    lines = [f"verdict: {forecast.verdict}"]
    lines += [f"- {reason}" for reason in forecast.reasons]
    lines += [f"! {warning}" for warning in forecast.warnings]
    lines += [f"> {step}" for step in forecast.next_steps]
    return lines
