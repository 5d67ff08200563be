"""The stations of the route, as frozen values.

source rows ─▶ Document ─▶ Step (EncodedPrompt + what to do) ─▶ Generation ─▶ Answer | Failure ─▶ Outcome in
the ledger
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

WorkId = tuple[str, str]
"""One task's work on one document: (task name, work key)."""
FieldValue = str | int | float | bool | None
FinishReason = Literal["stop", "length", "repetition", "error"]
State = Literal["pending", "running", "done", "failed", "quarantined", "skipped"]
STATES: tuple[State, ...] = ("pending", "running", "done", "failed", "quarantined", "skipped")


def digest(*parts: str | bytes) -> str:
    """128-bit BLAKE2b of the length-prefixed parts, as 32 hex digits: ("a", "bc") and ("ab", "c") differ.

    Lone surrogates, which JSON escapes can smuggle in, are encoded as they are instead of failing.
    """
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)
    return hasher.hexdigest()


def is_blank(text: str) -> bool:
    """Whether ``text`` has nothing to read: spaces, control and format characters (NUL, zero-width, a
    byte-order mark), and what else leaves no ink.
    """
    return not any(map(_is_seen, text[:64])) and not any(map(_is_seen, set(text)))


def _is_seen(character: str) -> bool:
    return unicodedata.category(character) not in _UNSEEN_KINDS and not _INKLESS.match(character)


# control, format, spaces, line and paragraph separators
_UNSEEN_KINDS = {"Cc", "Cf", "Zs", "Zl", "Zp"}
# joiners, fillers, vowels that are not written, variation selectors and the Braille blank: of other kinds
_INKLESS = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a row was found. ``line`` counts from 1 (a row number in files without lines); ``offset`` in
    bytes, where known.
    """

    file: str
    line: int
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """One input. ``fields`` holds only the further fields that some task's template names."""

    id: str
    text: str
    origin: Origin
    fields: Mapping[str, FieldValue] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The document's identity: digest of id and text, never its position."""
        return digest(self.id, self.text)


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that is not a document, and why. ``excerpt`` is at most 200 characters of it.

    ``ends_file``: what follows in the file, to its end or to the next row that is given, could not be read,
    so what was found there before is not gone.
    """

    origin: Origin
    reason: str
    excerpt: str = ""
    ends_file: bool = False


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """Token ids of one prompt; ``boundaries`` are the ends (exclusive) of its segments, e.g. (prefix,
    document, all).

    ``ids[:prefix_tokens]`` is shared by all prompts of the same frame. ``dropped_tokens`` counts document
    tokens that an explicit ``truncate`` left out.
    """

    ids: tuple[int, ...]
    prefix_tokens: int
    document_tokens: int
    dropped_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings; ``seed`` is already that of the one document and step."""

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Decode:
    """Ask for text: at most ``max_new_tokens`` tokens, greedy unless ``sampling`` is given.

    ``loops_end``: a text that repeats itself ends there; off only where a length is to be measured.
    """

    max_new_tokens: int
    sampling: Sampling | None = None
    # out of ``repr``, and so of the identity of recorded steps
    loops_end: bool = field(default=True, repr=False)


@dataclass(frozen=True, slots=True)
class Score:
    """Ask for the log-probability of each continuation (non-empty token sequences) after the prompt.

    With ``tolerance`` above 0, continuations that together cannot change the winner, nor its probability
    among all of them by more than that, may be left at an upper bound. ``features``: the model's state at the
    prompt's last token is wanted too.
    """

    continuations: tuple[tuple[int, ...], ...]
    tolerance: float = 0.0
    # out of ``repr``, and so of the identity of recorded steps
    features: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class Step:
    """One question to the model on the way to a document's answer.

    ``name`` is unique within a document's work and stable between runs ("map/3", "reduce/1/0"); together with
    the ids it identifies a recorded reply, which is not paid for twice. ``span`` is the part of the document
    read, in characters.
    """

    name: str
    prompt: EncodedPrompt
    ask: Decode | Score
    span: tuple[int, int] | None = None

    @property
    def key(self) -> str:
        """Identity of the question inside its task and document: name, ids and what is asked."""
        return digest(self.name, repr(self.prompt.ids), repr(self.ask))


