"""What ``overnight bench`` compares, over one loaded model: our engine, the library's decoders, and the loops
people write themselves.

A contestant gets requests and gives generations; a ``Stopwatch`` on the model counts what it computed
meanwhile: how long the forward passes took, how many tokens went through them, how many of those were
padding.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from pipeline.bench.library.select import open_library
from pipeline.bench.placement_timing import Stay, stay, usable_placements
from pipeline.bench.weights import HoldsWeights
from pipeline.engine.interface import Engine
from pipeline.engine.model.cpu_products import FastProducts, is_on_processor
from pipeline.engine.model.forward import Forward, attention_as, synchronize
from pipeline.engine.model.loading import LoadedModel
from pipeline.engine.model.precision import torch_dtype
from pipeline.engine.packed import attention
from pipeline.engine.select import select_engine
from pipeline.engine.static.engine import generation_of
from pipeline.engine.static.generate import PassLimits
from pipeline.engine.static.score import score
from pipeline.records import Decode, Generation, KvPlacement, Plan, Request, Score

NAIVE, EACH_LABEL, OURS = "naive", "pass_per_label", "overnight"
STATIC, GENERATE_BATCH = "static", "generate_batch"
ONE_BY_ONE = (NAIVE, EACH_LABEL)
_STATIC_ROWS = 16
# A label written out by the naive loop needs at most so many tokens.
NAIVE_LABEL_TOKENS = 5
_MATMUL_SIDE = 2048
_MATMUL_TIMES = 3


@dataclass(slots=True)
class Passes:
    """Forward passes of one contestant: seconds inside the model, and tokens; those that only decode apart
    from those that read.

    ``padded`` counts tokens that went through the model for nothing: padding, and rows that had ended.
    """

    read_seconds: float = 0.0
    read_tokens: int = 0
    decode_seconds: float = 0.0
    decode_tokens: int = 0
    padded: int = 0

    @property
    def seconds(self) -> float:
        """In the model's forward."""
        return self.read_seconds + self.decode_seconds


@dataclass(frozen=True, slots=True)
class Heat:
    """One contestant's run over some requests."""

    seconds: float
    passes: Passes
    generations: Mapping[int, Generation]


