"""What a calibration is made of: the scores of a task's finished documents, as numbers, and which of them
have a gold label that may be used.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.quality.calibration import Calibration
from pipeline.quality.features import Features, unpacked
from pipeline.quality.scores import Floats
from pipeline.quality.several import SeveralCalibration
from pipeline.results.gold import GoldLabel
from pipeline.results.label_view import is_multi, labels_of
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import TaskRow

# Features are standardized over so many documents, spread over the run: a mean over more is no better, and a
# million of them are 1 GB.
_FEATURED_DOCUMENTS = 20_000


@dataclass(frozen=True, slots=True)
class Table:
    """A task's finished documents: their raw scores (documents, labels), the gold labels among them by row,
    and the keys and ids of those. ``unused`` are the other gold labels by id, with the reason.
    """

    keys: Mapping[int, str]
    ids: Mapping[int, str]
    labels: tuple[str, ...]
    scores: Floats
    multi: bool
    gold: Mapping[int, GoldLabel]
    unused: Mapping[str, str]
    features: Features | None = None

    @property
    def count(self) -> int:
        """Finished documents."""
        return len(self.scores)

    def log_probabilities(self, calibration: Calibration | SeveralCalibration, rows: Sequence[int]) -> Floats:
        """What ``calibration`` says of gold documents: natural logs, (rows, labels)."""
        features = None
        if self.features is not None:
            features = self.features.values[np.searchsorted(self.features.places, rows)]
        return calibration.log_probabilities(
            self.scores[list(rows)].reshape(len(rows), len(self.labels)), features
        )

    def left_out(self, among: Collection[str] | None = None) -> dict[str, int]:
        """How many of all gold labels, or of those of the ids ``among``, are not used, by reason."""
        return dict(Counter(reason for name, reason in self.unused.items() if among is None or name in among))


def read_table(
    ledger: Ledger,
    task: TaskRow,
    gold: Mapping[str, GoldLabel] | None = None,
    unfit: Collection[str] = (),
    *,
    with_features: bool = False,
) -> Table:
    """The finished documents of a label task. Gold labels of the ids in ``unfit`` are not used: the model has
    been shown them.
    """
    labels = labels_of(task)
    gold = gold or {}
    scores, named, features = _found(ledger, task, labels, gold, with_features=with_features)
    used, unused = _gold_rows(named, gold, unfit)
    keys = {row: key for found in named.values() for row, key in found}
    ids = {row: name for name, found in named.items() for row, _ in found}
    return Table(keys, ids, labels, scores, is_multi(task), used, unused, features)


def _found(
    ledger: Ledger,
    task: TaskRow,
    labels: Sequence[str],
    gold: Mapping[str, GoldLabel],
    *,
    with_features: bool,
) -> tuple[Floats, dict[str, list[tuple[int, str]]], Features | None]:
    """Scores of the finished documents; row and key of those that ``gold`` names, by id; and if all have
    features, those of the gold documents and of a share of the others. Of a document that gold does not name
    nothing but its numbers stays in memory.
    """
    every = max(1, -(-ledger.status().tasks[task.job.name]["done"] // _FEATURED_DOCUMENTS))
    numbers = array("d")
    named: dict[str, list[tuple[int, str]]] = {}
    kept: dict[int, bytes] = {}
    complete = with_features
    for place, row in enumerate(ledger.scored(task.job.name, with_features=with_features)):
        complete &= bool(row.features)
        if complete and (row.id in gold or place % every == 0):
            kept[place] = row.features
        if row.id in gold:
            named.setdefault(row.id, []).append((place, row.document_key))
        numbers.extend(row.scores[label] for label in labels)
    values = unpacked(list(kept.values())) if complete else None
    features = None if values is None else Features(np.array(list(kept)), values)
    return np.frombuffer(numbers, dtype=np.float64).reshape(-1, len(labels)), named, features


def _gold_rows(
    named: Mapping[str, Sequence[tuple[int, str]]],
    gold: Mapping[str, GoldLabel],
    unfit: Collection[str],
) -> tuple[dict[int, GoldLabel], dict[str, str]]:
    """Gold labels by row, in the rows' order, and of the others the reason, by id."""
    used: dict[int, GoldLabel] = {}
    unused: dict[str, str] = {}
    for name, label in gold.items():
        rows = named.get(name, ())
        if name in unfit:
            unused[name] = "shown to the model as examples"
        elif len(rows) != 1:
            unused[name] = (
                "of ids that stand for several texts" if rows else "not among the finished documents"
            )
        else:
            used[rows[0][0]] = label
    return dict(sorted(used.items())), unused
