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
from pipeline.planner.peaks import CARD_CONTEXT_BYTES, LIBRARY_BYTES, activations_bytes, head_copy_bytes, mapped_bytes, slots_bytes, stored
from pipeline.planner.rooms import CACHE_SHARE, Need, Place, Room, Wish, rooms
from pipeline.planner.shape import ModelShape
from pipeline.planner.throughput import Duration, Step, cache_write_bytes
from pipeline.planner.timing import TaskTime, Timing

Verdict = Literal["resident", "cache offloaded", "split", "does not fit"]
__all__ = ["Forecast", "Wish", "decide", "describe"]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What will be where, how much of it, how fast and for how long. Bytes by place; None: not known, as a rate is not.

    ``ram_mapped_bytes`` of the RAM peak are pages of the weight files, which the system takes back when memory is short.
    ``cache_room_bytes`` is what rows may fill together.
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
    ram_mapped_bytes: int
    activation_bytes: int
    cache_bytes: int
    cache_room_bytes: int
    transfer_bytes: int
    step: Step | None
    load_seconds: float | None
    prefill_seconds: float | None
    crossover_tokens: int | None
    work: Duration | None
    tasks: tuple[TaskTime, ...]
    store_bytes: int | None
    layout: Literal["instructions_first", "document_first"]
    keep_documents: bool
    deadline_seconds: float | None
    reasons: tuple[str, ...]
    next_steps: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether a run can be started."""
        return self.verdict != "does not fit"


def decide(shape: ModelShape, hardware: Hardware, wish: Wish) -> Forecast:
    """Where everything goes on this machine. Never raises for what does not fit: the verdict says it."""
    have = rooms(hardware, wish.process_bytes)
    chunk = wish.chunk_tokens or have.chunk_tokens
    need = Need.of(shape, wish.quantization, wish.dtype, wish.context_tokens, chunk, have.on_card)
    reasons = [_about(shape, need, wish, have)]
    verdict, weights, cache_place = _place(need, have, wish, reasons)
    room = _cache_room(have, need, weights, cache_place)
    rows = _rows(shape, have, wish, room) if verdict != "does not fit" else 0
    timing = Timing.of(shape, have, hardware.rates, wish, weights, cache_place, rows) if rows else Timing()
    reasons += _rows_and_time(rows, timing, wish, have)
    layout, keep, store = _store(shape, timing, wish, reasons)
    if have.on_card and verdict == "resident":
        reasons.append(
            "it fits in the card's memory: if many people wait for answers, serve it with vLLM or TGI; for a night's work stay here"
        )
    peaks = _peaks(shape, wish, have, need, chunk, weights, cache_place, rows)
    moved = weights["ram"] + weights["disk"]
    return Forecast(
        verdict=verdict,
        weights_bytes=weights,
        cache_place=cache_place,
        rows=rows,
        context_tokens=wish.context_tokens,
        vram_peak_bytes=peaks.vram,
        ram_peak_bytes=peaks.ram,
        disk_peak_bytes=weights["disk"] + (peaks.cache if cache_place == "disk" else 0) + (store if keep and store else 0),
        ram_mapped_bytes=peaks.mapped,
        activation_bytes=peaks.activations,
        cache_bytes=peaks.cache,
        cache_room_bytes=room,
        transfer_bytes=moved + (shape.kv_bytes(wish.typical_tokens, wish.dtype, rows) if cache_place != "device" else 0),
        step=timing.step,
        load_seconds=timing.load,
        prefill_seconds=timing.prefill,
        crossover_tokens=timing.crossover,
        work=timing.work,
        tasks=timing.tasks,
        store_bytes=store,
        layout=layout,
        keep_documents=keep,
        deadline_seconds=wish.deadline_seconds,
        reasons=tuple(reasons),
        next_steps=tuple(next_steps(shape, need, have, wish, verdict, rows)),
        warnings=tuple(warnings_about(shape, need, wish, verdict, have)),
    )


@dataclass(frozen=True, slots=True)
class _Peaks:
    vram: int
    ram: int
    mapped: int
    activations: int
    cache: int


def _peaks(
    shape: ModelShape, wish: Wish, have: Room, need: Need, chunk: int, weights: dict[Place, int], cache_place: Place, rows: int
) -> _Peaks:  # fmt: skip
    """The fullest moment: while the weights are read, or while the longest rows are under way."""
    questions = wish.questions
    if questions and rows:
        documents = max(load.documents for load in wish.loads)
        cache = max(
            slots_bytes(shape, wish.dtype, rows, [question.row_tokens for asked in load.sample for question in asked.questions],
                        round(load.documents * load.questions_a_document))
            for load in wish.loads
        )  # fmt: skip
        shared = {question.shared_tokens for question in questions if question.shared_tokens}
        cache += sum(shape.kv_bytes(tokens, wish.dtype) for tokens in shared)
        own = max(1, sum(question.own_tokens for question in questions) // len(questions))
        tokens = min(chunk, own * max(1, documents))
        together = max(1, tokens // own)
        logits = together * max(question.logits for question in questions)
        activations = activations_bytes(shape, wish.dtype, tokens, together, 0, have.on_card)
        activations = max(activations, logits * shape.vocabulary * 4)
        writers = rows if any(question.new_tokens for question in questions) else 0
        activations += head_copy_bytes(shape, wish.dtype, max(logits, min(writers, documents)), have.on_card)
        activations += need.activation_bytes - activations_bytes(
            shape, wish.dtype, min(chunk, wish.context_tokens), 1, wish.context_tokens - min(chunk, wish.context_tokens), have.on_card
        )  # what unpacking a quantized weight takes
    else:
        cache = max(need.row_bytes, shape.kv_bytes(wish.typical_tokens, wish.dtype, rows)) if rows else 0
        activations = need.activation_bytes
    files = stored(shape, wish.stored_dtype, wish.dtype)
    on_device = weights["device"] + activations + (cache if cache_place == "device" else 0)
    in_ram = wish.process_bytes + LIBRARY_BYTES + weights["ram"] + (cache if cache_place == "ram" else 0)
    if have.on_card:
        mapped = files.stored_bytes
        return _Peaks(CARD_CONTEXT_BYTES * have.cards + on_device, in_ram + mapped, mapped, activations, cache)
    loading = in_ram + weights["device"] + mapped_bytes(files, wish.quantization, working=False)
    working = in_ram + on_device + mapped_bytes(files, wish.quantization, working=True)
    return _Peaks(0, max(loading, working), mapped_bytes(files, wish.quantization, working=working >= loading), activations, cache)


def _about(shape: ModelShape, need: Need, wish: Wish, have: Room) -> str:
    return (
        f"{shape.parameters / 1e9:.2f} billion parameters ({shape.describe()}): {amount(need.weights_bytes)} of weights in "
        f"{wish.quantization} ({wish.dtype}), {amount(need.row_bytes)} of cache for one row of {wish.context_tokens:,} tokens and about "
        f"{amount(need.activation_bytes)} of activations; {have.describe()}"
    )


def _place(need: Need, have: Room, wish: Wish, reasons: list[str]) -> tuple[Verdict, dict[Place, int], Place]:
    """The first of the steps that works, with its sentence."""
    name, quantization = have.device_name, wish.quantization
    if wish.cache_place == "ram" and have.on_card and need.weights_bytes + need.activation_bytes <= have.device_bytes:
        reasons.append(f"the cache goes to RAM, as configured ({amount(have.ram_bytes)} that may be used)")
        return "cache offloaded", {"device": need.weights_bytes, "ram": 0, "disk": 0}, "ram"
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


def _cache_room(have: Room, need: Need, weights: dict[Place, int], cache_place: Place) -> int:
    """Bytes that rows may fill together where the cache is."""
    left = {
        "device": have.device_bytes - weights["device"] - need.activation_bytes,
        "ram": have.ram_bytes - weights["ram"],
        "disk": have.disk_bytes - weights["disk"],
    }[cache_place]
    return max(0, int(left * CACHE_SHARE))


def _rows(shape: ModelShape, have: Room, wish: Wish, room: int) -> int:
    """Rows that decode together in ``room`` bytes."""
    most = wish.rows or have.most_rows
    row = shape.kv_bytes(wish.typical_tokens, wish.dtype)
    return max(1, min(most, room // row if row else most))


def _rows_and_time(rows: int, timing: Timing, wish: Wish, have: Room) -> list[str]:
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
        span = f" ({duration(low)} to {duration(high)} by the sample of lengths)" if timing.work.relative_error else ""
        found.append(
            f"{timing.work.documents:,} documents take about {duration(timing.work.seconds)}{span}: "
            f"{timing.work.documents_per_hour:,.0f} an hour"
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
    shape: ModelShape, timing: Timing, wish: Wish, reasons: list[str]
) -> tuple[Literal["instructions_first", "document_first"], bool, int | None]:
    """Layout and whether documents' caches are worth keeping, with the reason."""
    lengths = [asked.tokens for asked in wish.loads[0].sample] if wish.loads else list(wish.work.lengths) if wish.work else []
    if not lengths:
        return "instructions_first", False, None
    mean_tokens = sum(lengths) / len(lengths)
    if wish.loads:
        size = int(wish.loads[0].total([shape.kv_bytes(tokens, wish.dtype) for tokens in lengths]).value)
    else:
        assert wish.work is not None
        size = cache_write_bytes(shape, wish.work, wish.dtype)
    if wish.tasks < 2:
        reasons.append("one task only: instructions come first, so that all prompts share them; documents' caches would not be read again")
        return "instructions_first", False, size
    crossover = timing.crossover
    if crossover is None or mean_tokens <= crossover:
        why = "reading a stored cache never beats computing it here" if crossover is None else f"only beyond {crossover:,} tokens it pays"
        reasons.append(f"documents' caches are not kept: {why}")
        return "instructions_first", False, size
    if size > wish.store_quota_bytes:
        reasons.append(
            f"documents' caches would pay (beyond {crossover:,} tokens), but take {amount(size)} and the quota is "
            f"{amount(wish.store_quota_bytes)}: raise kv_cache.store.quota"
        )
        return "instructions_first", False, size
    if wish.layout == "instructions_first":
        reasons.append(
            f"{wish.tasks} tasks ask about each document, and reading its stored cache would beat computing it beyond {crossover:,} tokens "
            f"({amount(size)} in all); this night puts instructions first, so that a task's prompts share their beginning instead"
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
