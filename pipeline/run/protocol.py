"""Messages between the runner and the worker: length-prefixed msgpack maps over a pipe. Token ids in, results
out; no pickle.
"""

from __future__ import annotations

import struct
from typing import IO, Any

import msgpack

from pipeline.records import Decode, Request, Sampling, Score

_LENGTH = struct.Struct("<I")


def write_message(stream: IO[bytes], message: dict[str, Any]) -> None:
    """Write one message and flush it."""
    payload = msgpack.packb(message)
    stream.write(_LENGTH.pack(len(payload)) + payload)
    stream.flush()


def read_message(stream: IO[bytes]) -> dict[str, Any] | None:
    """The next message, or None at the end of the stream, also when it ends in the middle of one."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    payload = stream.read(length)
    if len(payload) < length:
        return None
    message: dict[str, Any] = msgpack.unpackb(payload, strict_map_key=False)
    return message


def pack_request(request: Request) -> dict[str, Any]:
    """A request as plain values."""
    ask = request.ask
    packed: dict[str, Any] = {
        "request_id": request.request_id,
        "ids": request.ids,
        "prefix_tokens": request.prefix_tokens,
    }
    packed |= {"document_tokens": request.document_tokens, "awaited": request.awaited}
    if isinstance(ask, Score):
        return {
            **packed,
            "continuations": ask.continuations,
            "tolerance": ask.tolerance,
            "features": ask.features,
        }
    sampling = ask.sampling
    chosen = (
        None if sampling is None else [sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed]
    )
    return {**packed, "max_new_tokens": ask.max_new_tokens, "sampling": chosen, "loops_end": ask.loops_end}


def unpack_request(packed: dict[str, Any]) -> Request:
    """The inverse of ``pack_request``."""
    ask: Decode | Score
    if "continuations" in packed:
        ask = Score(
            tuple(tuple(sequence) for sequence in packed["continuations"]),
            packed["tolerance"],
            packed["features"],
        )
    else:
        sampling = packed["sampling"]
        ask = Decode(
            packed["max_new_tokens"], None if sampling is None else Sampling(*sampling), packed["loops_end"]
        )
    place = packed["prefix_tokens"], packed["document_tokens"], packed["awaited"]
    return Request(packed["request_id"], tuple(packed["ids"]), ask, *place)
