"""The prediction of a decoding pass for named cards: the plan's rows, how long a pass takes, and how much of
the data sheet's bandwidth that makes use of. Nothing is measured, nothing runs on a card, pretended or not.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.planner.pass_time import Dispatch, useful_bytes
from pipeline.planner.roofline import Speed, decode_step
from tests.bench.card.planning import DOCUMENT_TOKENS, ground_for, machine_with, planned

# Cards, and the numbers in which they compute.
CARDS = {
    "rtx4060": "bfloat16",
    "rtx3060": "bfloat16",
    "rtx3090": "bfloat16",
    "t4": "float16",
    "rtx5060ti": "bfloat16",
    "h200": "bfloat16",
}


def predicted(
    card: str, root: Path, dispatch: Dispatch | None = None, model: str = "qwen3-4b"
) -> dict[str, Any]:
    """Of ``model`` in nf4 at the planned batch, with 1,000 tokens of each row in its cache. ``dispatch``: how
    passes get to the card, None: as the planner has it.
    """
    dtype, machine = CARDS[card], machine_with(card)
    _, plan, forecast = planned(model, root, machine, dtype)
    ground = ground_for(model, root, machine, dtype)
    shape, rates, fused = ground.shape, machine.rates, ground.wish.fused
    assert fused is not None
    speed = Speed.of(rates, on_card=True, fused=fused)
    if dispatch is not None:
        assert speed.card is not None
        speed = replace(speed, card=replace(speed.card, dispatch=dispatch))
    rows = forecast.rows
    loaded = shape.unpacked(forecast.unpacked)
    step = decode_step(loaded, speed, quantization="nf4", dtype=dtype, rows=rows, tokens=DOCUMENT_TOKENS)
    useful = useful_bytes(shape, "nf4", dtype, rows, DOCUMENT_TOKENS)
    return {
        "card": machine.gpu_names[0],
        "bandwidth": rates.memory_bytes_per_second,
        "placement": plan.placement,
        "rows": rows,
        "fused_rows": {f"{out}x{inner}": most for (out, inner), most in fused.rows.items()},
        "copied_bytes": fused.copied_bytes(loaded, dtype, rows),
        "useful_bytes": useful,
        "predicted_seconds": step.seconds,
        "predicted_tokens_per_second": rows / step.seconds,
        "predicted_share": useful / rates.memory_bytes_per_second / step.seconds,
        "sets_the_pace": step.bound,
    }
