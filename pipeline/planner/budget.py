"""What is needed and what there is, in bytes: the two sides of every decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.planner.fused_products import FusedRows
from pipeline.planner.memory import (
    CARD_FIXED_BYTES,
    LIBRARY_BYTES,
    PROCESS_BYTES,
    activations_bytes,
    weight_pieces_bytes,
    with_pieces,
)
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.prompt_layout import Layout
from pipeline.planner.workload import Question, TaskLoad
from pipeline.stores.kv.sizes import StorageFormat
from pipeline.system.hardware import Hardware, Rates
from pipeline.system.units import amount

Place = Literal["device", "ram", "disk"]
# Share of the free memory that may be used; the rest is for the driver, the allocator's gaps and other
# programs.
USABLE_SHARE = 0.9
# The most rows a batch may have; the engine finds by a ramp how many of them pay. Beyond these none gained on
# any machine measured.
ROWS_ON_CARD, ROWS_ON_CPU = 256, 64
CHUNK_TOKENS_ON_CARD, CHUNK_TOKENS_ON_CPU = 4096, 1024
_LEAST_CHUNK_TOKENS = 64
# Of a card, what scores of attention may take where no kernel does without them.
_SCORES_SHARE = 0.2
# Of a card, what recorded passes (CUDA graphs) may take: of Qwen3-4B on 8 GB those of up to 48 rows.
_RECORDING_SHARE, _MOST_RECORDING_BYTES = 0.04, 512 * 2**20
# Of the room beside weights and activations, what rows may fill: on a card all of it, which is one fixed
# allocation; in RAM half of it, where other programs want some, too.
_CARD_CACHE_SHARE, _RAM_CACHE_SHARE = 1.0, 0.5
# Of RAM and disk beside weights, what caches that are kept there may fill.
FAR_CACHE_SHARE = 0.5
# A prompt that is not even as long as this is of no use.
SHORTEST_TOKENS = 512


@dataclass(frozen=True, slots=True)
class StoreWish:
    """The KV store as configured. ``read_bytes_per_second``: what reading from it was measured to take; None:
    as the disk reads.
    """

    quota_bytes: int = 0
    documents: Literal["auto", "always", "never"] = "auto"
    storage_format: StorageFormat = "as_computed"
    read_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for.

    ``rows`` None: as many as fit. ``questions_asked`` are those about each document. ``chunk_tokens`` None:
    what suits the device. ``loads``: what sampled documents would ask, a task each; ``work`` is a plainer way
    to say it. ``must_stream``: unquantized weights too, where they do not fit. ``most_weights_in_ram``: bytes
    of weights that RAM may hold, None: as many as there is room for. ``process_bytes``: of a worker after its
    imports. ``stored_dtype``: numbers of the weight files. ``cache_place``: where the configuration wants the
    cache, None leaves it open; ``cache_dtype``: in which numbers, None: as computed, as nobody but the user
    may choose what changes answers. ``longest_tokens``: the longest row that the documents ask for, None
    where they are not known. ``fused``: up to how many rows the card multiplies with weights in 4 bits as
    they lie.
    """

    quantization: str
    dtype: str
    context_tokens: int
    rows: int | None = None
    chunk_tokens: int | None = None
    questions_asked: int = 1
    deadline_seconds: float | None = None
    loads: tuple[TaskLoad, ...] = ()
    process_bytes: int = PROCESS_BYTES
    stored_dtype: str | None = None
    cache_place: Place | None = None
    cache_dtype: str | None = None
    may_stream: bool = True
    must_stream: bool = False
    most_weights_in_ram: int | None = None
    longest_tokens: int | None = None
    layout: Layout = "instructions_first"
    store: StoreWish = StoreWish()
    fused: FusedRows | None = None

    @property
    def kept_dtype(self) -> str:
        """Numbers of a running cache."""
        return self.cache_dtype or self.dtype

    @property
    def row_tokens(self) -> int:
        """The longest row that must fit: of the documents where they are known, else the whole context."""
        return min(self.context_tokens, self.longest_tokens or self.context_tokens)

    @property
    def typical_tokens(self) -> int:
        """Length of a row: of a mean document with what is asked and answered, or the longest row where no
        documents are known.
        """
        rows = [
            question.shared_tokens + question.own_tokens + question.new_tokens for question in self.questions
        ]
        return min(self.context_tokens, max(1, sum(rows) // len(rows))) if rows else self.row_tokens

    @property
    def questions(self) -> list[Question]:
        """Of the sampled documents, in all tasks."""
        return [question for load in self.loads for asked in load.sample for question in asked.questions]


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of weights, of the cache of the longest row, of activations (``unpacked_bytes`` of them, and what
    a card's allocator holds in pieces), of the largest layer.

    ``unpacked_bytes`` are the largest quantized matrix in plain numbers (``matrix_bytes``) and a layer of a
    cache in 8 bits. ``near_bytes`` of the row stay in memory where its cache is elsewhere, ``far_bytes`` are
    what a disk then holds.
    """

    weights_bytes: int
    row_bytes: int
    near_bytes: int
    far_bytes: int
    activation_bytes: int
    layer_bytes: int
    unpacked_bytes: int
    matrix_bytes: int

    @classmethod
    def of(
        cls, shape: ModelShape, wish: Wish, chunk_tokens: int, on_card: bool = True, devices: int = 1
    ) -> Need:
        """Of a model as it is wished for. A prefill chunk is one row's, the worst case for a mask, and passes
        through each of ``devices``; on a card, whose memory is given away to the last page, it is as large as
        several rows may fill it.
        """
        quantization, dtype, kept, tokens = wish.quantization, wish.dtype, wish.kept_dtype, wish.row_tokens
        weights = shape.weights_bytes(quantization, dtype)
        longest = wish.context_tokens if on_card else tokens  # a prompt may come that was not looked at
        chunk = chunk_tokens if on_card else min(chunk_tokens, tokens)
        matrix = unpacked = shape.largest_matrix_bytes(dtype) if quantization != "none" else 0
        past = max(0, longest - chunk)
        activation = activations_bytes(shape, dtype, chunk, 1, past, on_card, unpacks=bool(matrix))
        if on_card:  # among them the matrix, which is not there beside all else that a layer computes
            weight_pieces = weight_pieces_bytes(shape, quantization)
            activation = with_pieces(activation) - matrix + weight_pieces // devices
        if wish.cache_dtype:  # so is a layer of the cache before it is used
            unpacked += max(layer.kept_bytes(tokens, dtype) for layer in shape.kinds)
        layer = shape.largest_layer_bytes(quantization, dtype)
        near, far = shape.near_bytes(tokens, kept), shape.far_bytes(tokens, kept)
        return cls(
            weights,
            shape.kv_bytes(tokens, kept),
            near,
            far,
            devices * (activation + unpacked),
            layer,
            unpacked,
            matrix,
        )

    def with_pass(self, activation_bytes: int) -> Need:
        """The same, where a pass takes as much as that, if it is more."""
        return replace(self, activation_bytes=max(self.activation_bytes, activation_bytes))

    @property
    def fetched_bytes(self) -> int:
        """Room for weights that come for their use: the one in use, and the next on its way."""
        return 2 * self.layer_bytes

    @property
    def together_bytes(self) -> int:
        """Everything for one row."""
        return self.weights_bytes + self.row_bytes + self.activation_bytes


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that may be used: where the model computes, in RAM beside that, on the disk; and how many of them
    by weights.

    ``card_bytes``: of each card, beside ``recording_bytes`` for recorded passes (models on several cards are
    not recorded). ``free_ram_bytes``: of RAM beside the process, all that the page cache may take as long as
    nothing else does.
    """

    on_card: bool
    cards: int
    device_bytes: int
    ram_bytes: int
    disk_bytes: int
    link: str
    card_bytes: tuple[int, ...]
    device_weights_bytes: int
    ram_weights_bytes: int
    free_ram_bytes: int
    recording_bytes: int = 0
    usable_share: float = USABLE_SHARE

    def page_cache_bytes(self, weights: Mapping[Place, int], beside: int) -> int:
        """What weights in RAM, and where it is RAM that computes what is ``beside`` them, leave for pages of
        files.
        """
        return max(
            0, self.free_ram_bytes - weights["ram"] - (0 if self.on_card else weights["device"] + beside)
        )

    @property
    def first_device_bytes(self) -> int:
        """Of one card, where there are several."""
        return self.card_bytes[0] if self.on_card else self.device_bytes

    @property
    def devices(self) -> int:
        """How many compute."""
        return max(1, self.cards)

    @property
    def cache_share(self) -> float:
        """Of the room beside weights and activations, what rows may fill."""
        return _CARD_CACHE_SHARE if self.on_card else _RAM_CACHE_SHARE

    @property
    def computing(self) -> dict[str, int]:
        """Bytes of the devices that compute, by their names in a device map."""
        if not self.on_card:
            return {"cpu": self.device_bytes}
        return {str(card): bytes_ for card, bytes_ in enumerate(self.card_bytes)}

    @property
    def most_rows(self) -> int:
        """Rows worth decoding together."""
        return ROWS_ON_CARD if self.on_card else ROWS_ON_CPU

    def chunk_tokens(self, shape: ModelShape, wish: Wish) -> int:
        """Tokens of one pass: as configured, else as many as suit the device. Where a card keeps the scores
        of attention, they are to take a share of it.
        """
        if wish.chunk_tokens is not None:
            return wish.chunk_tokens
        tokens = CHUNK_TOKENS_ON_CARD if self.on_card else CHUNK_TOKENS_ON_CPU
        most = int(_SCORES_SHARE * self.first_device_bytes)
        while (
            self.on_card
            and tokens > _LEAST_CHUNK_TOKENS
            and shape.scores_bytes(tokens, wish.dtype, 1, max(0, wish.context_tokens - tokens)) > most
        ):
            tokens //= 2
        return tokens

    @property
    def device_name(self) -> str:
        """For sentences, with its preposition."""
        if not self.on_card:
            return "in this machine's memory"
        return "on the graphics card" if self.cards == 1 else f"on the {self.cards} graphics cards"

    @property
    def memory_name(self) -> str:
        """For sentences: what one would buy."""
        return "VRAM" if self.on_card else "RAM"

    @property
    def link_name(self) -> str:
        """For sentences."""
        return self.link or ("the link to the card" if self.on_card else "the disk")

    def describe(self) -> str:
        """``21.6 GiB on the graphics card, 57.6 GiB of RAM and 500.0 GiB of disk may be used``."""
        near = [f"{amount(self.device_bytes)} {self.device_name}"] if self.on_card else []
        far = f"{amount(self.ram_bytes if self.on_card else self.device_bytes)} of RAM"
        return ", ".join([*near, far]) + f" and {amount(self.disk_bytes)} of disk may be used"

    def link_bytes_per_second(self, rates: Rates, disk: bool) -> float | None:
        """Bandwidth of what is fetched at every step: the disk if any of it is there, else the link
        (pinned).
        """
        if disk:
            return rates.disk_read_bytes_per_second
        return (
            rates.to_device_pinned_bytes_per_second or rates.to_device_bytes_per_second
            if self.on_card
            else rates.memory_bytes_per_second
        )


def rooms(
    hardware: Hardware,
    process_bytes: int = PROCESS_BYTES,
    most_weights_in_ram: int | None = None,
    *,
    recorded: bool = False,
) -> Room:
    """Of a machine, beside the process itself. Without a card the model computes in RAM, and nothing is left
    beside it. ``recorded``: a card keeps room for recorded passes.
    """
    on_card = bool(hardware.gpu_bytes)
    ram = max(0, int(hardware.ram_bytes * USABLE_SHARE) - process_bytes - LIBRARY_BYTES)
    alone = len(hardware.gpu_bytes) == 1
    recording = (
        min(_MOST_RECORDING_BYTES, int(hardware.gpu_bytes[0] * _RECORDING_SHARE)) if recorded and alone else 0
    )
    taken = CARD_FIXED_BYTES + recording
    cards = tuple(max(0, int(card * USABLE_SHARE) - taken) for card in hardware.gpu_bytes)
    vram = sum(cards)
    ram_weights = ram if most_weights_in_ram is None else min(ram, most_weights_in_ram)
    return Room(
        on_card=on_card,
        cards=len(cards),
        device_bytes=vram if on_card else ram,
        ram_bytes=ram if on_card else 0,
        card_bytes=cards,
        device_weights_bytes=vram if on_card else ram_weights,
        ram_weights_bytes=ram_weights if on_card else 0,
        free_ram_bytes=max(0, hardware.ram_bytes - process_bytes - LIBRARY_BYTES),
        disk_bytes=max((disk.free_bytes for disk in hardware.disks), default=0),
        link=hardware.link,
        recording_bytes=recording,
    )
