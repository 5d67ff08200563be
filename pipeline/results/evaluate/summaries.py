"""A run's summaries against references: ROUGE, length, what was copied, how much of the document is covered;
means with intervals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config import SourceConfig, as_written
from pipeline.errors import UsageError
from pipeline.quality.metrics import bootstrap
from pipeline.quality.summaries import SummaryQuality, measure
from pipeline.records import Document, is_blank
from pipeline.results.source_texts import documents_again, last_config
from pipeline.sources import read_source
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import TaskRow

_FIGURES = ("rouge1", "rouge2", "rouge_l", "words", "copied", "density", "coverage")


def evaluate_summaries(
    ledger: Ledger, task: TaskRow, references: Sequence[Path], reference_field: str
) -> dict[str, Any]:
    """Facts about one summarize task. Raises UsageError when no summary has a reference and a document that
    can be read again.
    """
    known = read_references(references, reference_field)
    summaries, left_out = _summaries(ledger, task, known)
    config = last_config(ledger)
    measured = [
        measure(summaries[document.key], document.text, known[document.id])
        for document in documents_again(config, summaries)
    ]
    if gone := len(summaries) - len(measured):
        left_out["no longer in the source"] = gone
    if not measured:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
        raise UsageError(
            f"no reference can be compared with task {task.job.name!r}: {reasons} of {len(known):,} "
            f"references"
        )
    headline = {name: _mean(measured, name) for name in _FIGURES}
    return {
        "kind": "summarize",
        "references": len(known),
        "judged": len(measured),
        "left_out": left_out,
        "notes": [],
        "headline": headline,
    }


def read_references(paths: Sequence[Path], field: str) -> dict[str, str]:
    """Reference summaries by document id, of all files together; rows without one are left out. Raises
    UsageError, also for a document that is given two; SourceError.
    """
    found: dict[str, str] = {}
    for path in paths:
        if not path.exists():
            raise UsageError(f"there is no file of references {path}")
        rows = read_source(SourceConfig(path=as_written(str(path)), text_field=field))
        mine = {row.id: row.text for row in rows if isinstance(row, Document) and not is_blank(row.text)}
        if not mine:
            raise UsageError(
                f"{path} holds no references: rows with the fields 'id' and {field!r} are needed; see "
                f"--reference-field"
            )
        twice = next((name for name, text in mine.items() if found.get(name, text) != text), None)
        if twice is not None:
            raise UsageError(f"{path} gives {twice!r} another reference than a file before it; keep one")
        found |= mine
    return found


def _summaries(
    ledger: Ledger, task: TaskRow, references: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, int]]:
    """Finished summaries by document key, of documents with a reference; and how many references are left
    out, by reason.
    """
    found: dict[str, dict[str, tuple[str, str, Any]]] = {}
    for row in ledger.rows():
        if row.input.id in references:
            result = row.results[task.job.name]
            found.setdefault(row.input.id, {})[row.input.work_key(task.job)] = (
                row.input.document_key,
                result.state,
                result.value,
            )
    kept: dict[str, str] = {}
    reasons: Counter[str] = Counter()
    for name in references:
        answers = list(found.get(name, {}).values())
        if len(answers) != 1:
            reasons["id stands for several texts" if answers else "not in the run"] += 1
            continue
        key, state, value = answers[0]
        if state == "done" and isinstance(value, str):
            kept[key] = value
        else:
            reasons[f"without an answer ({state})"] += 1
    return kept, dict(reasons)


def _mean(measured: list[SummaryQuality], name: str) -> dict[str, Any]:
    values = np.array([getattr(one, name) for one in measured], dtype=np.float64)
    return asdict(bootstrap(lambda drawn: float(values[drawn].mean()), len(values)))
