"""Messages between the runner and a worker: typed structs, as msgpack with a header before each. Token ids
in, results out; no pickle.

The runner configures a worker, has it load a model, admits requests and releases those that nobody waits
for any more. The worker says what it does, and gives back what finished. What is no such message is refused
by both sides, never guessed at.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import IO, Any, TypeVar

import msgspec

from pipeline.errors import UsageError
from pipeline.records import Decode, Generation, Plan, Request, Score

_HEADER = struct.Struct("<4sQ")
_MARK = b"ovn1"  # before each length, so that what a library prints is never taken for one


class MalformedMessage(ValueError):
    """Bytes that are none of the messages below."""


class _Message(msgspec.Struct, frozen=True, tag=True):
    """One message; on the wire it carries the name of its class."""


class Configure(_Message, frozen=True):
    """The first one: the configuration, as plain values (numbered cards are keys that are numbers)."""

    config: dict[str, Any]


class _Question(_Message, frozen=True):
    """A request beside what it asks for: a union of plain records could not be told apart."""

    request_id: int
    ids: tuple[int, ...]
    prefix_tokens: int
    document_tokens: int
    awaited: int


class DecodeQuestion(_Question, frozen=True):
    """A request for text."""

    ask: Decode


class ScoreQuestion(_Question, frozen=True):
    """A request for the log-probabilities of continuations."""

    ask: Score


class Load(_Message, frozen=True):
    """Load the model under this plan, and answer the questions of ``proof``, whose answers nobody wants,
    before it is said to be loaded.
    """

    plan: Plan
    offload_folder: str
    proof: tuple[DecodeQuestion | ScoreQuestion, ...] = ()


class Admit(_Message, frozen=True):
    """Requests to work off."""

    questions: tuple[DecodeQuestion | ScoreQuestion, ...]


class Release(_Message, frozen=True):
    """Requests that nobody waits for any more."""

    request_ids: tuple[int, ...]


class Finish(_Message, frozen=True):
    """That was all: write what is still to be written, and end."""


class Says(_Message, frozen=True):
    """A sentence about what is going on while the model is loaded."""

    text: str


class Refused(_Message, frozen=True):
    """The model cannot be loaded: the name of the error in pipeline.errors, and its sentence."""

    error: str
    text: str


class DeviceFailed(_Message, frozen=True):
    """The graphics card failed: what it said. The worker ends."""

    text: str


class Loaded(_Message, frozen=True):
    """The model is there; facts for the report."""

    facts: dict[str, Any]


class Started(_Message, frozen=True):
    """Work on these requests has begun."""

    request_ids: tuple[int, ...]


class Pulse(_Message, frozen=True):
    """The engine is alive."""


class Replies(_Message, frozen=True):
    """What finished. Of ``served_seconds`` since its model was loaded the worker has waited
    ``waited_seconds`` for requests; the bytes are the most it has held, in RAM and on graphics cards.
    """

    generations: tuple[Generation, ...]
    waited_seconds: float
    served_seconds: float
    ram_bytes: int
    vram_bytes: int


class StoreFacts(_Message, frozen=True):
    """What became of persisted caches so far."""

    facts: dict[str, Any]


ToWorker = Configure | Load | Admit | Release | Finish
FromWorker = Says | Refused | DeviceFailed | Loaded | Started | Pulse | Replies | StoreFacts
_Kind = TypeVar("_Kind", ToWorker, FromWorker)

_ASKS: Mapping[type, type[DecodeQuestion | ScoreQuestion]] = {Decode: DecodeQuestion, Score: ScoreQuestion}
_TO_WORKER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_FROM_WORKER: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def loading(plan: Plan, offload_folder: str, proof: Sequence[Request] = ()) -> Load:
    """The message that has a model loaded, and asks it ``proof`` first."""
    return Load(plan, offload_folder, _questions(proof))


def admission(requests: Sequence[Request]) -> Admit:
    """The message that hands over ``requests``, in their order."""
    return Admit(_questions(requests))


def admitted(message: Admit | Load) -> list[Request]:
    """The requests of an admission, or those that a model has to prove itself with."""
    questions = message.proof if isinstance(message, Load) else message.questions
    return [Request(**msgspec.structs.asdict(question)) for question in questions]


def _questions(requests: Sequence[Request]) -> tuple[DecodeQuestion | ScoreQuestion, ...]:
    return tuple(
        _ASKS[type(request.ask)](**{name: getattr(request, name) for name in Request.__dataclass_fields__})
        for request in requests
    )


def encode(message: ToWorker | FromWorker) -> bytes:
    """A message as bytes, without its header. Raises UsageError for text that is none."""
    try:
        return msgspec.msgpack.encode(message, enc_hook=_plain)
    except UnicodeEncodeError as error:
        begin = max(0, error.start - 20)
        raise UsageError(
            f"{error.object[begin : error.end + 20]!r} holds half a character (a lone surrogate, as of a "
            f"file name that is not UTF-8), which cannot be handed to the worker; write it anew"
        ) from None


def decode_to_worker(payload: bytes) -> ToWorker:
    """The inverse of ``encode`` on the worker's side. Raises MalformedMessage."""
    return _decoded(_TO_WORKER, payload)


def decode_from_worker(payload: bytes) -> FromWorker:
    """The inverse of ``encode`` on the runner's side. Raises MalformedMessage."""
    return _decoded(_FROM_WORKER, payload)


def _decoded(decoder: msgspec.msgpack.Decoder[_Kind], payload: bytes) -> _Kind:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"{len(payload):,} bytes are no message of this program: {error}") from None


def write_message(stream: IO[bytes], message: ToWorker | FromWorker) -> None:
    """Write one message and flush it; ``stream`` may be unbuffered. Raises UsageError as ``encode``, and
    OSError.
    """
    payload = encode(message)
    left = memoryview(_HEADER.pack(_MARK, len(payload)) + payload)
    while left:  # a pipe without a buffer takes what it has room for when a signal comes
        left = left[stream.write(left) :]
    stream.flush()


def read_payload(stream: IO[bytes]) -> bytes | None:
    """The bytes of the next message, or None at the end of the stream, also when it ends in the middle of
    one; ``stream`` may be unbuffered. Raises MalformedMessage.
    """
    header = _read(stream, _HEADER.size)
    if not _MARK.startswith(header[: len(_MARK)]):
        raise MalformedMessage(f"{header[:16]!r} begins no message of this program")
    if len(header) < _HEADER.size:
        return None
    _, length = _HEADER.unpack(header)
    try:
        payload = _read(stream, length)
    except (OverflowError, MemoryError) as error:
        raise MalformedMessage(f"a message of {length:,} bytes cannot be read: {error}") from None
    return payload if len(payload) == length else None


def _read(stream: IO[bytes], size: int) -> bytes:
    """``size`` bytes, fewer at the end: a pipe without a buffer gives what is there."""
    parts: list[bytes] = []
    while size and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _plain(value: Any) -> Any:
    """Facts may come in mappings of any kind."""
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"{type(value).__name__} is no value for a message")
