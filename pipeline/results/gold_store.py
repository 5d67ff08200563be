"""The gold labels that a run keeps: what people gave by command, and what the gold files of its configuration
say, in one place and by id, so that a later calibration forgets none of them.

Labels that were given by command stay until they are replaced or taken out. Those of a configured file are
the file's: each run's end takes them in as the file has them then. Where the two differ, what was given by
command counts, and it is said.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config import absolute_path
from pipeline.errors import OvernightError, UsageError
from pipeline.results.gold import Gold, GoldLabel, read_gold, some, spoken
from pipeline.results.label_view import is_multi, label_tasks, labels_of
from pipeline.results.source_texts import last_config
from pipeline.stores.ledger.gold_rows import KeptLabel
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import TaskRow
from pipeline.system.units import moment
from pipeline.tasks.label.section import LabelTask


def kept_gold(ledger: Ledger, task: TaskRow, beside: Collection[str] = ()) -> Gold:
    """The kept labels of a task, without those of the ids in ``beside``. Labels that the task does not have
    are left out and named.
    """
    labels, multi = labels_of(task), is_multi(task)
    rows = [row for row in ledger.kept_labels(task.job.name) if row.document_id not in beside]
    keys = ledger.keys_of_ids([row.document_id for row in rows])
    found = Gold()
    foreign, edited = [], 0
    for row in rows:
        label = _as_labelled(row.label, labels, multi=multi)
        if label is None:
            foreign.append(f"{row.document_id!r} ({spoken(row.label)})")
            continue
        found[row.document_id] = label
        if row.file is not None:
            found.files[row.document_id] = row.file
        if row.chosen:
            found.chosen.add(row.document_id)
        now = keys.get(row.document_id, ())
        edited += bool(row.document_key and now and row.document_key not in now)
    if foreign:
        found.notes.append(f"kept labels that the task does not have are left out: {some(foreign)}")
    if edited:
        found.notes.append(f"{edited:,} gold labels were given to a text that has changed since")
    return found


def _as_labelled(label: GoldLabel, labels: Sequence[str], *, multi: bool) -> GoldLabel | None:
    """``label`` as the task would give it; None where it cannot."""
    named = _names(label)
    if any(one not in labels for one in named) or not (multi or len(named) == 1):
        return None
    return tuple(one for one in labels if one in named) if multi else named[0]


def _names(label: GoldLabel) -> tuple[str, ...]:
    return (label,) if isinstance(label, str) else label


def _same(one: GoldLabel, other: GoldLabel) -> bool:
    """Whether two labels say the same, in whatever order."""
    return set(_names(one)) == set(_names(other))


# ── by command ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class GoldCounts:
    """Of the labels that a calibration was made by: how many were ``kept`` in the run before and are as they
    were, ``new`` by this command, and given by it in place of others (``replaced``).
    """

    kept: int
    new: int = 0
    replaced: int = 0

    @property
    def sentence(self) -> str:
        """In words."""
        parts = [f"{self.kept:,} kept in the run from before", f"{self.new:,} new"]
        parts += [f"{self.replaced:,} in place of others"] if self.replaced else []
        return f"{self.kept + self.new + self.replaced:,} gold labels: {', '.join(parts)}"


def with_kept(
    ledger: Ledger, task: TaskRow, given: Gold, *, replaces: bool = False
) -> tuple[Gold, GoldCounts]:
    """The labels ``given`` now and those that the run keeps. Raises UsageError where they differ, unless the
    former are to replace the latter.
    """
    before = {row.document_id: row for row in ledger.kept_labels(task.job.name)}
    differing = [name for name in given if name in before and not _same(before[name].label, given[name])]
    if differing and not replaces:
        shown = [
            f"{name!r} (kept {spoken(before[name].label)}, given {spoken(given[name])})" for name in differing
        ]
        raise UsageError(
            f"labels given now differ from those that the run keeps for task {task.job.name!r}: "
            f"{some(shown)}; with --replace those given now count, or correct them in "
            f"{some(sorted({given.files[name] for name in differing}))}; overnight gold shows what is kept"
        )
    found = kept_gold(ledger, task, given)
    kept = len(found) + sum(name in before for name in given) - len(differing)
    found.update(given)
    found.files |= given.files
    found.unused += given.unused
    found.chosen |= {name for name in given.chosen if name not in before}
    found.chosen |= {name for name in given if name in before and before[name].chosen}
    return found, GoldCounts(kept, sum(name not in before for name in given), len(differing))


def keep_given(ledger: Ledger, task: TaskRow, given: Gold) -> None:
    """Keep labels that were given by command. One that is kept already stays as it came, and is of the text
    of now.
    """
    _keep(ledger, task, given, {row.document_id: row for row in ledger.kept_labels(task.job.name)})


def _keep(ledger: Ledger, task: TaskRow, given: Gold, before: Mapping[str, KeptLabel]) -> None:
    keys = ledger.keys_of_ids(given)
    now = time.time()
    rows = []
    for name, label in given.items():
        known = before.get(name)
        of_text = keys.get(name, [])
        key = of_text[0] if len(of_text) == 1 else None
        chosen = name in given.chosen if known is None else known.chosen
        rows.append(
            replace(known, document_key=key or known.document_key)
            if known is not None and _same(known.label, label)
            else KeptLabel(name, label, key, given.files.get(name), chosen, now)
        )
    ledger.keep_labels(task.job.name, rows)


# ── by configuration ────────────────────────────────────────────────────────────────────────────────────────


def take_in_configured(ledger: Ledger, task: TaskRow, section: LabelTask) -> Gold:
    """The kept labels of a task, once those of the gold files in ``section`` are as the files have them now.
    Raises UsageError, SourceError.
    """
    if not section.gold_files:
        return kept_gold(ledger, task)
    told = read_gold(
        section.gold_files, labels_of(task), multi=is_multi(task), label_field=section.label_field
    )
    places = {absolute_path(path) for path in section.gold_files}
    before = {row.document_id: row for row in ledger.kept_labels(task.job.name)}
    theirs = {name for name, row in before.items() if row.file in places}
    others = before.keys() - theirs
    differing = [
        f"{name!r} ({spoken(told[name])}; kept {spoken(before[name].label)})"
        for name in told
        if name in others and not _same(before[name].label, told[name])
    ]
    fresh = Gold()
    fresh.files, fresh.chosen = told.files, told.chosen
    fresh.update(
        (name, label)
        for name, label in told.items()
        if name not in before or (name in theirs and not _same(before[name].label, label))
    )
    ledger.keep_labels(task.job.name, (), without=theirs - told.keys())
    _keep(ledger, task, fresh, before)
    found = kept_gold(ledger, task)
    found.unused += told.unused
    if differing:
        found.notes.append(
            f"labels of the configuration's gold files differ from those given by command, which count: "
            f"{some(differing)}"
        )
    return found


def refresh_configured(ledger: Ledger, tasks: Sequence[TaskRow]) -> dict[str, str]:
    """Take in what the gold files of the last run's configuration say now. By task, a sentence where they
    cannot be read: then what was kept of them counts.
    """
    told = {}
    for task in tasks:
        section = _section(ledger, task)
        if section is None:
            continue
        try:
            take_in_configured(ledger, task, section)
        except OvernightError as error:
            told[task.job.name] = (
                f"the configuration's gold files cannot be read now, what was kept of them counts: {error}"
            )
    return told


def configured_files(ledger: Ledger, task: TaskRow) -> tuple[list[str], str]:
    """The gold files of the last run's configuration, and the field in them that holds the label."""
    section = _section(ledger, task)
    return ([], "") if section is None else (section.gold_files, section.label_field)


