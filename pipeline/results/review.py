"""``overnight review`` and ``overnight sample``: which documents a person should label, as a CSV file. Filled
in, it is a gold file.

Texts come from the source again, and no more than a few thousand of them, cut, are held at a time. A file
that somebody has filled labels into is not overwritten.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.errors import OvernightError, UsageError
from pipeline.quality.scores import extra
from pipeline.quality.selection import (
    CANDIDATES,
    Answered,
    Picked,
    review,
    review_several,
    sample,
    uncertain_and_random,
)
from pipeline.records import Document
from pipeline.results.export.layout import Layout
from pipeline.results.export.places import check_output
from pipeline.results.gold import gold_ids, written_labels
from pipeline.results.gold_store import configured_files
from pipeline.results.label_view import (
    is_multi,
    labels_of,
    shown_to_the_model,
    the_label_task,
    view_in_force,
)
from pipeline.results.source_texts import documents_again, last_config
from pipeline.results.views import through
from pipeline.sources import read_source, source_files
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import TaskRow
from pipeline.system.atomic_write import replace_file
from pipeline.system.escape import spreadsheet_text
from pipeline.system.writable import written_later
from pipeline.tasks.label.section import LabelTask

TEXT_CHARACTERS = 10_000
"""Longer texts are cut in the file: a cell of a common spreadsheet holds 32,767 characters, and a person
reads fewer.
"""

SAMPLE_COLUMNS = ("id", "label", "text", "reason")
REVIEW_COLUMNS = ("id", "label", "text", "proposed_label", "probability", "top_labels", "reason")


def review_run(
    ledger: Ledger,
    output: Path,
    count: int,
    *,
    name: str | None = None,
    gold: Sequence[Path] = (),
    label_field: str = "label",
    force: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Write the ``count`` finished documents of a label task most worth a person's look. Raises UsageError,
    StoppedEarly.

    Left out and counted: documents that have a gold label already, in the files ``gold``, in those of the
    configuration or among the labels that the run keeps; that are no longer in the source; that the model was
    shown as examples; and those whose id stands for several texts, because a gold label is given to an id.
    """
    task = the_label_task(ledger, name)
    config = last_config(ledger)
    _check(output, REVIEW_COLUMNS, config, force=force)
    labels, multi = labels_of(task), is_multi(task)
    extra("sklearn")
    known = {one for path in gold for one in gold_ids(path, label_field=label_field)}
    known |= _known(ledger, task)
    left_out: Counter[str] = Counter()
    unknown = _unknown(_answered(ledger, task, labels), known, left_out)
    by_key = {
        found.id: found
        for found in uncertain_and_random(unknown, max(CANDIDATES, count), seed, several=multi)
    }
    texts = list(_with_texts(ledger, config, task, by_key, left_out))
    picked = (review_several if multi else review)(texts, labels, count, seed=seed)
    if not picked:
        raise UsageError(f"task {task.job.name!r} has no finished document to review{_told(left_out)}")
    _write(output, REVIEW_COLUMNS, [_review_row(row, multi=multi) for row in picked])
    return {
        "output": str(output),
        "rows": len(picked),
        "task": task.job.name,
        "labels": list(labels),
        "multi": multi,
        "left_out": dict(left_out),
    }


def sample_source(
    config: Config, output: Path, count: int, *, force: bool = False, seed: int = 0
) -> dict[str, Any]:
    """Write ``count`` documents of the source, spread over what it is about. Raises UsageError, SourceError,
    StoppedEarly.
    """
    _check(output, SAMPLE_COLUMNS, config, force=force)
    extra("sklearn")
    counted: Counter[str] = Counter()
    picked = _distinct_ids(sample(_texts(config, counted), count, seed=seed), counted)
    if not picked:
        raise UsageError(f"the source holds no document with a text{_told(counted)}")
    _write(output, SAMPLE_COLUMNS, [(row.id, "", row.text, row.reason) for row in picked])
    labels = {task.name: list(task.labels) for task in config.tasks if isinstance(task, LabelTask)}
    return {"output": str(output), "rows": len(picked), "labels": labels, "read": dict(counted)}


# ── documents ───────────────────────────────────────────────────────────────────────────────────────────────


def _known(ledger: Ledger, task: TaskRow) -> set[str]:
    """Ids of the documents that have a label in the run or in the configuration's files, as far as these can
    be read.
    """
    found = {row.document_id for row in ledger.kept_labels(task.job.name)}
    files, label_field = configured_files(ledger, task)
    for path in files:
        with contextlib.suppress(OvernightError):  # what it said at the end of the last run is kept
            found |= gold_ids(path, label_field=label_field)
    return found


