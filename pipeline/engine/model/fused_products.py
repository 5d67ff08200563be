"""Up to how many rows bitsandbytes multiplies with a weight in 4 bits as it lies: its own function is asked,
for any card, whether or not there is one here.

Beyond that number its dispatcher (``bitsandbytes::gemm_4bit``) writes a copy of the weight in 16 bits and
reads that. The decision depends on the card's multiprocessors and compute capability, the numbers of the
activations and the weight's shape. It is made in a module that can be imported only beside a CUDA build of
torch, and looks at the card of this process. So the function alone is taken from the installed library, and
told the properties of the card that is meant.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import logging
import types
from collections.abc import Callable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path

import torch

from pipeline.planner.fused_products import FusedRows
from pipeline.planner.model.shape import ModelShape
from pipeline.system.hardware_datasheet import CardKind

_DECIDES, _ASKS_THE_CARD = "_gemm_4bit_use_custom_cuda", "_gpu_dispatch_props"
_Decision = Callable[[int, torch.dtype, int, int, int], bool]
# What is assumed of a release that has no such function: its kernel for vectors alone multiplies in 4 bits.
_ROWS_OF_A_VECTOR = 1
# Rows beyond these are of prompts, where it matters little how a weight is read.
_MOST_ROWS_ASKED = 512


def fused_rows(shape: ModelShape, card: CardKind, dtype: str) -> FusedRows:
    """By (out, in) of the weights of ``shape`` that 4 bits shrink, the most rows that ``card`` multiplies
    fused in ``dtype``.
    """
    shapes = sorted({(weight.rows, weight.columns) for weight in shape.weights if weight.shrinks})
    decide = _decision(card)
    if decide is None:
        told = "this release of bitsandbytes does not say; a row alone is taken to be multiplied in 4 bits"
        return FusedRows(dict.fromkeys(shapes, _ROWS_OF_A_VECTOR), told)
    numbers = getattr(torch, dtype)
    rows = {(out, inner): _most_rows(decide, numbers, out, inner) for out, inner in shapes}
    return FusedRows(rows, f"as bitsandbytes decides for {card.describe()}")


def _most_rows(decide: _Decision, dtype: torch.dtype, out: int, inner: int) -> int:
    """The last of the rows from one on for which the answer is yes: nothing says that there is one border
    only.
    """
    for rows in range(1, _MOST_ROWS_ASKED + 1):
        if not decide(0, dtype, rows, out, inner):
            return rows - 1
    return _MOST_ROWS_ASKED


@functools.cache
def _library_module() -> tuple[types.CodeType, Mapping[str, object]] | None:
    """The module that decides, as an import would compile it but not run, and plain values that it gives
    names to; None where there is none.
    """
    package = importlib.util.find_spec("bitsandbytes")
    folders = (package.submodule_search_locations if package else None) or ()
    path = next((Path(folder) / "backends" / "cuda" / "ops.py" for folder in folders), None)
    if path is None or not path.is_file():
        return None
    loader = SourceFileLoader("bitsandbytes.backends.cuda.ops", str(path))
    code = loader.get_code(loader.name)
    return None if code is None else (code, _constants(path.read_text(encoding="utf-8")))


def _decision(card: CardKind) -> _Decision | None:
    """The library's function, told that its card is ``card``; None where there is none, or it wants to know
    something else.
    """
    code, constants = _library_module() or (None, {})
    own = next((part for part in _codes(code) if part.co_name == _DECIDES), None)
    if own is None:
        return None

    def asked(_device: int) -> tuple[int, int, int]:
        return (card.multiprocessors, *card.capability)

    decide: _Decision = types.FunctionType(own, {**constants, "torch": torch, _ASKS_THE_CARD: asked})
    try:
        decide(0, torch.bfloat16, 8, 4096, 4096)
    except (NameError, TypeError) as error:  # a release that decides in another way
        logging.getLogger(__name__).info("bitsandbytes decides in a way that is not known here: %s", error)
        return None
    return decide


def _codes(module: types.CodeType | None) -> list[types.CodeType]:
    """Of the functions at the top of a module."""
    return [part for part in (module.co_consts if module else ()) if isinstance(part, types.CodeType)]


def _constants(source: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            found |= {target.id: node.value.value for target in node.targets if isinstance(target, ast.Name)}
    return found