@dataclass(frozen=True, slots=True)
class Request:
    """A step on its way to the engine: token ids only, no text, no names.

    ``document_tokens`` follow the prefix: they are (part of) a document that others may ask about, 0 where
    they are not. ``awaited`` further questions about this document are still to come in this run.
    """

    request_id: int
    ids: tuple[int, ...]
    ask: Decode | Score
    prefix_tokens: int = 0
    document_tokens: int = 0
    awaited: int = 0

    @property
    def document_end(self) -> int:
        """Tokens up to the end of the document; 0 where no document is in it."""
        return self.prefix_tokens + self.document_tokens if self.document_tokens else 0


@dataclass(frozen=True, slots=True)
class Generation:
    """What the engine gives back for one request.

    ``token_ids`` are the decoded tokens without the end token; ``computed_tokens`` those of the prompt that
    were computed for it, and not found in a cache (None: all); ``scores`` the natural-log probabilities of a
    Score's continuations, in their order, and ``features`` the state at the prompt's last token
    (little-endian float16; empty where it was not asked for, or the engine cannot see it). ``seconds`` is the
    request's share of its batch's time. ``error`` is (kind, message) when there is no answer; ``notes`` say
    what was done to make it fit.
    """

    request_id: int
    token_ids: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    features: bytes = b""
    finish_reason: FinishReason = "stop"
    prompt_tokens: int = 0
    computed_tokens: int | None = None
    seconds: float = 0.0
    batch_rows: int = 1
    placement: str = "device"
    error: tuple[str, str] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A document's answer to a task.

    ``value`` is the summary, the label, the list of labels (multi), or None when abstained. ``probabilities``
    and ``scores`` (natural logs, uncalibrated, kept for ever) map label to number; ``features`` are those of
    ``Generation``, averaged over the parts. ``tokens_in`` counts the document's tokens read,
    ``tokens_dropped`` those left out by an explicit truncate; ``notes`` are facts worth a line in the report.
    """

    value: str | Sequence[str] | None
    finish_reason: str
    probabilities: Mapping[str, float] | None = None
    scores: Mapping[str, float] | None = None
    features: bytes = b""
    raw: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_dropped: int = 0
    parts: int = 1
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a document has no answer: a word (``kind``), a sentence, and at which attempt."""

    kind: str
    message: str
    attempt: int = 1
    raw: str | None = None


# Where the KV cache of a batch is: on the device, in host memory, on disk, or on the device in 8 bits.
KvPlacement = Literal["device", "offloaded", "disk", "quantized"]


# What of streamed weights is loaded together.
Grain = Literal["layer", "module"]


@dataclass(frozen=True, slots=True)
class Streaming:
    """How weights pass through the device: bytes of them that stay there and in RAM, what is loaded together,
    rows that go together.
    """

    resident_bytes: int
    ram_bytes: int
    grain: Grain
    micro_batch_rows: int