class Stopwatch:
    """Counts the forward passes of ``model`` while it is entered. Waits for the device around each pass."""

    def __init__(self, model: Any) -> None:
        self.passes = Passes()
        self._model = model
        self._began = 0.0
        self._hooks: list[Any] = []

    def __enter__(self) -> Self:
        self._hooks = [
            self._model.register_forward_pre_hook(self._before, with_kwargs=True),
            self._model.register_forward_hook(self._after, with_kwargs=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _before(self, *_: Any) -> None:
        synchronize()
        self._began = time.perf_counter()

    def _after(self, _model: Any, arguments: tuple[Any, ...], named: dict[str, Any], _output: Any) -> None:
        synchronize()
        seconds = time.perf_counter() - self._began
        ids = named["input_ids"] if "input_ids" in named else arguments[0]
        packed = attention.current(self._model)
        only_decodes = packed.only_decodes if packed else ids.shape[1] == 1
        if only_decodes:
            self.passes.decode_seconds += seconds
            self.passes.decode_tokens += ids.numel()
        else:
            self.passes.read_seconds += seconds
            self.passes.read_tokens += ids.numel()
            self.passes.padded += 0 if packed else _padding(ids, named.get("attention_mask"))


def _padding(ids: torch.Tensor, mask: Any) -> int:
    """Columns of ``ids`` that a two-dimensional mask calls padding."""
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2:
        return 0
    return int(ids.numel() - mask[:, -ids.shape[1] :].sum())


class Contest:
    """Contestants by name over one loaded model. They leave the model to each other when they are done."""

    def __init__(self, loaded: LoadedModel, plan: Plan, *, end_ids: Sequence[int], pad_id: int) -> None:
        self._loaded = loaded
        self.plan = plan
        self._end_ids = list(end_ids)
        self._pad_id = pad_id
        self._forward = Forward(loaded.model)
        self._engines: dict[str, tuple[Engine, str]] = {}
        self._fast: FastProducts | None = None
        self.facts = loaded.facts

    @property
    def parameters(self) -> int:
        """Of the model, tied ones once; as many as before quantization."""
        return int(self._loaded.model.num_parameters())

    def describe(self, name: str) -> str:
        """What the contestant is, and why it is only a stand-in where it does not fit this model."""
        if name == NAIVE:
            return "generate, one document at a time, full prompt"
        if name == EACH_LABEL:
            return "one document at a time, one pass a label on its cache"
        return self._engine(name)[1]

    def run(self, name: str, requests: Sequence[Request]) -> Heat:
        """Let ``name`` answer ``requests``. Nothing is kept from an earlier call: shared prefixes are read
        again.
        """
        self._engines.pop(name, None)
        contestant = self._contestant(name)
        with self._products(name), Stopwatch(self._loaded.model) as watch, torch.inference_mode():
            synchronize()
            began = time.perf_counter()
            generations = contestant(requests)
            synchronize()
            seconds = time.perf_counter() - began
        _count_ended_rows(watch.passes, requests, generations)
        return Heat(seconds, watch.passes, generations)

    def _products(self, name: str) -> AbstractContextManager[None]:
        """Ours computes products as a night does; the others have the library's."""
        if name != OURS or not is_on_processor(self._loaded.model):
            return nullcontext()
        if self._fast is None:
            self._fast = FastProducts(self._loaded.model, free=False)
        return self._fast.started()

    def placements(self) -> list[KvPlacement]:
        """Where this model's KV cache can be."""
        return usable_placements(self._forward)

    def stay(self, placement: KvPlacement, ids: Sequence[int], new_tokens: int) -> Stay:
        """Read one prompt and write ``new_tokens`` with its cache in ``placement``."""
        with attention_as(self._loaded.model, str(self._loaded.facts["attention"])):
            return stay(self._forward, ids, new_tokens, self._row_by_row(placement))

    def matmul_flops(self) -> float:
        """Floating-point operations a second of a large square matrix product in the compute dtype: the
        machine's limit, now.
        """
        device = self._forward.device
        square = torch.ones(_MATMUL_SIDE, _MATMUL_SIDE, dtype=torch_dtype(self.plan.dtype), device=device)
        rates = []
        for _ in range(_MATMUL_TIMES + 1):
            synchronize()
            began = time.perf_counter()
            square @ square
            synchronize()
            rates.append(2 * _MATMUL_SIDE**3 / (time.perf_counter() - began))
        return statistics.median(rates[1:])

    def _contestant(self, name: str) -> Callable[[Sequence[Request]], dict[int, Generation]]:
        if name == NAIVE:
            return self._naive
        if name == EACH_LABEL:
            return self._each_label
        engine = self._engine(name)[0]
        return lambda requests: _drain(engine, requests)

    def _engine(self, name: str) -> tuple[Engine, str]:
        if name not in self._engines:
            self._engines[name] = self._open(name)
        return self._engines[name]

    def _open(self, name: str) -> tuple[Engine, str]:
        ids: Any = {"end_ids": self._end_ids, "pad_id": self._pad_id}
        if name == OURS:
            return select_engine(self._loaded, self.plan, **ids)
        if name == GENERATE_BATCH:
            return open_library("generate_batch", self._loaded, self.plan, **ids)
        # Of texts, sorted static batches are the library's; scores it has none, there ours stand in.
        rows = min(_STATIC_ROWS, self.plan.max_batch_rows)
        return open_library("generate", self._loaded, replace(self.plan, max_batch_rows=rows), **ids)

    def _naive(self, requests: Sequence[Request]) -> dict[int, Generation]:
        """The loop of every tutorial. A label is written out, in at most ``NAIVE_LABEL_TOKENS`` tokens."""
        found = {}
        with attention_as(self._loaded.model, str(self._loaded.facts["attention"])):
            for request in requests:
                limit = request.ask.max_new_tokens if isinstance(request.ask, Decode) else NAIVE_LABEL_TOKENS
                ids = torch.tensor([request.ids], device=self._forward.device)
                output = self._loaded.model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=limit,
                    do_sample=False,
                    eos_token_id=self._end_ids or None,
                    pad_token_id=self._pad_id,
                )
                tokens = [token for token in output[0, ids.shape[1] :].tolist() if token not in self._end_ids]
                found[request.request_id] = Generation(
                    request.request_id, token_ids=tuple(tokens), prompt_tokens=len(request.ids)
                )
        return found

    def _each_label(self, requests: Sequence[Request]) -> dict[int, Generation]:
        """The document is read once; then every label is scored in a pass of its own over its cache."""
        settings = self._row_by_row(self.plan.placement)
        with attention_as(self._loaded.model, str(self._loaded.facts["attention"])):
            return {request.request_id: self._scored(request, settings) for request in requests}

    def _row_by_row(self, placement: KvPlacement) -> PassLimits:
        return PassLimits(
            self.plan.prefill_chunk_tokens,
            1,
            self.plan.batch_tokens,
            placement,
            self._pad_id,
            self._loaded.kv_folder,
        )

    def _scored(self, request: Request, settings: PassLimits) -> Generation:
        assert isinstance(request.ask, Score), "only labels are scored"
        (scores,) = score(self._forward, [request.ids], [request.ask], settings)
        return generation_of(request, scores, settings.placement, 1, 0.0)


def _drain(engine: Engine, requests: Sequence[Request]) -> dict[int, Generation]:
    engine.admit(requests)
    found: dict[int, Generation] = {}
    while not engine.idle:
        found.update((generation.request_id, generation) for generation in engine.step())
    return found


def _count_ended_rows(
    passes: Passes, requests: Sequence[Request], generations: Mapping[int, Generation]
) -> None:
    """Decode passes of texts: the first token of each comes from reading, what goes beyond the others was
    computed for ended rows.
    """
    if all(isinstance(request.ask, Decode) for request in requests):
        needed = sum(max(0, len(generation.token_ids) - 1) for generation in generations.values())
        passes.padded += max(0, passes.decode_tokens - needed)


def open_contest(
    backend: HoldsWeights,
    plan: Plan,
    offload_folder: Path,
    say: Callable[[str], None],
    *,
    to_the_end: bool,
) -> Contest:
    """Load the weights for a comparison. ``to_the_end``: end tokens are tokens like others."""
    tokenizer = backend.tokenizer()
    end_ids = () if to_the_end else tokenizer.end_ids
    return Contest(backend.load(plan, offload_folder, say), plan, end_ids=end_ids, pad_id=tokenizer.pad_id)
