"""The fullest moment of a night, place by place: while the weights are read, or while the longest rows are
under way.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.planner.budget import Need, Room, Wish
from pipeline.planner.memory import (
    CARD_FIXED_BYTES,
    LAYING_OUT_BYTES,
    LIBRARY_BYTES,
    activations_bytes,
    arriving_bytes,
    head_copy_bytes,
    logits_bytes,
    mapped_bytes,
    pool_bytes,
    positions_within,
    rows_bytes,
    stored,
    with_pieces,
)
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.placement import Where


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes. ``mapped`` of ``ram`` are pages of weight files; ``cache`` is wherever it is, ``disk`` without
    persisted caches.
    """

    vram: int
    ram: int
    disk: int
    mapped: int
    activations: int
    cache: int


def peaks_of(
    shape: ModelShape,
    wish: Wish,
    have: Room,
    need: Need,
    chunk_tokens: int,
    where: Where,
    rows: int,
    batch_tokens: int,
) -> Peaks:
    """Of ``rows`` rows with weights and cache where they are; on a card with all ``batch_tokens`` that have
    their place there from the start.
    """
    weights, place = where.weights, where.cache_place
    cache = _cache(shape, wish, need, place, rows)
    if have.on_card and place == "device" and rows:
        cache = pool_bytes(shape, wish.kept_dtype, rows, batch_tokens)
    near = (
        cache
        if place == "device"
        else max(need.near_bytes, shape.near_bytes(wish.typical_tokens, wish.kept_dtype, rows))
        if rows
        else 0
    )
    if where.sweep:
        activations = where.sweep.pass_bytes
    elif have.on_card or not (wish.questions and rows):
        activations = need.activation_bytes
    else:
        activations = pass_bytes(shape, wish, have, need, chunk_tokens, rows)
    files = stored(shape, wish.stored_dtype, wish.dtype)
    on_device = weights["device"] + activations + near + (where.sweep.working_bytes if where.sweep else 0)
    in_ram = wish.process_bytes + LIBRARY_BYTES + weights["ram"] + (cache if place == "ram" else 0)
    far = (
        max(need.far_bytes, shape.far_bytes(wish.typical_tokens, wish.kept_dtype, rows))
        if rows and place == "disk"
        else 0
    )
    disk = weights["disk"] + far
    if have.on_card:
        pages = 0 if where.sweep else files.stored_bytes
        copies = near if place == "disk" else 0  # on their way to the card
        return Peaks(
            CARD_FIXED_BYTES * have.cards + on_device + (have.recording_bytes if place == "device" else 0),
            in_ram + pages + copies,
            disk,
            pages,
            activations,
            cache,
        )

    def mapped(*, working: bool) -> int:  # what is streamed is read, not mapped
        return 0 if where.sweep else mapped_bytes(shape, files, wish.quantization, wish.dtype, working)

    loading = in_ram + weights["device"] + mapped(working=False) + arriving_bytes(need.unpacked_bytes)
    laying_out = 0 if where.sweep else LAYING_OUT_BYTES
    working = in_ram + on_device + mapped(working=True) + laying_out
    return Peaks(0, max(loading, working), disk, mapped(working=working >= loading), activations, cache)


def _cache(shape: ModelShape, wish: Wish, need: Need, place: str, rows: int) -> int:
    """Pages of the longest rows under way together and what they share; off the device, static batches,
    which have none.
    """
    if not rows:
        return 0
    questions = wish.questions
    if not questions or place != "device" or wish.cache_dtype:
        return max(need.row_bytes, shape.kv_bytes(wish.typical_tokens, wish.kept_dtype, rows))
    cache = max(
        rows_bytes(
            shape,
            wish.dtype,
            rows,
            [question.row_tokens for asked in load.sample for question in asked.questions],
            round(load.documents * load.questions_a_document),
        )
        for load in wish.loads
    )
    shared = {question.shared_tokens for question in questions if question.shared_tokens}
    return cache + sum(shape.kv_bytes(tokens, wish.dtype) for tokens in shared)


def pass_logits(shape: ModelShape, wish: Wish, have: Room, activation_bytes: int) -> int:
    """Positions whose logits one pass may be asked for, so that they take no more of a device than the
    ``activation_bytes`` that are counted; at least those of any one question.
    """
    within = positions_within(shape, wish.dtype, activation_bytes // have.devices)
    return max(1, within, *(question.logits for question in wish.questions))


def pass_bytes(shape: ModelShape, wish: Wish, have: Room, need: Need, chunk_tokens: int, rows: int) -> int:
    """What one pass over prompts of the sampled lengths computes and drops again, on all devices."""
    questions = wish.questions
    documents = max(load.documents for load in wish.loads)
    own = max(1, sum(question.own_tokens for question in questions) // len(questions))
    tokens = min(chunk_tokens, own * max(1, documents))
    together = max(1, tokens // own)
    logits = together * max(question.logits for question in questions)
    unpacks = bool(need.matrix_bytes)
    found = max(
        activations_bytes(shape, wish.dtype, tokens, together, 0, have.on_card, unpacks=unpacks),
        logits_bytes(shape, logits),
    )
    if have.on_card:
        return have.devices * (with_pieces(found) + need.unpacked_bytes - need.matrix_bytes)
    writers = rows if any(question.new_tokens for question in questions) else 0
    return have.devices * (
        found
        + head_copy_bytes(shape, wish.dtype, max(logits, min(writers, documents)), have.on_card)
        + need.unpacked_bytes
    )
