"""The demo documents, read by the demo model under the settings shipped for a card: the CPU's texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config import parse_config
from pipeline.engine.registry import open_backend
from pipeline.prepare.prepare import prepare, resolve
from pipeline.results.show import _replay, _texts
from pipeline.stores.ledger.ledger import Ledger
from tests.pretend_card.card_nights import CardNight, shipped
from tests.pretend_card.engines import loaded_on
from tests.pretend_card.halves import rounded_once
from tests.pretend_card.test_nights import CARDS

pytestmark = [pytest.mark.full, pytest.mark.timeout(3000)]
REPORTS = Path(__file__).parents[2] / "data" / "reports.jsonl"
OFFLOADED: Mapping[str, Any] = {
    "placement": "offloaded",
    "store": {"documents": "always", "quota": "1GB"},
}
# Two logits around 20 in bfloat16 that are as near may change places with the order of adding.
BOUND = 0.5
Asked = tuple[tuple[int, ...], tuple[int, ...]]


def night(
    folder: Path, model: Path, name: str, kv: Mapping[str, Any], documents: int | None = None
) -> CardNight:
    settings = shipped(name, model, folder / "in.jsonl")
    rows = [json.loads(line) for line in REPORTS.read_text(encoding="utf-8").splitlines()][:documents]
    settings["run"].pop("directory")
    settings["source"]["text_field"] = "text"
    settings["model"] |= {"context_tokens": 2048, "dtype": "bfloat16"}
    tasks = settings.pop("tasks")
    options = {"PRETEND_CARD": CARDS[name]}
    return CardNight(folder, rows, tasks, extra={**settings, "kv_cache": dict(kv)}, options=options)


def texts(directory: Path, ids: Sequence[str]) -> Iterator[Asked]:
    """Prompts and what they were answered with, as tokens: of documents that were read in one piece."""
    with Ledger.open(directory / "ledger.sqlite", write=False) as ledger:
        config = parse_config(ledger.runs()[-1]["facts"]["config"])
        backend = open_backend(config)
        (task,) = prepare(config, backend, resolve(config, backend, ledger.resolved())).tasks
        rows = {row.document_key: row for name in ids for row in ledger.documents(name)}
        for key, document in _texts(config, [task], set(rows)).items():
            result = ledger.result(task.job.name, rows[key].work_key(task.job))
            if result and result["parts"] == 1:
                ((step, _),) = _replay(task, document, {})
                yield step.prompt.ids, tuple(backend.tokenizer().encode(result["value"]))


def on_cpu(model: Path) -> Any:
    loaded = loaded_on(model, "nf4", "bfloat16", device_map="cpu").model
    for module in loaded.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # it rounds more than the dtype does
    return loaded


def leads(model: Any, prompt: Sequence[int], text: Sequence[int]) -> torch.Tensor:
    """By how much the CPU prefers another token to that of the text, at each of its steps (tokens,): 0 where
    it would have chosen the same.
    """
    with torch.inference_mode(), rounded_once():
        logits = model(torch.tensor([[*prompt, *text[:-1]]]), use_cache=False).logits[0, len(prompt) - 1 :]
    chosen = logits.gather(1, torch.tensor(text)[:, None])[:, 0]
    return (logits.max(1).values - chosen).float()


def test_offloaded_with_a_store_on_8_gb(
    demo_model_folder: Path, tmp_path: Path, record_property: Any
) -> None:
    made = night(tmp_path, demo_model_folder, "gpu-8gb", OFFLOADED)
    done = made.run(timeout=2500)
    assert done.returncode == 0, done.stderr
    assert made.races == []
    assert len(made.export()) == len(made.rows)
    found, model = list(texts(made.directory, [row["id"] for row in made.rows])), on_cpu(demo_model_folder)
    assert len(found) >= 30  # the others are read in parts
    against = torch.cat([leads(model, prompt, text) for prompt, text in found])
    record_property("near_ties", int((against > 0).sum()))
    assert against.max() < BOUND
    assert (against > 0).float().mean() < 0.02
    # one document's text is not another one's
    assert leads(model, found[0][0], found[1][1]).max() > BOUND


def test_two_tasks_on_24_gb(demo_model_folder: Path, tmp_path: Path) -> None:
    made = night(tmp_path, demo_model_folder, "gpu-24gb", {"placement": "auto"}, 12)
    done = made.run(timeout=1500)
    assert done.returncode == 0, done.stderr
    assert made.races == []
    assert len(made.export()) == len(made.rows)
