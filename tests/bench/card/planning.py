"""The product's own plan of a model on a machine with a card, for documents of 1,000 tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.config import parse_config
from pipeline.engine.registry import open_backend
from pipeline.planner.workload import Asked, Question, TaskLoad
from pipeline.prepare.prepare import ground_of, resolve
from pipeline.system.hardware_spec import described
from tests.bench.card.models import hollow

# The longest prompt fills the context; of 1,000-token documents 200 tokens are written.
CONTEXT_TOKENS, DOCUMENT_TOKENS, NEW_TOKENS = 8192, 1000, 200
RAM_BYTES, DISK_BYTES, CORES = 32 * 2**30, 500 * 10**9, 8


def configuration(folder: Path, run: Path, dtype: str) -> Any:
    """Of a night with one task over the model in ``folder``."""
    run.mkdir(parents=True, exist_ok=True)
    return parse_config(
        {
            "model": {
                "id": str(folder),
                "quantization": "nf4",
                "dtype": dtype,
                "context_tokens": CONTEXT_TOKENS,
            },
            "source": {"path": str(run)},
            "tasks": [{"name": "summary", "kind": "summarize", "max_output_tokens": NEW_TOKENS}],
            "generation": {"layout": "instructions_first"},
            "run": {"directory": str(run)},
        }
    )


def machine_with(card: str) -> Any:
    """With one card of that name or size, of which all is free, and what such machines have beside it."""
    return described(card, str(RAM_BYTES), "4.0x16", CORES, f"nvme:{DISK_BYTES}")


def planned(name: str, root: Path, machine: Any, dtype: str = "bfloat16") -> tuple[Any, Any, Any]:
    """(backend, plan, forecast) for documents of 1,000 tokens on a machine. Raises DoesNotFit."""
    ground = ground_for(name, root, machine, dtype)
    question = Question(DOCUMENT_TOKENS, 0, NEW_TOKENS)
    asked = Asked(4 * DOCUMENT_TOKENS, DOCUMENT_TOKENS, (question,))
    load = TaskLoad("summary", "summarize", 1000, 4000 * DOCUMENT_TOKENS, (asked,) * 8)
    ground = ground.knowing(DOCUMENT_TOKENS + NEW_TOKENS)
    plan = ground.plan({"dtype": dtype, "layout": "instructions_first"})
    return ground.backend, plan, ground.decide((load,))


def ground_for(name: str, root: Path, machine: Any, dtype: str = "bfloat16") -> Any:
    """What a plan for model ``name`` on that machine stands on."""
    config = configuration(hollow(name, root / "models"), root / "run", dtype)
    backend = open_backend(config)
    return ground_of(config, backend, resolve(config, backend, {}), machine)
