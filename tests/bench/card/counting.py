"""What passes cost on a pretended card, counted: launches, host waits, bytes over the link.

    python -m tests.bench.card.counting FOLDER decode shared labels offloaded    # with a pretended card

Prints one JSON object. The passes are the engine's own, over a model of Qwen3-4B's widths in nf4; nothing is
computed.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.engine.out_of_memory import free_memory
from tests.bench.card.device import Device
from tests.bench.card.models import hollow
from tests.bench.card.requests import let_all_rows_in, questions, texts

LAYERS, ROWS, DOCUMENTS, LABELS = 36, 32, 64, 77
_FEW_LAUNCHES = 10
_PROMPT_TOKENS, _LABEL_TOKENS, _SETTLING_PASSES, _SHARED_TOKENS = 48, 5, 4, 64
_OFFLOADED_ROWS, _OFFLOADED_TOKENS, _FEW_LAYERS = 8, 512, 4


def decode(root: Path, device: Device) -> dict[str, Any]:
    """A pass that gives each of 32 rows a token, in 36 layers; and one of the layers by its kernels."""
    engine, loaded, told = _engine(f"qwen3-4b/{LAYERS}", root, ROWS)
    layer = _LayerCounter(loaded.model.model.layers[LAYERS // 2], device)
    engine.admit(texts(0, ROWS, _PROMPT_TOKENS, 4 * _SETTLING_PASSES))
    passes = [_counted(engine, device) for _ in range(2 * _SETTLING_PASSES)]
    found = passes[-1]
    _forget_recorded(engine)
    eager = _counted(engine, device)
    engine.release(range(ROWS))
    return {
        "engine": told,
        "rows": ROWS,
        "layers": LAYERS,
        "launches": found.get("launches", 0),
        "eager_launches": eager.get("launches", 0),
        "replays": found.get("graph replays", 0),
        "nodes": found.get("graph nodes", 0),
        "host_waits": _waits(found),
        "bytes_on_the_card": found.get("bytes on the card", 0),
        "layer_launches": sum(layer.kernels.values()),
        "layer_kernels": dict(layer.kernels.most_common()),
        "waits_by_kind": _by_prefix(found, "host waits: "),
    }


def shared(root: Path, device: Device) -> dict[str, Any]:
    """Kernels of a layer in an unrecorded pass that gives each of 32 rows a token behind one beginning."""
    engine, loaded, told = _engine("qwen3-4b/2", root, ROWS)
    layer = _LayerCounter(loaded.model.model.layers[1], device)
    engine.admit(texts(0, ROWS, _PROMPT_TOKENS, 4 * _SETTLING_PASSES, shared=_SHARED_TOKENS))
    _forget_recorded(engine)
    for _ in range(2 * _SETTLING_PASSES):
        found = _counted(engine, device)
    engine.release(range(ROWS))
    return {
        "engine": told,
        "rows": ROWS,
        "layer_launches": sum(layer.kernels.values()),
        "layer_kernels": dict(layer.kernels.most_common()),
        "host_waits": _waits(found),
    }


def labels(root: Path, device: Device) -> dict[str, Any]:
    """A batch of 64 documents whose 77 labels are scored, read in one pass: what comes back from the card."""
    engine, _, told = _engine("qwen3-4b/2", root, DOCUMENTS)
    engine.admit(questions(DOCUMENTS, _PROMPT_TOKENS, LABELS, _LABEL_TOKENS))
    passes = []
    while not engine.idle:
        passes.append(_counted(engine, device))
    back = sum(_transfers(found) for found in passes)
    return {
        "engine": told,
        "documents": DOCUMENTS,
        "labels": LABELS,
        # a step that only takes in what came of the one before launches next to nothing
        "passes": sum(found.get("launches", 0) > _FEW_LAUNCHES for found in passes),
        "transfers": back,
        "host_waits": sum(_waits(found) for found in passes),
    }


def offloaded(root: Path, device: Device) -> dict[str, Any]:
    """Decoding with keys and values in host memory: bytes over the link a token, beside those to be read."""
    name = f"qwen3-4b/{_FEW_LAYERS}"
    engine, loaded, told = _engine(name, root, _OFFLOADED_ROWS, placement="offloaded")
    attention = loaded.model.config
    kept = 2 * 2 * attention.num_key_value_heads * attention.head_dim * _FEW_LAYERS
    passes = _counted_forwards(
        engine, loaded.model, device, texts(0, _OFFLOADED_ROWS, _OFFLOADED_TOKENS, 2 * _SETTLING_PASSES)
    )
    found = passes[-1]
    read = _OFFLOADED_ROWS * (_OFFLOADED_TOKENS + len(passes) - 2) * kept
    return {
        "engine": told,
        "rows": _OFFLOADED_ROWS,
        "tokens": _OFFLOADED_TOKENS + len(passes) - 2,
        "to_the_card_bytes": found.get("bytes to the card", 0),
        "from_the_card_bytes": found.get("bytes from the card", 0),
        "to_be_read_bytes": read,
        "to_be_written_bytes": _OFFLOADED_ROWS * kept,
        "host_waits": _waits(found),
    }


def _engine(name: str, root: Path, rows: int, placement: str = "device") -> tuple[Any, Any, str]:
    from pipeline.config import ModelConfig
    from pipeline.engine.model.loading import load_model
    from pipeline.engine.select import select_engine
    from pipeline.records import Plan

    config = ModelConfig(id=str(hollow(name, root / "models")), quantization="nf4", dtype="bfloat16")
    loaded = load_model(config, "bfloat16", Path(tempfile.mkdtemp(dir=root)))
    tokens = _OFFLOADED_TOKENS + 64
    plan: Any = Plan(
        dtype="bfloat16",
        quantization="nf4",
        placement=placement,  # type: ignore[arg-type]
        layout="instructions_first",
        context_tokens=8192,
        max_batch_rows=rows,
        batch_tokens=rows * tokens,
        prefill_chunk_tokens=2**16,
        kv_bytes_per_token=147456,
        threads=1,
    )
    engine, told = select_engine(loaded, plan, end_ids=(), pad_id=0)
    let_all_rows_in(engine, plan)
    return engine, loaded, told


def _forget_recorded(engine: Any) -> None:
    """From now on passes are launched kernel by kernel."""
    runner = getattr(engine, "_runner", None)
    if hasattr(runner, "forget_recorded"):
        runner.forget_recorded()


class _LayerCounter:
    """Kernels of one decoder layer's last forward call, by operator. A recorded pass calls no layer."""

    def __init__(self, layer: Any, device: Device) -> None:
        self.kernels: Counter[str] = Counter()
        self._device, self._before = device, device.counts()
        layer.register_forward_pre_hook(self._enter)
        layer.register_forward_hook(self._leave)

    def _enter(self, *_: Any) -> None:
        self._before = self._device.counts()

    def _leave(self, *_: Any) -> None:
        after = _difference(self._device.counts(), self._before)
        self.kernels = Counter(_by_prefix(after, "op "))


