"""The C functions that bitsandbytes' own CUDA backend calls, on the card's memory, computed by its CPU
kernels.

Bitsandbytes' Python is real: its checks, what it allocates, which streams it passes, and its choice between a
fused product and a copy in 16 bits (``_gemm_4bit_use_custom_cuda``). Only what its shared library would do is
done here. A pointer to anything but memory of a card that is in use is an illegal memory access, as it would
be there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.pretend_card.extension import card
from tests.pretend_card.halves import rounded_once

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_QUANTS = ("fp4", "nf4")
_LEGACY_STREAM = 0  # where kernels go that are given none (csrc/ops.cu: quantizing)
_STATISTICS_BLOCK = 256  # of the second level of quantization
Work = Callable[..., None]


class Library:
    """``bitsandbytes.cextension.lib`` of a build with CUDA. What is not here is the CPU library's."""

    compiled_with_cuda = True

    def __init__(self, of_cpu: Any) -> None:
        self._of_cpu = of_cpu
        self._functions = _functions()

    def __getattr__(self, name: str) -> Any:
        return self._functions.get(name) or getattr(self._of_cpu, name)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def _functions() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {"get_context": lambda: 1}
    for short, dtype in _TYPES.items():
        for quant in _QUANTS:
            found[f"cquantize_blockwise_{short}_{quant}"] = _quantize_4bit(dtype, quant)
            found[f"cdequantize_blockwise_{short}_{quant}"] = _dequantize_4bit(dtype, quant)
        found[f"cquantize_blockwise_{short}"] = _quantize_blockwise(dtype)
        found[f"cdequantize_blockwise_{short}"] = _dequantize_blockwise(dtype)
        found[f"cgemm_4bit_{short}"] = _gemm_4bit(dtype)
        found[f"cgemm_4bit_inference_naive_{short}"] = _gemv_4bit(dtype)
    found["cigemmlt_32"] = _int8_product
    found["cdequant_mm_int32_fp16"] = _dequantize_product
    found["cint8_vector_quant"] = _quantize_rows
    return found


