"""What ``overnight bench`` measured: a line a contestant, as facts and as a table for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.bench.contestants import OURS


@dataclass(frozen=True, slots=True)
class Line:
    """One contestant; medians over the repetitions. ``speedup`` is ours over it: its seconds a document by
    ours, in the same turn.

    ``same`` is the share of its answers that are exactly ours, None where they are of another kind. Rates are
    None where nothing of that kind was computed. ``padding_share`` is of tokens that went through the model.
    """

    name: str
    what: str
    seconds_per_document: float
    documents_per_second: float
    read_tokens_per_second: float | None
    decode_tokens_per_second: float | None
    forward_share: float
    padding_share: float
    matmul_share: float
    speedup: float
    same: float | None


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What was measured. ``matmul_share`` of a line: useful tokens x 2 x parameters over the machine's matmul
    rate in its time.
    """

    task: str
    kind: str
    documents: int
    repetitions: int
    prompt_tokens: float
    prefix_tokens: int
    output_tokens: float
    matmul_gflops: float
    model: Mapping[str, Any]
    lines: tuple[Line, ...]

    def line(self, name: str) -> Line:
        """The contestant called ``name``."""
        return next(line for line in self.lines if line.name == name)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


def table(result: BenchResult) -> list[str]:
    """The result as lines for people."""
    shape = f"prompts of {result.prompt_tokens:.0f} tokens, {result.prefix_tokens} of them shared"
    head = f"task {result.task} ({result.kind}), {result.documents} documents, {shape}"
    texts = f", {result.output_tokens:.0f} tokens written" if result.output_tokens else ""
    titles = (
        "s/document",
        "speed-up",
        "prefill t/s",
        "decode t/s",
        "in forward",
        "padding",
        "of matmul",
        "same",
    )
    columns = " " * 16 + "".join(f"{title:>12}" for title in titles)
    rows = [f"{line.name:16}" + "".join(f"{cell:>12}" for cell in _cells(line)) for line in result.lines]
    return [
        head + texts,
        (
            f"median of {result.repetitions} turns; the machine multiplies at {result.matmul_gflops:,.0f} "
            f"GFLOP/s"
        ),
        columns,
        *rows,
        *(f"{line.name}: {line.what}" for line in result.lines),
    ]


def _cells(line: Line) -> tuple[str, ...]:
    return (
        f"{line.seconds_per_document:.3f}",
        _times(line),
        _whole(line.read_tokens_per_second),
        _whole(line.decode_tokens_per_second),
        _percent(line.forward_share),
        f"{line.padding_share:.1%}",
        _percent(line.matmul_share),
        _percent(line.same),
    )


def _times(line: Line) -> str:
    return "1" if line.name == OURS else f"{line.speedup:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _whole(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}"
