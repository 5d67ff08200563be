"""Storage formats: tensors to the parts that are written, and back. See ``sizes`` for the method and its
source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from pipeline.stores.kv.sizes import KEY_GROUP_TOKENS, VALUE_GROUP_CHANNELS, StorageFormat, codes_width
from pipeline.stores.kv.tensor_file import FilePart

_CODES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_HALVES: dict[StorageFormat, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
_LEVELS: dict[StorageFormat, int] = {"int8": 255, "int4": 15}
# float16 rounds by at most 2**-11 of a value, or 2**-25 near zero; twice that widens a group so that it
# surely covers its elements.
_RELATIVE, _ABSOLUTE = 2.0**-10, 2.0**-24


class CannotEncode(Exception):
    """A tensor holds what the format cannot: not finite, or beyond float16."""


@dataclass(frozen=True)
class Coded:
    """How one tensor (``shape``, ``dtype`` as safetensors calls it) is stored."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    encoding: StorageFormat

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, storage_format: StorageFormat) -> Coded:
        """Lossy formats apply to floating keys (``.k``) and values (``.v``) of two or more dimensions."""
        if tensor.dtype not in _CODES:
            raise ValueError(f"tensor {name} is {tensor.dtype}, which the store does not keep")
        code = _CODES[tensor.dtype]
        lossy = (
            role(name) != "other"
            and tensor.is_floating_point()
            and tensor.dim() >= 2
            and tensor.element_size() > 1
        )
        same = storage_format in _HALVES and tensor.dtype == _HALVES[storage_format]
        return cls(name, tuple(tensor.shape), code, storage_format if lossy and not same else "as_computed")

    @property
    def torch_dtype(self) -> torch.dtype:
        """Of the tensor as computed."""
        return _DTYPES[self.dtype]

    def parts(self) -> list[FilePart]:
        """What is written, in the order of ``encode``."""
        if self.encoding == "as_computed":
            return [FilePart(self.name, self.dtype, self.shape)]
        if self.encoding in _HALVES:
            return [FilePart(self.name, _CODES[_HALVES[self.encoding]], self.shape)]
        *heads, tokens, width = self.shape
        groups = (
            (-(-tokens // KEY_GROUP_TOKENS), width)
            if role(self.name) == "key"
            else (tokens, -(-width // VALUE_GROUP_CHANNELS))
        )
        return [
            FilePart(f"{self.name}.codes", "U8", (*heads, tokens, codes_width(width, self.encoding))),
            FilePart(f"{self.name}.step", "F16", (*heads, *groups)),
            FilePart(f"{self.name}.low", "F16", (*heads, *groups)),
            FilePart(f"{self.name}.unit", "F32", (1,)),
        ]


def role(name: str) -> Literal["key", "value", "other"]:
    """By the end of its name."""
    return "key" if name.endswith(".k") else "value" if name.endswith(".v") else "other"


def empty(part: FilePart) -> torch.Tensor:
    """Room for a part that is about to be read."""
    return torch.empty(part.shape, dtype=_DTYPES[part.dtype])


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    flat = tensor.reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data) if flat.numel() else memoryview(b"")


def encode(tensor: torch.Tensor, coded: Coded) -> list[torch.Tensor]:
    """The parts, on the CPU. Raises CannotEncode."""
    near = tensor.detach().to("cpu").contiguous()
    if coded.encoding == "as_computed":
        return [near]
    if coded.encoding in _HALVES:
        half = near.to(_HALVES[coded.encoding])
        if not bool(torch.isfinite(half).all()):
            raise CannotEncode(f"{coded.name} holds values that {coded.encoding} does not")
        return [half]
    return _quantized(near, coded)


def decode(parts: Sequence[torch.Tensor], coded: Coded) -> torch.Tensor:
    """The tensor, in its shape and dtype."""
    if coded.encoding == "as_computed" or coded.encoding in _HALVES:
        return parts[0].to(coded.torch_dtype)
    codes, step, low, unit = parts
    if coded.encoding == "int4":
        codes = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)[..., : coded.shape[-1]]
    grouped = _grouped(codes.to(torch.float32), coded)
    axis = _group_axis(coded)
    values = (
        grouped.mul_(step.to(torch.float32).unsqueeze(axis))
        .add_(low.to(torch.float32).unsqueeze(axis))
        .mul_(unit)
    )
    return _ungrouped(values, coded).to(coded.torch_dtype).contiguous()


def _quantized(tensor: torch.Tensor, coded: Coded) -> list[torch.Tensor]:
    if not tensor.numel():
        return [empty(part) for part in coded.parts()]
    if not bool(torch.isfinite(tensor).all()):
        raise CannotEncode(f"{coded.name} holds values that are not finite")
    levels, axis = _LEVELS[coded.encoding], _group_axis(coded)
    unit = _unit(float(tensor.abs().max()))
    grouped = _grouped(
        tensor.to(torch.float64 if tensor.dtype == torch.float64 else torch.float32) / unit, coded
    ).to(torch.float32)
    least, most = grouped.amin(axis), grouped.amax(axis)
    low = (least - least.abs() * _RELATIVE - _ABSOLUTE).to(torch.float16)
    step = ((most - low.to(torch.float32)) / levels * (1 + _RELATIVE) + _ABSOLUTE).to(torch.float16)
    codes = (
        grouped.sub_(low.to(torch.float32).unsqueeze(axis))
        .div_(step.to(torch.float32).unsqueeze(axis))
        .round_()
        .clamp_(0, levels)
    )
    flat = _ungrouped(codes, coded).to(torch.uint8)
    return [
        _paired(flat) if coded.encoding == "int4" else flat.contiguous(),
        step,
        low,
        torch.tensor([unit], dtype=torch.float32),
    ]


def _unit(largest: float) -> float:
    """A power of two by which values are divided, so that float16 scales neither overflow nor vanish."""
    return math.ldexp(1.0, max(-110, math.frexp(largest)[1] - 14)) if largest else 1.0


def _group_axis(coded: Coded) -> int:
    """Where, in ``_grouped``, the elements of one group lie."""
    return -2 if role(coded.name) == "key" else -1


def _grouped(tensor: torch.Tensor, coded: Coded) -> torch.Tensor:
    """Keys (..., groups, tokens of a group, width), values (..., tokens, groups, channels of a group); the
    last group is filled up.
    """
    dim, size = (-2, KEY_GROUP_TOKENS) if role(coded.name) == "key" else (-1, VALUE_GROUP_CHANNELS)
    missing = -tensor.shape[dim] % size
    if missing:  # with what is there already, so that no group's range changes
        tensor = torch.cat(
            [tensor, tensor.narrow(dim, tensor.shape[dim] - 1, 1).expand(*_with(tensor.shape, dim, missing))],
            dim=dim,
        )
    *heads, tokens, width = tensor.shape
    shape = (tokens // size, size, width) if dim == -2 else (tokens, width // size, size)
    return tensor.reshape(*heads, *shape).clone()


def _with(shape: Sequence[int], dim: int, size: int) -> list[int]:
    changed = list(shape)
    changed[dim] = size
    return changed


def _ungrouped(grouped: torch.Tensor, coded: Coded) -> torch.Tensor:
    *_, tokens, width = coded.shape
    if role(coded.name) == "key":
        return grouped.flatten(-3, -2)[..., :tokens, :]
    return grouped.flatten(-2)[..., :width]


def _paired(codes: torch.Tensor) -> torch.Tensor:
    """Two codes a byte, along the width."""
    if codes.shape[-1] % 2:
        codes = torch.cat([codes, torch.zeros_like(codes[..., :1])], dim=-1)
    return (codes[..., 0::2] | codes[..., 1::2] << 4).contiguous()