def _counted(engine: Any, device: Device) -> dict[str, int]:
    before = device.counts()
    engine.step()
    return _difference(device.counts(), before)


def _counted_forwards(engine: Any, model: Any, device: Device, requests: list[Any]) -> list[dict[str, int]]:
    """Counts between the ends of the model's forward calls: a batch that runs to its end is one step."""
    marks: list[dict[str, int]] = []
    handle = model.register_forward_hook(lambda *_: marks.append(device.counts()))
    engine.admit(requests)
    _drain(engine)
    handle.remove()
    return [_difference(after, before) for before, after in itertools.pairwise(marks)]


def _drain(engine: Any) -> None:
    while not engine.idle:
        for found in engine.step():
            if found.error:
                raise RuntimeError(found.error[1])


def _difference(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    found = {name: value - before.get(name, 0) for name, value in after.items()}
    return {name: value for name, value in found.items() if value}


def _by_prefix(counts: Mapping[str, int], prefix: str) -> dict[str, int]:
    return {name[len(prefix) :]: value for name, value in counts.items() if name.startswith(prefix)}


def _waits(counts: Mapping[str, int]) -> int:
    """Times that the host waited for the card, whatever for."""
    return counts.get("host waits", 0)


def _transfers(counts: Mapping[str, int]) -> int:
    """Copies to the host, single numbers that are asked for among them."""
    copies = ("waiting copies from the card", "non_blocking copies from the card")
    asked = counts.get("host waits: aten::_local_scalar_dense", 0)
    return sum(counts.get(name, 0) for name in copies) + asked


COUNTS: Mapping[str, Callable[[Path, Device], dict[str, Any]]] = {
    "decode": decode,
    "shared": shared,
    "labels": labels,
    "offloaded": offloaded,
}


def _counts(names: list[str], root: Path, device: Device) -> dict[str, Any]:
    """Each on an empty card: what an engine has held goes before the next one is planned."""
    found = {}
    for name in names:
        found[name] = COUNTS[name](root, device)
        free_memory()
    return found


if __name__ == "__main__":
    print(json.dumps(_counts(sys.argv[2:], Path(sys.argv[1]), Device())))