def _section(ledger: Ledger, task: TaskRow) -> LabelTask | None:
    """What the last run's configuration says of a task."""
    try:
        found = [one for one in last_config(ledger).tasks if one.name == task.job.name]
    except OvernightError:
        return None
    return next((one for one in found if isinstance(one, LabelTask)), None)


# ── looking, and taking out ─────────────────────────────────────────────────────────────────────────────────


def list_gold(ledger: Ledger, names: Sequence[str] | None) -> dict[str, list[dict[str, Any]]]:
    """All kept labels by task, as JSON can hold them. Raises UsageError."""
    return {task.job.name: _listed(ledger, task) for task in label_tasks(ledger, names)}


def _listed(ledger: Ledger, task: TaskRow) -> list[dict[str, Any]]:
    rows = ledger.kept_labels(task.job.name)
    here = ledger.keys_of_ids([row.document_id for row in rows])
    return [
        {
            "id": row.document_id,
            "label": row.label if isinstance(row.label, str) else list(row.label),
            "file": row.file,
            "chosen_by_review": row.chosen,
            "given": moment(row.given_at),
            "in_the_source": row.document_id in here,
        }
        for row in rows
    ]


def remove_gold(ledger: Ledger, names: Sequence[str] | None, ids: Sequence[str]) -> dict[str, int]:
    """Take the labels of documents out; how many, by task. Raises UsageError where one of them has none, or
    the next run would bring it back.
    """
    tasks = label_tasks(ledger, names)
    kept = {
        task.job.name: {row.document_id: row for row in ledger.kept_labels(task.job.name)} for task in tasks
    }
    for one in ids:
        if not any(one in rows for rows in kept.values()):
            raise UsageError(f"no label of document {one!r} is kept; overnight gold lists those that are")
    for task in tasks:
        places = {absolute_path(path) for path in configured_files(ledger, task)[0]}
        for one in ids:
            row = kept[task.job.name].get(one)
            if row is not None and row.file in places:
                raise UsageError(
                    f"the label of document {one!r} is that of {row.file}, a gold file of the configuration: "
                    f"take it out there, the next run would bring it back"
                )
    gone = {name: [one for one in dict.fromkeys(ids) if one in rows] for name, rows in kept.items()}
    for name, names_gone in gone.items():
        ledger.keep_labels(name, (), without=names_gone)
    return {name: len(names_gone) for name, names_gone in gone.items()}
