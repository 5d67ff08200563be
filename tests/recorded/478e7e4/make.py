"""How this folder was made: run once in an empty folder, with the code of commit 478e7e4 (version 0.1.0).

``PYTHONPATH=<checkout of 478e7e4> python make.py`` leaves ``model/``, ``in.jsonl``, ``run/`` with its store,
and ``ledger.sql``. Never run again: what it made is what is tested.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

WORDS = [
    "harbour",
    "ferry",
    "club",
    "goal",
    "market",
    "share",
    "rain",
    "river",
    "board",
    "crate",
    "fog",
    "morning",
    "north",
    "late",
    "drew",
    "rose",
]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TASKS: list[dict[str, Any]] = [
    {"name": "topic", "kind": "label", "labels": ["world", "sports", "business"], "abstain_below": 0.34},
    {
        "name": "summary",
        "kind": "summarize",
        "instructions": "Sum up {{ title }}.",
        "max_output_tokens": 12,
        "long_documents": "map_reduce",
    },
    {"name": "short", "kind": "summarize", "max_output_tokens": 6, "long_documents": "fail"},
]


def text(count: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count)) + "."


def source() -> None:
    lengths = [20, 330, 35, 12, 60, 25, 340, 40]
    rows: list[Any] = [
        {"id": f"d{number}", "text": text(length, number), "title": f"piece {number}"}
        for number, length in enumerate(lengths)
    ]
    del rows[3]["title"]  # a field that a template names: this document fails
    rows += [rows[0], {"id": "no text"}]  # a repeated row, a rejected one
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def model() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained("model")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=316,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    backend.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|im_end|>", chat_template=CHATML
    ).save_pretrained("model")


def night(decoder: str, *, limit: int | None = None, die_at: int | None = None) -> None:
    from pipeline.runner import run

    from pipeline import journal
    from pipeline.config import parse_config

    if die_at is not None:  # the model is too fast to be killed in the middle by a clock
        journal._COMMIT_SECONDS = 0.0
        commit, recorded = journal.Journal.commit, []

        def counted(self: Any, **options: Any) -> Any:
            recorded.extend(commit(self, **options))
            if len(recorded) >= die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return ()

        journal.Journal.commit = counted  # type: ignore[method-assign]

    config = parse_config(
        {
            "model": {"id": "model", "quantization": "none", "dtype": "float32"},
            "kv_cache": {"store": {"documents": "always"}},
            "source": {"path": "in.jsonl"},
            "tasks": TASKS,
            "generation": {"layout": "document_first"},
            "engine": {"decoder": decoder, "batch_rows": 1, "threads": 1},
            "run": {"directory": "run"},
        }
    )
    print(run(config, limit=limit))


def dump() -> None:
    """The ledger as text, with {folder} for where it was made."""
    with sqlite3.connect("run/ledger.sqlite") as ledger:
        lines = "\n".join(ledger.iterdump()).replace(str(Path.cwd()), "{folder}")
    Path("ledger.sql").write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:]:
        night("transformers", die_at=4)
    else:
        source()
        model()
        night("auto", limit=4)
        subprocess.run([sys.executable, __file__, "killed"], check=False)
        dump()