def _at(pointer: int, sizes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    found: torch.Tensor = card.at_pointer(pointer, sizes, dtype)
    return found


def _launch(
    name: str, reads: list[torch.Tensor], writes: list[torch.Tensor], work: Work, stream: int
) -> None:
    card.kernel(reads[0].device.index, f"bitsandbytes::{name}", reads, writes, work, stream=stream)


def _quantize_4bit(dtype: torch.dtype, quant: str) -> Callable[..., None]:
    def function(_code: Any, a: int, absmax: int, out: int, blocksize: int, count: int) -> None:
        def work(a: torch.Tensor, out: torch.Tensor, absmax: torch.Tensor) -> None:
            packed, scales = torch.ops.bitsandbytes.quantize_4bit.default(a, blocksize, quant, torch.uint8)
            out.copy_(packed.reshape(-1))
            absmax.copy_(scales)

        to = [
            _at(out, ((count + 1) // 2,), torch.uint8),
            _at(absmax, (-(-count // blocksize),), torch.float32),
        ]
        _launch("quantize_4bit", [_at(a, (count,), dtype)], to, work, _LEGACY_STREAM)

    return function


def _dequantize_4bit(dtype: torch.dtype, quant: str) -> Callable[..., None]:
    def function(_code: Any, a: int, absmax: int, out: int, blocksize: int, count: int, stream: int) -> None:
        def work(a: torch.Tensor, absmax: torch.Tensor, out: torch.Tensor) -> None:
            found = torch.ops.bitsandbytes.dequantize_4bit.default(
                a, absmax, blocksize, quant, (count,), dtype
            )
            out.copy_(found.reshape(-1))

        of = [_at(a, ((count + 1) // 2,), torch.uint8), _at(absmax, (-(-count // blocksize),), torch.float32)]
        _launch("dequantize_4bit", of, [_at(out, (count,), dtype)], work, stream)

    return function


def _quantize_blockwise(dtype: torch.dtype) -> Callable[..., None]:
    def function(code: int, a: int, absmax: int, out: int, blocksize: int, count: int) -> None:
        def work(code: torch.Tensor, a: torch.Tensor, out: torch.Tensor, absmax: torch.Tensor) -> None:
            packed, scales = torch.ops.bitsandbytes.quantize_blockwise.default(a, code, blocksize)
            out.copy_(packed)
            absmax.copy_(scales)

        of = [_at(code, (256,), torch.float32), _at(a, (count,), dtype)]
        to = [_at(out, (count,), torch.uint8), _at(absmax, (-(-count // blocksize),), torch.float32)]
        _launch("quantize_blockwise", of, to, work, _LEGACY_STREAM)

    return function


def _dequantize_blockwise(dtype: torch.dtype) -> Callable[..., None]:
    def function(code: int, a: int, absmax: int, out: int, blocksize: int, count: int, stream: int) -> None:
        def work(code: torch.Tensor, a: torch.Tensor, absmax: torch.Tensor, out: torch.Tensor) -> None:
            out.copy_(torch.ops.bitsandbytes.dequantize_blockwise.default(a, absmax, code, blocksize, dtype))

        of = [
            _at(code, (256,), torch.float32),
            _at(a, (count,), torch.uint8),
            _at(absmax, (-(-count // blocksize),), torch.float32),
        ]
        _launch("dequantize_blockwise", of, [_at(out, (count,), dtype)], work, stream)

    return function


def _gemm_4bit(dtype: torch.dtype) -> Callable[..., None]:
    """The fused product: weights are unpacked in registers, no copy of them is written."""

    def function(
        a: int,
        b: int,
        absmax: int,
        absmax_8bit: int | None,
        code: int | None,
        offset: int | None,
        out: int,
        bias: int | None,
        m: int,
        n: int,
        k: int,
        blocksize: int,
        quant: int,
        stream: int,
    ) -> None:
        blocks = -(-n * k // blocksize)
        scales = blocks if absmax_8bit is None else -(-blocks // _STATISTICS_BLOCK)
        of = {
            "A": _at(a, (m, k), dtype),
            "B": _at(b, (-(-n * k // 2), 1), torch.uint8),
            "absmax": _at(absmax, (scales,), torch.float32),
        }
        if bias is not None:
            of["bias"] = _at(bias, (n,), dtype)
        if absmax_8bit is not None and code is not None and offset is not None:
            of["absmax_8bit"] = _at(absmax_8bit, (blocks,), torch.uint8)
            of["absmax_code"] = _at(code, (256,), torch.float32)
            of["absmax_offset"] = _at(offset, (), torch.float32)

        def work(*near: torch.Tensor) -> None:
            given = dict(zip(of, near, strict=False))
            with rounded_once():
                found = torch.ops.bitsandbytes.gemm_4bit.default(
                    shapeB=(n, k), blocksize=blocksize, quant_type=_QUANTS[quant - 1], **given
                )
            near[-1].copy_(found)

        _launch("gemm_4bit", list(of.values()), [_at(out, (m, n), dtype)], work, stream)

    return function


def _gemv_4bit(dtype: torch.dtype) -> Callable[..., None]:
    def function(
        m: int,
        n: int,
        k: int,
        a: int,
        b: int,
        absmax: int,
        code: int,
        out: int,
        _lda: int,
        _ldb: int,
        _ldc: int,
        blocksize: int,
        stream: int,
    ) -> None:
        def work(
            a: torch.Tensor, b: torch.Tensor, absmax: torch.Tensor, code: torch.Tensor, out: torch.Tensor
        ) -> None:
            out.copy_(torch.ops.bitsandbytes.gemv_4bit.default(a, b, (m, k), absmax, code, blocksize))

        of = [
            _at(a, (n, k), dtype),
            _at(b, (-(-m * k // 2), 1), torch.uint8),
            _at(absmax, (-(-m * k // blocksize),), torch.float32),
            _at(code, (16,), torch.float32),
        ]
        _launch("gemv_4bit", of, [_at(out, (n, m), dtype)], work, stream)

    return function


def _int8_product(
    _context: Any,
    inputs: int,
    n: int,
    outputs: int,
    weights: int,
    rows: int,
    out: int,
    _scale: Any,
    _lda: int,
    _ldb: int,
    _ldc: int,
    stream: int,
) -> int:
    def work(weights: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(torch.ops.bitsandbytes.int8_linear_matmul.default(rows, weights))

    of = [_at(weights, (outputs, inputs), torch.int8), _at(rows, (n, inputs), torch.int8)]
    _launch("int8_linear_matmul", of, [_at(out, (n, outputs), torch.int32)], work, stream)
    return 0


def _dequantize_product(
    a: int, row_stats: int, col_stats: int, out: int, bias: int | None, rows: int, columns: int, stream: int
) -> None:
    of = [
        _at(a, (rows, columns), torch.int32),
        _at(row_stats, (rows,), torch.float32),
        _at(col_stats, (columns,), torch.float32),
    ]
    if bias is not None:
        of.append(_at(bias, (columns,), torch.float16))

    def work(*near: torch.Tensor) -> None:
        a, row_stats, col_stats, *added = near[:-1]
        found = torch.ops.bitsandbytes.int8_mm_dequant.default(
            a, row_stats, col_stats, torch.float16, added[0] if added else None
        )
        near[-1].copy_(found)

    _launch("int8_mm_dequant", of, [_at(out, (rows, columns), torch.float16)], work, stream)


def _quantize_rows(
    a: int, out: int, row_stats: int, threshold: float, rows: int, columns: int, stream: int
) -> None:
    def work(a: torch.Tensor, out: torch.Tensor, row_stats: torch.Tensor) -> None:
        quantized, scales, _ = torch.ops.bitsandbytes.int8_vectorwise_quant.default(a.clone(), threshold)
        out.copy_(quantized)
        row_stats.copy_(scales)

    to = [_at(out, (rows, columns), torch.int8), _at(row_stats, (rows,), torch.float32)]
    _launch("int8_vectorwise_quant", [_at(a, (rows, columns), torch.float16)], to, work, stream)
