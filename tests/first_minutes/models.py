"""Models of published shapes with random weights, and engines on them."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import torch

from pipeline.engine.interface import Engine
from pipeline.engine.model.device_map import DeviceMap
from pipeline.engine.model.loading import LoadedModel, describe_model
from pipeline.engine.select import select_engine, static_engine
from pipeline.records import Decode, KvPlacement, Plan, Request
from tests.first_minutes.results import DEVICE, TINY, WORK, say

_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
QWEN3_8B: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
QWEN3_4B = {**QWEN3_8B, "hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True}
LLAMA_70B: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
_SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


def shape(sizes: dict[str, Any], layers: int | None = None) -> dict[str, Any]:
    """``sizes`` with fewer layers, or a small model's in a rehearsal."""
    if TINY:
        return dict(_SMALL)
    return sizes if layers is None else {**sizes, "num_hidden_layers": layers}


def config_of(sizes: dict[str, Any]) -> Any:
    from transformers import LlamaConfig, Qwen3Config

    return (Qwen3Config if "head_dim" in sizes else LlamaConfig)(**sizes, **_TOKENS)


def random_model(sizes: dict[str, Any], dtype: torch.dtype = torch.bfloat16) -> Any:
    """On the card, without a file."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(DEVICE):
        return AutoModelForCausalLM.from_config(config_of(sizes), dtype=dtype).eval()


def saved(name: str, sizes: dict[str, Any]) -> Path:
    """A folder with weights in bfloat16 and a small tokenizer, made once."""
    from tests.engine.small_tokenizers import byte_level, wrapped

    folder = WORK / name
    if not (folder / "config.json").exists():
        started = time.monotonic()
        model = random_model(sizes)
        model.save_pretrained(folder, max_shard_size="4GB")
        wrapped(byte_level()).save_pretrained(folder)
        del model
        gc.collect()
        torch.cuda.empty_cache()
        size = sum(file.stat().st_size for file in folder.iterdir())
        say("saved", name=name, seconds=time.monotonic() - started, bytes=size)
    return folder


def loaded_of(model: Any) -> LoadedModel:
    return LoadedModel(model, DeviceMap({"": "0"}, {}), {"attention": "sdpa"})


def weights_bytes(model: Any) -> int:
    """What a pass reads: everything but the rows of an embedding that is not the head, too."""
    found = describe_model(model)
    return int(found["weights_bytes"] - (found["embeddings_bytes"] if found["head_bytes"] else 0))


def kv_bytes(sizes: dict[str, Any]) -> int:
    """Of a token, in 16 bits."""
    width = sizes.get("head_dim", sizes["hidden_size"] // sizes["num_attention_heads"])
    return int(2 * 2 * sizes["num_hidden_layers"] * sizes["num_key_value_heads"] * width)


def plan_for(
    rows: int, quantization: str, sizes: dict[str, Any], placement: KvPlacement = "device", room: int = 4096
) -> Plan:
    """``room``: tokens of a row, prompt and answer together."""
    return Plan(
        "bfloat16",
        quantization,
        placement,
        "instructions_first",
        8192,
        rows,
        rows * room,
        4096,
        kv_bytes(sizes),
        4,
    )


def engine_on(loaded: LoadedModel, plan: Plan, static: bool = False) -> tuple[Engine, str]:
    """The product's engine at ``plan.max_batch_rows`` from the first pass on, and what it is."""
    engine, told = (static_engine if static else select_engine)(loaded, plan, end_ids=(), pad_id=0)
    ramp = getattr(engine, "_ramp", None)
    if ramp is not None:  # it would find this by trying
        ramp.rows, ramp._settled = plan.max_batch_rows, True
    return engine, told


def requests_of(rows: int, prompt: int, new: int, vocabulary: int) -> list[Request]:
    """Texts of exactly ``new`` tokens."""
    most = min(vocabulary, 50_000) - 3
    return [
        Request(
            row,
            tuple(3 + (row * 31 + 7 * place) % most for place in range(prompt)),
            Decode(new, loops_end=False),
        )
        for row in range(rows)
    ]


def drained(engine: Engine, requests: list[Request]) -> float:
    """Seconds until all are answered."""
    engine.admit(requests)
    torch.cuda.synchronize()
    began = time.perf_counter()
    while not engine.idle:
        for generation in engine.step():
            assert generation.error is None, generation.error
    torch.cuda.synchronize()
    return time.perf_counter() - began
