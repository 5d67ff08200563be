"""Matrix products of a resident model on a processor, each in the way that is fastest here for its shape.

Plain ``linear`` reads a row-major weight, which oneDNN lays out anew inside each call; a weight that is laid
out once takes 1.2 to 2 times less at 4 to 64 rows. Weights in 4 bits are unpacked into storage that all
products share, by the kernel that streamed weights use, instead of into new memory in each call,
and with their scales in plain numbers; the result is that of the library's product, bit for bit.

Shapes: a weight is (out, in), its input (..., in), its output (..., out).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.nn.functional import linear

from pipeline.engine.model.nf4 import Unpacking, unpacking_of
from pipeline.engine.model.peak_memory import large_blocks_given_back
from pipeline.engine.trial import Agreement, compared, reason_against, trial_tokens

_LAID_OUT_FOR = 32  # rows; any other number is served by the same layout, too
_TRIED_ROWS = (8, 32, 512)  # decoding, more of it, reading
_MOST_OUTPUTS = 2**22  # of a trial: a head is not asked for hundreds of rows, and its memory is in no plan
_TRIES, _SECONDS = 5, 2.0
_WORTH = 0.97  # of the plain product's time, the geometric mean over the tried rows
_TRIAL_TOKENS = 12

_Product = Callable[[torch.Tensor], torch.Tensor]


def speed_up(model: Any, *, exact: bool) -> Mapping[str, Any]:
    """Give ``model`` fast products for good, and say so in plain values (JSON), for the report.

    A family that does more with its weights than multiply by them keeps the library's products, with the
    reason: a few tokens are read both ways. ``exact``: numbers are of 32 bits. Nothing is done to a model of
    which anything is on a card, on a disk or streamed.
    """
    if not is_on_processor(model):
        return {}
    plain = _read(model)
    with large_blocks_given_back():
        products = FastProducts(model, free=True)
    products.start()
    reason = reason_against(lambda: _agreement(model, plain), exact=exact)
    if reason is None:
        return products.facts.as_values()
    products.undo()
    return {"plain_because": reason}


def is_on_processor(model: Any) -> bool:
    """Whether all of ``model`` is computed where it lies in memory: nothing on a card, nothing fetched."""
    fetched = any(hasattr(module, "_hf_hook") or hasattr(module, "computes_on") for module in model.modules())
    return not fetched and all(parameter.device.type == "cpu" for parameter in model.parameters())


def _read(model: Any) -> torch.Tensor:
    ids = trial_tokens(_TRIAL_TOKENS, int(model.get_input_embeddings().weight.shape[0]))
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids])).logits
    return logits.float()


def _agreement(model: Any, plain: torch.Tensor) -> Agreement:
    return compared(_read(model), plain)


@dataclass(frozen=True, slots=True)
class ProductFacts:
    """How many linear layers take which way, bytes that are there beside the weights (of a head whose weight
    is the embedding's, too; room for an unpacked weight; scales in plain numbers), and the seconds of finding
    out.
    """

    laid_out: int
    unpacked_in_place: int
    plain: int
    beside_bytes: int
    seconds: float

    def as_values(self) -> Mapping[str, Any]:
        """Plain values (JSON)."""
        return {**asdict(self), "seconds": round(self.seconds, 3)}


class FastProducts:
    """Products of ``model`` in their fast ways, from ``start`` to ``undo``. ``free``: a weight that is laid
    out gives its plain numbers back, so that none is there twice; what stands in its place has its shape and
    is not a number, so that whoever reads it would be noticed.
    """

    def __init__(self, model: Any, *, free: bool) -> None:
        began = time.perf_counter()
        self._free = free
        self._products: dict[Any, _Product] = {}
        self._laid_out: dict[Any, torch.Tensor] = {}
        self._embedding = model.get_input_embeddings().weight
        linears = list(_linears(model))
        self._storage: dict[torch.dtype, torch.Tensor] = {}
        self._beside_bytes = 0
        self._pays = _Choice()
        self._largest = _largest_in_4_bits(linears)
        for module in linears:
            if hasattr(module, "compute_dtype"):
                self._unpack(module)
            elif self._pays(module.weight):
                self._lay_out(module)
        laid_out, fast = len(self._laid_out), len(self._products)
        self.facts = ProductFacts(
            laid_out,
            fast - laid_out,
            len(linears) - fast,
            self._beside_bytes,
            time.perf_counter() - began,
        )

    def start(self) -> None:
        """From now on the model computes its products this way."""
        for module, product in self._products.items():
            module.forward = product

    def stop(self) -> None:
        """From now on the library's way; not for weights that were given back."""
        for module in self._products:
            vars(module).pop("forward", None)

    @contextmanager
    def started(self) -> Iterator[None]:
        """Inside."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def undo(self) -> None:
        """The library's way, with the weights it had."""
        self.stop()
        if self._free:
            for module, laid_out in self._laid_out.items():
                if module.weight is not self._embedding:
                    module.weight = torch.nn.Parameter(laid_out.to_dense(), requires_grad=False)
        self._products, self._laid_out, self._storage = {}, {}, {}

    def _lay_out(self, module: Any) -> None:
        weight = module.weight
        self._laid_out[module] = laid_out = _laid_out(weight)
        self._products[module] = _prepacked(laid_out, module.bias)
        if weight is self._embedding:
            self._beside_bytes += weight.numel() * weight.element_size()
        elif self._free:
            nothing = torch.full((), math.nan, dtype=weight.dtype).expand(weight.shape)
            module.weight = torch.nn.Parameter(nothing, requires_grad=False)

    def _unpack(self, module: Any) -> None:
        packed, state, dtype = module.weight.data, module.weight.quant_state, module.compute_dtype
        # the library has a layout and a product of its own for bfloat16 where the processor has it
        if dtype is None or module.support_avx512bf16_for_cpu:
            return
        unpacking = unpacking_of(packed, state, dtype)
        if unpacking is not None:
            out = self._room(dtype)[: state.shape.numel()].view(state.shape)
            self._products[module] = _unpacked(unpacking, out, module.bias)
            self._beside_bytes += unpacking.scales.nbytes

    def _room(self, dtype: torch.dtype) -> torch.Tensor:
        """For the largest of the weights in 4 bits, one after another."""
        if dtype not in self._storage:
            self._storage[dtype] = torch.empty(self._largest, dtype=dtype)
            self._beside_bytes += self._storage[dtype].nbytes
        return self._storage[dtype]


def _linears(model: Any) -> Iterator[Any]:
    """Of torch itself and those in 4 bits; what a family derives from them may do more."""
    for module in model.modules():
        if type(module) is torch.nn.Linear or type(module).__name__ == "Linear4bit":
            yield module


def _largest_in_4_bits(linears: Sequence[Any]) -> int:
    states = [getattr(module.weight, "quant_state", None) for module in linears]
    return max((state.shape.numel() for state in states if state is not None), default=0)


def _laid_out(weight: torch.Tensor) -> torch.Tensor:
    # these operators have no public names
    laid_out: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _LAID_OUT_FOR)  # noqa: SLF001
    return laid_out


