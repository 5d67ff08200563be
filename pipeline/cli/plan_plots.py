"""Plots of a plan as PNG or SVG: memory and time by context length. Drawn without a screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.planner.budget import rooms
from pipeline.planner.roofline import Speed, decode_step, prefill_seconds
from pipeline.prepare.preview import Preview
from pipeline.results.plots import save_plot

_CONTEXTS = tuple(2**power for power in range(9, 18))


def draw(found: Preview, folder: Path, plot_format: str = "png") -> list[Path]:
    """Memory by context length, and time where speeds are known; returns their files. Raises
    StoppedEarly.
    """
    written = []
    for title, paint in _PLOTS.items():
        if title == "time" and found.ground.machine.rates.matmul_per_second is None:
            continue
        path = folder / f"plan-{title}.{plot_format}"
        save_plot(partial(paint, found=found), path, plot_format)
        written.append(path)
    return written


def _contexts(found: Preview) -> Sequence[int]:
    limit = found.ground.shape.context_tokens
    return [tokens for tokens in _CONTEXTS if tokens < limit] + [limit]


def _memory(axes: Any, found: Preview) -> None:
    shape, wish = found.ground.shape, found.ground.wish
    contexts, gib = _contexts(found), 2**30
    weights = shape.weights_bytes(wish.quantization, wish.dtype) / gib
    axes.fill_between(contexts, 0, weights, color="0.8", label=f"weights in {wish.quantization}")
    rows = sorted({1, found.forecast.rows if found.forecast and found.forecast.rows else 1})
    for count in rows:
        label = f"and cache of {count} row{'' if count == 1 else 's'}"
        axes.plot(
            contexts,
            [weights + shape.kv_bytes(tokens, wish.dtype, count) / gib for tokens in contexts],
            marker="o",
            label=label,
        )
    axes.axhline(
        rooms(found.ground.machine).device_bytes / gib, color="tab:red", linestyle="--", label="may be used"
    )
    axes.set(xscale="log", xlabel="tokens of context", ylabel="GiB", title=f"memory, {shape.attention()}")
    axes.set_xscale("log", base=2)
    axes.legend(loc="upper left")


def _time(axes: Any, found: Preview) -> None:
    shape, wish, machine = found.ground.shape, found.ground.wish, found.ground.machine
    speed = Speed.of(machine.rates, on_card=bool(machine.gpu_bytes), fused=wish.fused)
    contexts = _contexts(found)
    axes.plot(
        contexts,
        [prefill_seconds(shape, tokens, speed) for tokens in contexts],
        marker="o",
        label="reading one prompt",
    )
    steps = [
        decode_step(
            shape, speed, quantization=wish.quantization, dtype=wish.dtype, rows=1, tokens=tokens
        ).seconds
        for tokens in contexts
    ]
    axes.plot(contexts, steps, marker="s", label="writing one token, one row")
    axes.set(
        yscale="log",
        xlabel="tokens of context",
        ylabel="seconds",
        title=f"time, speeds {found.ground.machine.rates.origin}",
    )
    axes.set_xscale("log", base=2)
    axes.legend(loc="upper left")


_PLOTS: Mapping[str, Callable[..., None]] = {"memory": _memory, "time": _time}