@dataclass(frozen=True, slots=True)
class WeightMap:
    """Device ("0" of the first graphics card, "cpu", "disk") of each module; "" is the whole model. Bytes of
    weights by device.
    """

    devices: dict[str, str]
    bytes_by_device: dict[str, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """Frozen decisions, made before weights are loaded, that the engine obeys. Sizes in tokens, rows and
    bytes.

    ``batch_tokens`` bounds rows × longest row of a batch (prompt plus new tokens); ``lossy_last_resort``
    allows a cache in 8-bit numbers for a document that does not fit otherwise; ``unpacked`` are (out, in)
    of weights in 4 bits that are unpacked once, when they are loaded; ``pass_logits`` are the most
    positions whose logits one packed pass is asked for, unless one request alone asks for more, and
    ``recording_bytes`` of a card are for recorded passes (CUDA graphs), None sets no bound; ``streaming``
    is for weights that do not fit, else None; ``cards`` are the names of the graphics cards that it counts
    on, none where the processor computes; ``weights`` is where each part of the model goes, None where they
    are streamed or the loader is to find out; ``reasons`` say in sentences why.
    """

    dtype: str
    quantization: str
    placement: KvPlacement
    layout: Literal["instructions_first", "document_first"]
    context_tokens: int
    max_batch_rows: int
    batch_tokens: int
    prefill_chunk_tokens: int
    kv_bytes_per_token: int
    threads: int | None = None
    lossy_last_resort: bool = False
    unpacked: tuple[tuple[int, int], ...] = ()
    pass_logits: int | None = None
    recording_bytes: int | None = None
    streaming: Streaming | None = None
    cards: tuple[str, ...] = ()
    weights: WeightMap | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskJob:
    """A task as the ledger knows it. ``identity`` is everything that can change an answer; ``fingerprint``
    its digest.

    ``fields`` are the names of the document fields (beyond id and text) that the task's template reads.
    """

    name: str
    kind: str
    identity: Mapping[str, Any]
    fields: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Digest of the identity as canonical JSON."""
        return digest(json.dumps(self.identity, sort_keys=True, ensure_ascii=True))

    def key(self, document: Document) -> str:
        """Key of this task's work on ``document``."""
        return self.key_of(document.key, document.fields)

    def key_of(self, document_key: str, fields: Mapping[str, FieldValue]) -> str:
        """The same from its parts: the document's own key, or a digest of it and the fields the task reads;
        one it lacks counts as null.
        """
        read = {name: fields.get(name) for name in self.fields}
        return digest(document_key, json.dumps(read, sort_keys=True)) if read else document_key


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one task's work on one document ended: ``done`` with an answer, or failed, quarantined or skipped
    with a failure. ``read_tokens`` of the document were computed in ``seconds``; others were found in a
    cache (None: all were computed).
    """

    task: str
    key: str
    state: Literal["done", "failed", "quarantined", "skipped"]
    answer: Answer | None = None
    failure: Failure | None = None
    seconds: float = 0.0
    placement: str = "device"
    batch_rows: int = 1
    read_tokens: int | None = None


Stage = Literal["starting", "remark", "reading", "loading", "working", "reporting"]
WORKING: Stage = "working"


@dataclass(frozen=True, slots=True)
class Progress:
    """What a progress display shows. ``total`` counts works (documents x tasks); ``share`` is how much of the
    reading is behind it, parts of long documents included. ``planned_seconds`` is what the plan gives the
    work, ``expected_seconds`` what it will take by the pace so far, ``eta_seconds`` what is left of that;
    None where that cannot be told.
    """

    stage: Stage
    done: int = 0
    failed: int = 0
    total: int = 0
    tokens_per_second: float = 0.0
    eta_seconds: float | None = None
    message: str = ""
    share: float = 0.0
    planned_seconds: float | None = None
    expected_seconds: float | None = None

    @property
    def behind(self) -> float:
        """The share of the work that is behind it: documents that are done, and parts of long ones."""
        return max(self.share, self.done / self.total) if self.total else 0.0

    def after(self, seconds: float) -> Progress:
        """The same as it is likely to be after so many seconds without news: only the time left passes."""
        left = self.eta_seconds
        return self if left is None else replace(self, eta_seconds=max(0.0, left - seconds))


def document_of(request: Request) -> tuple[int, ...]:
    """The prompt up to the end of its document; at least one token is left to compute."""
    return request.ids[: min(request.document_end, len(request.ids) - 1)]


def pack_generation(generation: Generation) -> dict[str, Any]:
    """A generation as plain values."""
    return {name: getattr(generation, name) for name in Generation.__dataclass_fields__}


def unpack_generation(packed: dict[str, Any]) -> Generation:
    """The inverse of ``pack_generation``."""
    error = packed["error"]
    sequences = {
        "token_ids": tuple(packed["token_ids"]),
        "scores": tuple(packed["scores"]),
        "notes": tuple(packed.get("notes", ())),
    }
    return Generation(**{**packed, **sequences, "error": None if error is None else (error[0], error[1])})