def _answered(ledger: Ledger, task: TaskRow, labels: Sequence[str]) -> Iterator[tuple[str, Answered]]:
    """Finished documents as the view in force shows them, by id; with their key for an id, and still without
    text.
    """
    view = view_in_force(ledger, task)
    rows = ledger.rows()
    for row in through(rows, {task.job.name: view}) if view else rows:
        result = row.results[task.job.name]
        if result.state == "done" and result.probabilities:
            yield (
                row.input.id,
                Answered(row.input.document_key, "", tuple(result.probabilities[label] for label in labels)),
            )


def _unknown(
    answered: Iterable[tuple[str, Answered]], ids: Collection[str], left_out: Counter[str]
) -> Iterator[Answered]:
    """Those that nobody has labelled yet."""
    for name, document in answered:
        if name in ids:
            left_out["labelled already"] += 1
        else:
            yield document


def _with_texts(
    ledger: Ledger, config: Config, task: TaskRow, by_key: dict[str, Answered], left_out: Counter[str]
) -> Iterator[Answered]:
    shown = shown_to_the_model(task)
    found = 0
    for document in documents_again(config, by_key):
        found += 1
        if document.id in shown:
            left_out["shown to the model as examples"] += 1
        elif len(ledger.documents(document.id)) > 1:
            left_out["id stands for several texts"] += 1
        else:
            yield Answered(document.id, _cut(document.text), by_key[document.key].probabilities)
    if found < len(by_key):
        left_out["no longer in the source"] += len(by_key) - found


def _texts(config: Config, counted: Counter[str]) -> Iterator[tuple[str, str]]:
    for row in read_source(config.source):
        counted["documents" if isinstance(row, Document) else "rejected"] += 1
        if isinstance(row, Document):
            yield row.id, _cut(row.text)


def _distinct_ids(picked: Iterable[Picked], counted: Counter[str]) -> list[Picked]:
    """The first of each id: two rows with one id could be given different labels."""
    kept: dict[str, Picked] = {}
    for row in picked:
        if kept.setdefault(row.id, row) is not row:
            counted["left out, their id stands for several texts"] += 1
    return list(kept.values())


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS else text[: TEXT_CHARACTERS - 1] + "…"


def _told(counts: Counter[str]) -> str:
    return f" ({', '.join(f'{count:,} {reason}' for reason, count in counts.items())})" if counts else ""


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────


def _review_row(row: Picked, *, multi: bool) -> tuple[str, ...]:
    """With several labels the proposal is all those more likely than not, and the probability that of the
    least certain yes or no.
    """
    label, probability = row.top[0]
    if multi:
        label = written_labels(row.proposed)
        probability = max(probability, 1 - probability)
    return (
        row.id,
        "",
        row.text,
        label,
        f"{probability:.4f}",
        "; ".join(f"{name} {share:.2f}" for name, share in row.top),
        row.reason,
    )


def _check(output: Path, columns: Sequence[str], config: Config, *, force: bool) -> None:
    """Refuse, before any work, places that must not be written to."""
    if output.suffix.lower() != ".csv":
        raise UsageError(f"{output} cannot be written: the name must end in .csv, which a spreadsheet opens")
    check_output(output, Layout(), [*source_files(config.source), *config.source.paths])
    if not output.exists() or force or not output.stat().st_size:
        return
    try:
        with output.open(encoding="utf-8-sig", newline="") as stream:
            table = csv.DictReader(stream)
            ours = list(table.fieldnames or ()) == list(columns)
            filled = sum(1 for row in table if (row.get("label") or "").strip()) if ours else 0
    except (UnicodeDecodeError, csv.Error):
        ours = False
    if not ours:
        raise UsageError(
            f"{output} exists and is not an untouched file of this command; choose another name, or "
            f"--force to overwrite it"
        )
    if filled:
        raise UsageError(
            f"{output} has {filled:,} labels filled in; choose another name, or --force to overwrite them"
        )


def _write(output: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with written_later(output, "the same command"):
        Path(os.path.realpath(output)).parent.mkdir(parents=True, exist_ok=True)
        with replace_file(output) as stream:
            text = io.TextIOWrapper(
                stream, encoding="utf-8", errors="replace", newline="", write_through=True
            )
            try:
                table = csv.writer(text, lineterminator="\r\n")
                table.writerow(columns)
                table.writerows([spreadsheet_text(cell) for cell in row] for row in rows)
            finally:
                text.detach()
