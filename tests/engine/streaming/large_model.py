"""A Llama-shaped model of 1.1 billion parameters with seeded random weights, written layer by layer; and a
process that runs it streamed.

As a script: ``python -m tests.engine.streaming.large_model MODEL RESULT ALLOWED_BYTES ROWS NEW_TOKENS [DTYPE
[PROMPT]]``; waits for a line first. With 0 bytes allowed, everything is read for each sweep.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from pipeline.engine.model.library_logging import import_bitsandbytes
from pipeline.engine.streaming.weight_file import write_blocks
from pipeline.planner.model.shape import plain_shape
from pipeline.planner.weight_streaming import micro_batch_rows
from pipeline.records import Decode, Plan, Request
from pipeline.system.process_memory import peak_resident_bytes
from tests.engine.streaming.opened import answers, engine_on, opened

SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PROMPT_TOKENS = 16


def write_model(folder: Path, **changes: Any) -> Path:
    """float32 safetensors, a file a layer, so that the largest shard is small against the model."""
    shape = {**SHAPE, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))
    generator = torch.Generator().manual_seed(7)
    names: dict[str, str] = {}
    for file, tensors in _files(shape).items():
        described = [(name, torch.float32, size) for name, size in tensors.items()]
        write_blocks(folder / file, described, (_weights(size, generator) for size in tensors.values()))
        names.update(dict.fromkeys(tensors, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return folder


def _files(shape: dict[str, Any]) -> dict[str, dict[str, tuple[int, ...]]]:
    hidden, wide, layers = shape["hidden_size"], shape["intermediate_size"], shape["num_hidden_layers"]
    keys = hidden // shape["num_attention_heads"] * shape["num_key_value_heads"]
    linears = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    files = {
        f"layer{layer:02}.safetensors": {
            f"model.layers.{layer}.{name}.weight": size for name, size in linears.items()
        }
        for layer in range(layers)
    }
    table = (shape["vocab_size"], hidden)
    return {
        **files,
        "embed.safetensors": {"model.embed_tokens.weight": table, "model.norm.weight": (hidden,)},
        "head.safetensors": {"lm_head.weight": table},
    }


def _weights(size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.ones(size) if len(size) == 1 else torch.randn(size, generator=generator) * 0.04


def requests(rows: int, new_tokens: int, prompt_tokens: int = PROMPT_TOKENS) -> list[Request]:
    ids = [
        tuple(3 + (131 * row + 17 * place * place) % 31_000 for place in range(prompt_tokens))
        for row in range(rows)
    ]
    return [Request(row, prompt, Decode(new_tokens, loops_end=False)) for row, prompt in enumerate(ids)]


def plan(rows: int) -> Plan:
    return Plan("float32", "nf4", "device", "instructions_first", 2048, rows, rows * 2048, 512, 45_056)


def main(
    folder: str,
    result: str,
    allowed: str,
    rows: str,
    new_tokens: str,
    dtype: str = "float32",
    prompt: str = str(PROMPT_TOKENS),
) -> None:
    from transformers.models.llama import modeling_llama  # noqa: F401  # belongs to the bare process

    import_bitsandbytes()
    bare_bytes = peak_resident_bytes()
    sys.stdin.readline()
    loaded = opened(Path(folder), "nf4", int(allowed) or None, dtype=dtype)
    weights = loaded.hooks.weights
    planned = dataclasses.replace(plan(int(rows)), dtype=dtype)
    engine = engine_on(
        loaded,
        planned,
        lane_rows=micro_batch_rows(plain_shape(SHAPE), dtype, planned.prefill_chunk_tokens, 2048),
    )
    ends = [0.0]
    head = weights.head

    def timed(*args: Any) -> list[torch.Tensor]:
        products = head(*args)
        ends.append(time.perf_counter())
        return products

    weights.head = timed  # type: ignore[method-assign]  # of this one object
    answers(engine, [Request(10**6, (5, 6), Decode(1))])
    weights.settle()
    sweeps, read, started = weights.sweeps, weights.files.read_bytes, time.perf_counter()
    done = answers(engine, requests(int(rows), int(new_tokens), int(prompt)))
    weights.settle()
    seconds = time.perf_counter() - started
    facts = {
        "tokens": [list(generation.token_ids) for generation in done],
        "seconds": seconds,
        "sweeps": weights.sweeps - sweeps,
        "read_bytes": weights.files.read_bytes - read,
        "sweep_bytes": weights.tiers.sweep_bytes,
        "grain": weights.tiers.grain,
        "dequantized": max(weights.dequantized.values(), default=0),
        "all_sweeps": weights.sweeps,
        "peak_bytes": peak_resident_bytes(),
        "bare_bytes": bare_bytes,
        "peak_load_bytes": loaded.facts["peak_load_bytes"],
        "preparing_seconds": loaded.facts["preparing_seconds"],
        "working_bytes": weights.tiers.working_bytes,
        "sweep_seconds": [round(end - begin, 3) for begin, end in itertools.pairwise(ends[1:])],
        "tokens_per_second": int(rows) * int(new_tokens) / seconds,
    }
    Path(result).write_text(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
