"""Parts that fail, stall or answer by a script, for tests of everything around a model: real processes, real
files, no weights.

``engine.backend: pipeline.testing.scripted_backend:ScriptedBackend`` puts the scripted model behind any
command. Its answers depend only on the prompt, so an interrupted run must end equal to an uninterrupted one.
``OVERNIGHT_SCRIPT`` (JSON) sets its pace and faults:

    {"seconds": 0.01, "batch": 4, "load_seconds": 0, "faults": [{"text": "POISON", "do": "segfault"}]}

A fault fires on each request whose prompt contains ``text``. ``do``: segfault, kill (SIGKILL to itself),
hang, exit, eat (allocate until killed), oom (out_of_memory reply), raise (model_error reply), empty (ends
without a token), device (the graphics card fails). ``times`` limits a fault to the first so many processes,
counted in the file ``counter``;
``load_fault`` fires while loading. ``runner_faults`` fire in the runner itself, when it tokenizes a text that
contains theirs; there, ``stick`` is a hang that no signal ends.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.engine.interface import Engine, Listener, ModelFacts, PlanRequest
from pipeline.engine.remote import plan_without_weights
from pipeline.records import Decode, Generation, Plan, Request, digest

_CONTROL = ("<|start|>", "<|end|>", "<|user|>", "<|system|>", "<|model|>")
_FIRST_CONTROL = 256
_CONTEXT_TOKENS, _ROWS = 4096, 64
END_ID = _FIRST_CONTROL + 1


class ByteTokenizer:
    """One token a UTF-8 byte, five control tokens above; a chat template with a system role."""

    bos_ids: tuple[int, ...] = ()
    end_ids: tuple[int, ...] = (END_ID,)

    def __init__(self, faults: Sequence[Mapping[str, Any]] = ()) -> None:
        self._faults = faults

    def encode(self, text: str) -> list[int]:
        """See pipeline.prompts.Tokenizer."""
        for fault in self._faults:
            if fault["text"] in text and _counts(fault):
                _FAULTS[fault["do"]]()
        return list(text.encode("utf-8", "replace"))

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """See pipeline.prompts.Tokenizer."""
        if text.isascii():
            return self.encode(text), list(zip(range(len(text)), range(1, len(text) + 1), strict=True))
        offsets = [
            (index, index + 1) for index, letter in enumerate(text) for _ in letter.encode("utf-8", "replace")
        ]
        return self.encode(text), offsets

    def encode_template(self, text: str) -> list[int]:
        """See pipeline.prompts.Tokenizer."""
        ids: list[int] = []
        while text:
            token = next((token for token in _CONTROL if text.startswith(token)), None)
            ids += [_FIRST_CONTROL + _CONTROL.index(token)] if token else self.encode(text[0])
            text = text[len(token) if token else 1 :]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """See pipeline.prompts.Tokenizer."""
        return bytes(number for number in ids if number < _FIRST_CONTROL).decode("utf-8", "replace")

    def decode_exactly(self, ids: Sequence[int]) -> str:
        """See pipeline.prompts.Tokenizer."""
        runs = itertools.groupby(ids, key=lambda number: number < _FIRST_CONTROL)
        return "".join(
            self.decode(list(run)) if plain else "".join(map(_control, run)) for plain, run in runs
        )

    def render(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> str | None:
        """See pipeline.prompts.Tokenizer."""
        return (
            "".join(f"<|start|><|{message['role']}|>{message['content']}<|end|>" for message in messages)
            + "<|start|><|model|>"
        )


class ScriptedBackend:
    """A backend without weights; see the module."""

    def __init__(self, config: Config, say: Callable[[str], None] = lambda _: None) -> None:
        self._config = config

    def tokenizer(self) -> ByteTokenizer:
        """See pipeline.engine.interface.Backend."""
        return ByteTokenizer(_script().get("runner_faults", ()))

    def identity(self) -> Mapping[str, Any]:
        """See pipeline.engine.interface.Backend."""
        return {"id": self._config.model.id, "revision": self._config.model.revision, "weights": "scripted"}

    def resolve(self) -> Mapping[str, str]:
        """See pipeline.engine.interface.Backend."""
        return {"dtype": "float32", "attention": "sdpa"}

    def facts(self) -> ModelFacts:
        """See pipeline.engine.interface.Backend."""
        return ModelFacts(_CONTEXT_TOKENS, cannot_plan="the scripted model has no weights")

    def plan(self, request: PlanRequest) -> Plan:
        """See pipeline.engine.interface.Backend."""
        return plan_without_weights(self._config, request, _ROWS, ("answers are written by a script",))

    def open_engine(
        self, plan: Plan, offload_folder: Path, say: Callable[[str], None]
    ) -> tuple[Engine, Mapping[str, Any]]:
        """See pipeline.engine.interface.Backend."""
        script = _script()
        time.sleep(script.get("load_seconds", 0))
        if "load_fault" in script:
            _FAULTS[script["load_fault"]]()
        return ScriptedEngine(plan, script), {"device_map": {"": "cpu"}, "weights_bytes": 0}

    def store_facts(self, *, close: bool = False) -> Mapping[str, Any]:
        """See pipeline.engine.interface.Backend."""
        return {}


class ScriptedEngine:
    """An engine whose answers are digests of the prompts."""

    def __init__(self, plan: Plan, script: Mapping[str, Any]) -> None:
        self.listener: Listener | None = None
        self._plan = plan
        self._script = script
        self._queue: list[Request] = []

    @property
    def idle(self) -> bool:
        """See pipeline.engine.interface.Engine."""
        return not self._queue

    def admit(self, requests: Sequence[Request]) -> None:
        """See pipeline.engine.interface.Engine."""
        self._queue += requests

    def release(self, request_ids: Collection[int]) -> None:
        """See pipeline.engine.interface.Engine."""
        self._queue = [request for request in self._queue if request.request_id not in request_ids]

    def step(self) -> Sequence[Generation]:
        """Answer the next ``batch`` requests, in ``seconds`` each."""
        rows = min(self._script.get("batch", self._plan.max_batch_rows), self._plan.max_batch_rows)
        batch, self._queue = self._queue[:rows], self._queue[rows:]
        if self.listener is not None:
            self.listener.started([request.request_id for request in batch])
        started = time.monotonic()
        time.sleep(self._script.get("seconds", 0) * len(batch))
        replies = [self._answer(request) for request in batch]
        seconds = (time.monotonic() - started) / max(1, len(batch))
        return [
            self._stamped(reply, request, seconds, len(batch))
            for reply, request in zip(replies, batch, strict=True)
        ]

    def _answer(self, request: Request) -> Generation:
        prompt = bytes(number for number in request.ids if number < _FIRST_CONTROL)
        for fault in self._script.get("faults", ()):
            if fault["text"].encode() in prompt and _counts(fault):
                error = _FAULTS[fault["do"]]()
                return (
                    Generation(request.request_id, finish_reason="error", error=error)
                    if error
                    else Generation(request.request_id)
                )
        if isinstance(request.ask, Decode):
            return _text(request, request.ask)
        scores = tuple(
            -10 * int(digest(repr(request.ids), repr(sequence))[:6], 16) / 16**6 - 0.1
            for sequence in request.ask.continuations
        )
        # small numbers as float16
        features = digest(repr(request.ids))[:16].encode("utf-16-le") if request.ask.features else b""
        return Generation(request.request_id, scores=scores, features=features)

    @staticmethod
    def _stamped(reply: Generation, request: Request, seconds: float, rows: int) -> Generation:
        return replace(reply, prompt_tokens=len(request.ids), seconds=seconds, batch_rows=rows)


def _script() -> dict[str, Any]:
    script: dict[str, Any] = json.loads(os.environ.get("OVERNIGHT_SCRIPT", "{}"))
    return script


def _control(number: int) -> str:
    return _CONTROL[number - _FIRST_CONTROL]


def _text(request: Request, ask: Decode) -> Generation:
    seed = "" if ask.sampling is None else repr(ask.sampling)
    text = f"summary {digest(repr(request.ids), seed)} of {len(request.ids)} tokens".encode()
    short = text[: ask.max_new_tokens]
    return Generation(
        request.request_id, tuple(short), finish_reason="stop" if len(short) == len(text) else "length"
    )


def _counts(fault: Mapping[str, Any]) -> bool:
    """Whether a fault limited by ``times`` still fires; each firing adds a byte to its counter file."""
    if "times" not in fault:
        return True
    counter = Path(fault["counter"])
    fired = counter.stat().st_size if counter.exists() else 0
    if fired >= fault["times"]:
        return False
    with counter.open("ab") as stream:
        stream.write(b".")
    return True


def _segfault() -> tuple[str, str] | None:
    ctypes.string_at(0)
    return None


def _kill() -> tuple[str, str] | None:
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def _hang() -> tuple[str, str] | None:
    time.sleep(10**6)
    return None


def _stick() -> tuple[str, str] | None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    return _hang()


def _eat() -> tuple[str, str] | None:
    held = []
    while True:
        held.append(bytearray(os.urandom(1 << 24)))


def _device() -> tuple[str, str] | None:
    import torch

    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


_FAULTS: Mapping[str, Callable[[], tuple[str, str] | None]] = {
    "segfault": _segfault,
    "kill": _kill,
    "hang": _hang,
    "stick": _stick,
    "eat": _eat,
    "device": _device,
    "exit": lambda: os._exit(7),
    "oom": lambda: ("out_of_memory", "the scripted model has no memory for this prompt"),
    "raise": lambda: ("model_error", "the scripted model raised on this prompt"),
    "empty": lambda: None,
}