def _prepacked(laid_out: torch.Tensor, bias: torch.Tensor | None) -> _Product:
    product = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001  # as above

    def forward(states: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = product(states, laid_out, bias, "none", [], "")
        return out

    return forward


def _unpacked(unpacking: Unpacking, out: torch.Tensor, bias: torch.Tensor | None) -> _Product:
    bias = None if bias is None else bias.to(out.dtype)

    def product(states: torch.Tensor) -> torch.Tensor:
        unpacking.into(out)
        return linear(states, out, bias)

    return _in_dtype(product, out.dtype)


def _in_dtype(product: _Product, dtype: torch.dtype) -> _Product:
    """As 4-bit products do: computed in their own dtype, given back in the input's."""
    return lambda states: product(states.to(dtype)).to(states.dtype)


class _Choice:
    """Whether laying out a weight beforehand pays, tried once a shape by the time of few rows and of many.

    All shapes together are given ``_SECONDS``; what could not be tried in them stays plain.
    """

    def __init__(self) -> None:
        self._found: dict[Any, bool] = {}
        self._until = time.perf_counter() + _SECONDS

    def __call__(self, weight: torch.Tensor) -> bool:
        key = weight.dtype, tuple(weight.shape)
        if key not in self._found:
            self._found[key] = self._tried(weight.detach())
        return self._found[key]

    def _tried(self, weight: torch.Tensor) -> bool:
        try:
            fast = _prepacked(_laid_out(weight), None)
            rows = [rows for rows in _TRIED_ROWS if rows * len(weight) <= _MOST_OUTPUTS]
            ratios = [self._ratio(weight, fast, count) for count in rows or _TRIED_ROWS[:1]]
        except (RuntimeError, AttributeError):  # this build lays out no such numbers, or has no oneDNN
            return False
        return math.prod(ratios) ** (1 / len(ratios)) < _WORTH

    def _ratio(self, weight: torch.Tensor, fast: _Product, rows: int) -> float:
        """Seconds of ``fast`` for those of the plain product, each at its best."""
        states = torch.ones(rows, weight.shape[1], dtype=weight.dtype)
        ways: tuple[_Product, _Product] = (lambda x: linear(x, weight), fast)
        best = [math.inf, math.inf]
        for _ in range(_TRIES):
            if time.perf_counter() > self._until:
                break
            for number, product in enumerate(ways):
                began = time.perf_counter()
                product(states)
                best[number] = min(best[number], time.perf_counter() - began)
        return best[1] / best[0] if best[0] < math.inf else 1.0
