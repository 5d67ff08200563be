"""What a pretended card can only assume: each is a question to the real one."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import torch

from tests.first_minutes.models import QWEN3_8B, config_of, random_model, saved, shape
from tests.first_minutes.results import DEVICE, TINY, WORK, attempt, told


def suspects() -> None:
    """One after the other; none keeps the next from being asked."""
    for name, work in _SUSPECTS.items():
        attempt("suspect", lambda work=work: {"found": work()}, name=name)


def _no_context_in_the_runner() -> str:
    return _fresh(
        "import torch\nfrom pipeline.system.hardware import probe\nprobe()\n"
        "print('initialized' if torch.cuda.is_initialized() else 'no context')"
    )


def _statistics_before_the_start() -> str:
    return _fresh(
        "from pipeline.engine.model.peak_memory import PeakMemory\n"
        "with PeakMemory(on_card=False) as peak: pass\nprint('fine', peak.bytes)"
    )


def _fresh(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    return (done.stdout + done.stderr[-600:]).strip()


def _eight_bit_cache() -> str:
    """Concatenating and selecting rows of 8-bit floats: kernels that not every release has."""
    from transformers.cache_utils import QuantizedCache

    cache = QuantizedCache(backend="fp8", config=config_of(shape(QWEN3_8B, 3)))
    for _ in range(3):
        keys = torch.randn(3, 2, 5, 16, device=DEVICE, dtype=torch.bfloat16)
        cache.update(keys, keys, 0)
    cache.layers[0].reorder_cache(torch.tensor([2, 0]))
    return str(cache.layers[0]._quantized_keys[0].shape)


def _pinned_memory() -> dict[str, Any]:
    """Whether exact sizes are to be had."""
    from pipeline.system.pinned_memory import pinned_memory

    block = pinned_memory.take(2**20 + 4096)
    rounded = torch.empty(2**20 + 4096, dtype=torch.uint8, pin_memory=True)
    stats = torch.cuda.host_memory_stats() if hasattr(torch.cuda, "host_memory_stats") else {}
    return {
        "ours": type(block).__name__,
        "torch": {key: value for key, value in stats.items() if "bytes" in key and "current" in key},
        "pinned": rounded.is_pinned(),
    }


def _device_time() -> dict[str, float]:
    """Events against the clock: the launches alone, the stopwatch, the truth."""
    from pipeline.engine.reuse.device_time import Stopwatch

    side = 256 if TINY else 8192
    left = torch.randn(side, side, device=DEVICE, dtype=torch.bfloat16)
    torch.cuda.synchronize()
    watch, began = Stopwatch([DEVICE]), time.perf_counter()
    for _ in range(20):
        left @ left
    span, launched = watch.so_far(), time.perf_counter() - began
    torch.cuda.synchronize()
    return {"launches": launched, "stopwatch": span.seconds(), "truth": time.perf_counter() - began}


def _out_of_memory() -> dict[str, bool | str]:
    from pipeline.engine.out_of_memory import is_out_of_memory

    torch.cuda.set_per_process_memory_fraction(0.02)
    try:
        torch.empty(2**33, dtype=torch.uint8, device=DEVICE)
    except Exception as error:  # noqa: BLE001  # which one is the question
        return {"taken for it": is_out_of_memory(error), "error": told(error)}
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return {"error": "none"}


def _packed_attention() -> dict[str, Any]:
    """Which kernel packed passes choose here, by asking the product."""
    from pipeline.engine.packed.support import unsupported
    from tests.first_minutes.models import plan_for

    sizes = shape(QWEN3_8B, 4)
    model = random_model(sizes)
    return {"reason against packed passes": unsupported(model, plan_for(4, "none", sizes))}


def out_of_memory_while_loading() -> None:
    """A model that does not fit into what is allowed: which error comes out?"""
    folder = saved("qwen3-8b-8", shape(QWEN3_8B, 8))
    for quantization in ("nf4", "int8", "none"):
        attempt(
            "out of memory while loading",
            lambda q=quantization: _loading(folder, q),
            quantization=quantization,
        )


def _loading(folder: Any, quantization: str) -> dict[str, str]:
    from pipeline.config import ModelConfig
    from pipeline.engine.model.loading import load_model

    config = ModelConfig(id=str(folder), quantization=quantization, dtype="bfloat16")  # type: ignore[arg-type]
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((452 * 2**20 if TINY else 2**30) / total)
    try:
        load_model(config, "bfloat16", WORK / "offload")
    except Exception as error:  # noqa: BLE001  # which one is the question
        return {"error": told(error)}
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return {"error": "none"}


_SUSPECTS = {
    "the runner has no context": _no_context_in_the_runner,
    "peak memory before anything has begun": _statistics_before_the_start,
    "8-bit cache": _eight_bit_cache,
    "pinned memory": _pinned_memory,
    "device time": _device_time,
    "out of memory is taken for it": _out_of_memory,
    "packed passes": _packed_attention,
}
