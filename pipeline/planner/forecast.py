"""The decision, step by step: fits as it is, else quantize, else split, else offload the cache; then rows,
layout and store.

The result is a Forecast: predictions to set beside the outcome, and reasons in sentences. Nothing here
changes a configuration: what is the user's choice (model, quantization, context) is only suggested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.planner.advice import next_steps, warnings_about
from pipeline.planner.budget import Need, Place, Room, Wish, rooms
from pipeline.planner.duration import TaskTime, Timing, moved_bytes
from pipeline.planner.memory_peak import pass_bytes, pass_logits, peaks_of
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.pass_time import useful_bytes
from pipeline.planner.paying_rows import paying_rows
from pipeline.planner.placement import Verdict, Where, settle
from pipeline.planner.prompt_layout import Layout
from pipeline.planner.roofline import DecodeStep, Duration
from pipeline.planner.store_policy import Keeping, keeping
from pipeline.planner.unpacked_weights import Shapes, unpacked_weights
from pipeline.planner.weight_split import Split
from pipeline.planner.weight_streaming import Sweep
from pipeline.stores.kv.sizes import queued_bytes
from pipeline.system.hardware import Hardware, Rates
from pipeline.system.units import amount, duration

__all__ = ["Forecast", "Wish", "decide", "describe"]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What will be where, how much of it, how fast and for how long. Bytes by place; None: not known, as a
    rate is not.

    ``ram_mapped_bytes`` of the RAM peak are pages of the weight files, which the system takes back when
    memory is short. ``cache_room_bytes`` is what rows may fill together, ``batch_tokens`` rows x longest row
    of them. ``store_bytes`` are all documents' caches as the store would keep them, ``disk_peak_bytes`` those
    that it will. ``sweep`` where weights are streamed, ``split`` where each block has its device;
    ``most_rows`` are those worth decoding together, whatever fits; ``chunk_tokens`` those of a pass over
    prompts, ``pass_logits`` the most positions that it predicts at. ``unpacked`` are shapes of weights that
    are kept in 16 bits. ``bandwidth_share``: what a step makes use of (weights once, valid caches once) of
    the bandwidth that a card's data sheet gives, by the prediction. ``reasons`` follow the decision in order;
    ``next_steps`` say what would have to change for the next better one.
    """

    verdict: Verdict
    weights_bytes: dict[Place, int]
    cache_place: Place
    rows: int
    most_rows: int
    chunk_tokens: int
    pass_logits: int
    context_tokens: int
    vram_peak_bytes: int
    ram_peak_bytes: int
    disk_peak_bytes: int
    ram_mapped_bytes: int
    activation_bytes: int
    sweep: Sweep | None
    split: Split | None
    cache_bytes: int
    cache_room_bytes: int
    batch_tokens: int
    transfer_bytes: int
    step: DecodeStep | None
    recording_bytes: int
    unpacked: Shapes
    bandwidth_share: float | None
    load_seconds: float | None
    prefill_seconds: float | None
    crossover_tokens: int | None
    work: Duration | None
    tasks: tuple[TaskTime, ...]
    store_bytes: int | None
    layout: Layout
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
    """Where everything goes on this machine. Never raises for what does not fit: the verdict says it.

    Passes are recorded on a card that holds everything beside; elsewhere weights and caches need its room.
    """
    limits = wish.process_bytes, wish.most_weights_in_ram
    recorded = _decided(shape, hardware, wish, rooms(hardware, *limits, recorded=True))
    if recorded.verdict == "resident" or not recorded.recording_bytes:
        return recorded
    return _decided(shape, hardware, wish, rooms(hardware, *limits))


def _decided(shape: ModelShape, hardware: Hardware, wish: Wish, have: Room) -> Forecast:
    packed = shape
    unpacked = unpacked_weights(shape, have, wish, hardware.rates)
    shape = shape.unpacked(unpacked)
    chunk = have.chunk_tokens(shape, wish)
    need = Need.of(shape, wish, chunk, have.on_card, have.devices)
    if have.on_card and wish.questions:
        need = need.with_pass(pass_bytes(shape, wish, have, need, chunk, have.most_rows))
    reasons = [_about(shape, need, wish, have)]
    where = settle(shape, need, have, wish, hardware.rates, reasons)
    if unpacked:
        reasons.append(_about_unpacked(packed, shape, wish))
    rows, most_rows = _together(shape, have, wish, hardware.rates, where, reasons)
    timing = Timing.of(shape, have, hardware.rates, wish, where, rows) if rows else Timing()
    reasons += _rows_and_time(rows, timing, wish, have)
    share = _bandwidth_share(packed, have, wish, hardware.rates, where, rows, timing)
    if share is not None:
        reasons.append(
            f"predicted, not measured: a step takes {duration(timing.step.seconds if timing.step else 0.0)} "
            f"and makes use of {share:.0%} of the bandwidth that the card's data sheet gives"
        )
    kept = keeping(shape, wish, timing.crossover, reasons)
    if have.on_card and where.verdict == "resident":
        reasons.append(
            "it fits in the card's memory: if many people wait for answers, serve it with vLLM or TGI; "
            "for a night's work stay here"
        )
    tokens = where.batch_tokens(shape, wish, most_rows)
    peaks = peaks_of(shape, wish, have, need, chunk, where, rows, tokens)
    return Forecast(
        verdict=where.verdict,
        weights_bytes=where.weights,
        cache_place=where.cache_place,
        rows=rows,
        most_rows=most_rows,
        chunk_tokens=chunk,
        pass_logits=pass_logits(shape, wish, have, peaks.activations),
        context_tokens=wish.context_tokens,
        vram_peak_bytes=peaks.vram,
        ram_peak_bytes=peaks.ram + _queued(shape, wish, have, kept, tokens),
        disk_peak_bytes=peaks.disk + kept.store_bytes,
        ram_mapped_bytes=peaks.mapped,
        activation_bytes=peaks.activations,
        sweep=where.sweep,
        split=where.split,
        cache_bytes=peaks.cache,
        cache_room_bytes=where.room_bytes,
        batch_tokens=tokens,
        transfer_bytes=moved_bytes(shape, wish, where, rows),
        step=timing.step,
        unpacked=unpacked,
        recording_bytes=have.recording_bytes,
        bandwidth_share=share,
        load_seconds=timing.load,
        prefill_seconds=timing.prefill,
        crossover_tokens=timing.crossover,
        work=timing.work,
        tasks=timing.tasks,
        store_bytes=kept.all_bytes,
        layout=wish.layout,
        keep_documents=kept.keeps,
        deadline_seconds=wish.deadline_seconds,
        reasons=tuple(reasons),
        next_steps=tuple(next_steps(shape, need, have, wish, where.verdict, rows)),
        warnings=tuple(warnings_about(shape, need, wish, where, have)),
    )


