"""What the report says of a label task: how often each label was given, how sure the model was, through which
view its labels are seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pipeline.results.report.markdown_table import bar, table
from pipeline.stores.ledger.queries import answer_probability
from pipeline.system.escape import escape
from pipeline.tasks.answers import Counts

# So many documents under one label are more likely a bias of the model than a fact about the documents.
_MANY, _ONE_SIDED = 20, 0.9


class LabelCounts(Counts):
    """How often each label was given, and how sure the model was."""

    def __init__(self) -> None:
        self._given: Counter[str] = Counter()
        self._tenths = [0] * 10
        self._sum = 0.0
        self._abstained = 0
        self._none = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """See Counts."""
        value = row["value"]
        given = value if isinstance(value, list) else [] if value is None else [value]
        self._given.update(given)
        self._abstained += value is None
        self._none += value == []
        probability = answer_probability(value, row["probabilities"])
        if probability is not None:
            self._tenths[min(9, max(0, int(probability * 10)))] += 1
            self._sum += probability

    def facts(self) -> dict[str, Any]:
        """See Counts."""
        known = sum(self._tenths)
        counted = {
            "distribution": dict(self._given.most_common()),
            "abstained": self._abstained,
            "none_of_them": self._none,
            "mean_confidence": self._sum / known if known else None,
            "confidence_by_tenths": self._tenths,
        }
        return {"labels": counted}


def view_lines(task: Mapping[str, Any]) -> list[str]:
    """How labels are seen: the view in force, or why there is none."""
    lines = []
    view = task.get("view")
    if view:
        final = "" if view["final"] else " **Not final**: more documents may change it."
        lines.append(
            f"- labels are shown through view {view['number']}: {escape(view['sentence'], 3000)}.{final}"
        )
        if view["threshold"] is not None:
            below = (
                f", below the probability {view['threshold']:.3f}"
                if view["threshold"] <= 1
                else ": no threshold qualifies"
            )
            lines.append(f"- **{task['labels']['abstained']:,} documents are abstained from**{below}")
    if task.get("calibration_note"):
        lines.append(f"- {escape(task['calibration_note'], 1000)}")
    return lines


def labels_section(labels: Mapping[str, Any] | None, view: Mapping[str, Any] | None) -> list[str]:
    """How often each label was given, and how sure the model was."""
    if not labels:
        return []
    counts = {escape(name): count for name, count in labels["distribution"].items()}
    counts |= {"*(abstained)*": labels["abstained"]} if labels["abstained"] else {}
    counts |= {"*(none of them)*": labels["none_of_them"]} if labels["none_of_them"] else {}
    lines = table(
        ("label", "documents", ""),
        [(name, f"{count:,}", bar(count, counts.values())) for name, count in counts.items()],
    )
    lines += _one_sided(labels["distribution"])
    if labels["mean_confidence"] is not None:
        tenths = labels["confidence_by_tenths"]
        rows = [
            (f"{index / 10:.1f} to {(index + 1) / 10:.1f}", f"{count:,}", bar(count, tenths))
            for index, count in enumerate(tenths)
        ]
        whose = f"as view {view['number']} gives it" if view else "as the model's own scores say it"
        lines += [f"Mean confidence {labels['mean_confidence']:.3f}, {whose}:", ""]
        lines += table(("probability", "documents", ""), rows)
    return lines


def _one_sided(distribution: Mapping[str, int]) -> list[str]:
    """A small model's raw scores may favour one label whatever the text; a person should know before relying
    on them.
    """
    total, most = sum(distribution.values()), max(distribution.values(), default=0)
    if total < _MANY or most < _ONE_SIDED * total:
        return []
    name = next(name for name, count in distribution.items() if count == most)
    share = f"{most / total:.0%} of the documents were labelled {escape(name)}"
    return [
        f"**Worth a look:** {share}. Unless that is so, this model's scores are biased: try a larger model.",
        "",
    ]
