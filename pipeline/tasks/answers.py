"""What a kind of task says of its answers: columns of the export, facts and lines of the report, what
``show`` adds, what they are judged by. ``Answers`` alone is a kind whose answer is a text and nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from pipeline.stores.ledger.ledger import Ledger
    from pipeline.stores.ledger.queries import TaskResult, TaskRow

ColumnType = Literal["text", "texts", "integer", "number", "yes or no", "numbers by name"]
"""What a column holds; texts are a list of them."""
Wanted = Literal["gold", "references"]
"""The file that answers are judged by: true answers, or texts that somebody has written."""


@dataclass(frozen=True, slots=True)
class Column:
    """A further column of a kind: its name is the task's with ``ending``, which begins with an underscore."""

    ending: str
    type: ColumnType


@dataclass(frozen=True, slots=True)
class Judge:
    """The files that answers are compared with, the field in them, and the number of the view judged. Without
    files, what the run keeps.
    """

    paths: tuple[Path, ...]
    field: str
    view: int | None = None


class View(Protocol):
    """A way of seeing answers other than as the model gave them, kept in the ledger with a number."""

    @property
    def number(self) -> int:
        """Counted from one."""
        ...

    def short(self) -> str:
        """For a cell of an export."""
        ...

    def covers(self, result: TaskResult) -> bool:
        """Whether ``result`` has what the view is computed from."""
        ...

    def apply(self, results: Sequence[TaskResult]) -> list[TaskResult]:
        """``results``, all of them covered, as the view shows them."""
        ...


class Counts:
    """What a report says of a task's answers, added up over the rows of ``Ledger.results``; here, nothing."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one answer."""

    def facts(self) -> dict[str, Any]:
        """Facts that JSON can hold; their names must not be those that every task's facts have."""
        return {}


class Answers:
    """Every method may be left as it is."""

    judged_by: ClassVar[Wanted | None] = None
    """What ``evaluate`` must be called with; None: these answers cannot be judged."""
    unsettled: ClassVar[str] = "not computed over all answers"
    """How the report says that ``settle`` failed, before the reason."""

    # ── run ──

    def check(self, section: Any) -> None:
        """Before a run: what its end will need of ``section`` is there. Raises UsageError."""

    def settle(self, ledger: Ledger, task: TaskRow, section: Any) -> str:  # noqa: ARG002  # kinds need them
        """After a run: whatever is computed over all answers. A sentence about what could not be, or ""."""
        return ""

    # ── export ──

    def answer_type(self, task: TaskRow) -> ColumnType:  # noqa: ARG002  # as above
        """Of the column that has the task's name. Fixed by the task, whatever its answers."""
        return "text"

    def answer(self, result: TaskResult) -> Any:
        """The cell of that column."""
        return result.value

    def cells(self, result: TaskResult) -> Sequence[Any]:  # noqa: ARG002  # as above
        """Those of the kind's further columns, in their order; also for documents without an answer."""
        return ()

    def flat_columns(self, task: TaskRow) -> Sequence[Column] | None:  # noqa: ARG002  # as above
        """What stands in place of the kind's further columns where each number is to have one of its own;
        None: the same ones.
        """
        return None

    def flat_cells(self, task: TaskRow, result: TaskResult) -> Sequence[Any]:  # noqa: ARG002  # as above
        """The cells of those."""
        return self.cells(result)

    def view(self, ledger: Ledger, task: TaskRow, number: int | None) -> View | None:  # noqa: ARG002  # as above
        """The view that is shown, or that of the number; None for 0, and where there is none. Raises
        UsageError for unknown ones.
        """
        return None

    def said(self, task: TaskRow, result: TaskResult) -> TaskResult:  # noqa: ARG002  # as above
        """``result`` as view 0 shows it: what the model said itself."""
        return result

    # ── report, show ──

    def counts(self) -> Counts:
        """What adds up a task's answers."""
        return Counts()

    def report_facts(self, ledger: Ledger, task: TaskRow, view: Any) -> dict[str, Any]:  # noqa: ARG002  # as above
        """Facts beside those that were counted."""
        return {}

    def report_lines(self, facts: Mapping[str, Any]) -> list[str]:  # noqa: ARG002  # as above
        """Points of the list under the task's heading, as Markdown; ``facts`` are the task's own."""
        return []

    def report_section(self, facts: Mapping[str, Any]) -> list[str]:  # noqa: ARG002  # as above
        """Lines of Markdown after that list."""
        return []

    def story(
        self,
        ledger: Ledger,  # noqa: ARG002  # as above
        task: TaskRow,  # noqa: ARG002  # as above
        key: str,  # noqa: ARG002  # as above
        result: Mapping[str, Any] | None,  # noqa: ARG002  # as above
    ) -> dict[str, Any]:
        """What ``show`` adds to the recorded result of one document, under names that no other kind uses."""
        return {}

    def story_lines(self, story: Mapping[str, Any]) -> list[str]:  # noqa: ARG002  # as above
        """The same for people. ``story`` may be another kind's."""
        return []

    # ── evaluate ──

    def evaluate(self, ledger: Ledger, task: TaskRow, judge: Judge) -> dict[str, Any]:
        """Facts with ``kind``, ``judged`` (documents), ``left_out`` (count by reason), ``notes`` and
        ``headline`` (value, low and high by name). Raises UsageError.
        """
        raise NotImplementedError("a kind that says what it is judged by can be judged")

    def evaluation_heading(self, found: Mapping[str, Any]) -> list[str]:
        """Lines over the figures."""
        return [f"{found['judged']:,} documents compared"]

    def evaluation_table(self, found: Mapping[str, Any]) -> list[str]:  # noqa: ARG002  # as above
        """Lines below the figures."""
        return []

    def report_evaluation(self, found: Mapping[str, Any]) -> list[str]:
        """The heading in the report: points of a list, as Markdown."""
        return [f"- {found['judged']:,} documents compared"]

    def report_evaluation_table(self, found: Mapping[str, Any]) -> list[str]:  # noqa: ARG002  # as above
        """The table in the report."""
        return []