def _queued(shape: ModelShape, wish: Wish, have: Room, kept: Keeping, tokens: int) -> int:
    """Bytes of pinned memory in which what comes from a card for the store waits to be written."""
    if not (have.on_card and kept.keeps):
        return 0
    return min(queued_bytes(tokens * shape.kv_bytes_per_token(wish.dtype)), kept.store_bytes)


def _about_unpacked(packed: ModelShape, shape: ModelShape, wish: Wish) -> str:
    before, after = (each.weights_bytes(wish.quantization, wish.dtype) for each in (packed, shape))
    return (
        f"{amount(after - before)} more are taken by weights that are unpacked once, when they are loaded: "
        f"bitsandbytes would copy them to {wish.dtype} in every pass of so many rows"
    )


def _together(
    shape: ModelShape, have: Room, wish: Wish, rates: Rates, where: Where, reasons: list[str]
) -> tuple[int, int]:
    """(rows of a typical length that decode together, the most that are worth it whatever fits)."""
    fit, most = where.rows(shape, have, wish), where.most_rows(have, wish)
    if not fit or where.sweep is not None or where.cache_place != "device":
        return fit, most
    paying = paying_rows(shape, have, wish, rates, fit)
    if paying == fit:
        return fit, most
    reasons.append(
        f"{fit} rows would fit, {paying} give more tokens a second by the prediction: with more, "
        f"bitsandbytes copies weights to 16 bits in every pass"
    )
    return paying, paying


def _about(shape: ModelShape, need: Need, wish: Wish, have: Room) -> str:
    kept = " (in 8 bits, as configured)" if wish.cache_dtype else ""
    return (
        f"{shape.parameters / 1e9:.2f} billion parameters ({shape.describe()}): "
        f"{amount(need.weights_bytes)} of weights in "
        f"{wish.quantization} ({wish.dtype}), {amount(need.row_bytes)} of cache for one row of "
        f"{wish.row_tokens:,} tokens{kept} and about "
        f"{amount(need.activation_bytes)} of activations; {have.describe()}"
    )


def _bandwidth_share(
    shape: ModelShape, have: Room, wish: Wish, rates: Rates, where: Where, rows: int, timing: Timing
) -> float | None:
    """Of a card that holds everything; None elsewhere, and where a rate is not known."""
    step, bandwidth = timing.step, rates.memory_bytes_per_second
    if step is None or bandwidth is None or not have.on_card or where.verdict != "resident":
        return None
    useful = useful_bytes(shape, wish.quantization, wish.dtype, rows, wish.typical_tokens)
    return useful / bandwidth / step.seconds


def _rows_and_time(rows: int, timing: Timing, wish: Wish, have: Room) -> list[str]:
    if not rows:
        return []
    found = [
        (
            f"{rows} row{'' if rows == 1 else 's'} of {wish.typical_tokens:,} tokens decode together in the "
            f"room that is left"
        )
    ]
    step = timing.step
    if step is not None and step.transfer_seconds:
        hides = "computing hides the transfer" if step.hidden else "computing does not hide it"
        found.append(
            f"each step moves bytes for {duration(step.transfer_seconds)} over {have.link_name}, and "
            f"computes for "
            f"{duration(step.resident_seconds)}: {hides}, decoding is {step.slowdown:.1f} times slower "
            f"than with everything on the device"
        )
    if step is not None:
        found.append(
            f"decoding gives at most {rows / step.seconds:,.1f} tokens a second in all; what sets the "
            f"pace is {step.bound}"
        )
    if timing.work is not None and timing.work.documents:
        low, high = timing.work.range_seconds
        span = (
            f" ({duration(low)} to {duration(high)} by the sample of lengths)"
            if timing.work.relative_error
            else ""
        )
        found.append(
            f"{timing.work.documents:,} documents take about {duration(timing.work.seconds)}{span}: "
            f"{timing.work.documents_per_hour:,.0f} an hour"
        )
        if wish.deadline_seconds is not None:
            late = timing.work.seconds - wish.deadline_seconds
            found.append(
                f"that is {duration(late)} too long for the deadline; the rest is done by running the "
                f"same command again"
                if late > 0
                else f"that ends {duration(-late)} before the deadline"
            )
    return found


def describe(forecast: Forecast) -> Sequence[str]:
    """The forecast as lines for people."""
    lines = [f"verdict: {forecast.verdict}"]
    lines += [f"- {reason}" for reason in forecast.reasons]
    lines += [f"! {warning}" for warning in forecast.warnings]
    lines += [f"> {step}" for step in forecast.next_steps]
    return lines
