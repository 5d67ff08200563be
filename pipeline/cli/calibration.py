"""Commands about how labels are seen: calibrate, views, gold. Thin, and without an import that takes time."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.commands import Commands
from pipeline.cli.common import AsJson, RunPath, open_ledger, print_facts

if TYPE_CHECKING:
    from pipeline.results.calibrate import Calibrated
    from pipeline.stores.ledger.ledger import Ledger

Tasks = Annotated[
    list[str] | None,
    typer.Option("--task", help="Only this task; may be repeated. All label tasks otherwise."),
]


def calibrate(
    directory: RunPath,
    gold: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of ids and true labels: .jsonl, .csv, .parquet, ...; may be repeated. They are kept "
            "in the run and add up with those that it keeps."
        ),
    ] = None,
    task: Tasks = None,
    method: Annotated[
        str,
        typer.Option(
            help="auto (gold labels if there are any, else none needed), none, batch, self_training, gold."
        ),
    ] = "auto",
    expected_shares: Annotated[
        list[str] | None,
        typer.Option(
            "--share", metavar="LABEL=SHARE", help="How frequent a label is expected to be; may be repeated."
        ),
    ] = None,
    abstain_below: Annotated[
        float | None, typer.Option(min=0, max=1, help="Below this probability there is no answer.")
    ] = None,
    target_accuracy: Annotated[
        float | None, typer.Option(help="Abstain so that the others are right this often; needs gold labels.")
    ] = None,
    label_field: Annotated[str, typer.Option(help="Field of the gold file that holds the label.")] = "label",
    replace: Annotated[
        bool, typer.Option("--replace", help="Labels given now count where the run keeps other ones.")
    ] = False,
    show_anyway: Annotated[
        bool, typer.Option("--show-anyway", help="Show the new view also where it answers no document.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Calibrate the labels of a run again, from its recorded scores and by all gold labels that it was ever
    given; the model is not asked.
    """
    from pipeline.results.calibrate import calibrate_run

    with _changing(directory, "calibrate") as ledger:
        made = calibrate_run(
            ledger,
            names=task,
            gold=gold or (),
            label_field=label_field,
            method=method,
            shares=expected_shares,
            abstain_below=abstain_below,
            target_accuracy=target_accuracy,
            replaces=replace,
            show_anyway=show_anyway,
        )
    facts = {name: _calibrated_facts(found) for name, found in made.items()}
    lines = [line for name, found in made.items() for line in _calibrated_lines(directory, name, found)]
    print_facts({"tasks": facts} if as_json else None, lines)


def views(
    directory: RunPath,
    task: Annotated[
        str | None,
        typer.Option(help="Only this label task; needed where there are several and one is meant."),
    ] = None,
    show: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Print everything about view N.")
    ] = None,
    choose: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Exports, reports and evaluations show view N from now on, also after later runs; 0: the "
            "model's own labels.",
        ),
    ] = None,
    delete: Annotated[
        list[int] | None, typer.Option(min=0, metavar="N", help="Delete view N; may be repeated.")
    ] = None,
    as_configured: Annotated[
        bool,
        typer.Option("--as-configured", help="The next run shows what its configuration asks for again."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the views of a run's labels and which one is shown; print, choose or delete one."""
    from pipeline.results import kept_views
    from pipeline.results.label_view import the_label_task

    if show is not None:
        with open_ledger(directory) as ledger:
            facts = kept_views.describe_view(ledger, the_label_task(ledger, task), show)
        print_facts(facts if as_json else None, _described(facts))
        return
    told: list[str] = []
    if choose is not None or delete or as_configured:
        with _changing(directory, "views") as ledger:
            chosen = the_label_task(ledger, task)
            if choose is not None:
                kept_views.choose_view(ledger, chosen, choose)
            elif delete:
                instead = kept_views.delete_views(ledger, chosen, delete)
                told += (
                    [] if instead is None else [f"the view shown is deleted: {_spoken(instead)} is shown now"]
                )
            else:
                kept_views.leave_to_configuration(ledger, chosen)
    with open_ledger(directory) as ledger:
        listed = kept_views.list_views(ledger, None if task is None else [task])
    print_facts(
        {"tasks": listed, "notes": told} if as_json else None,
        [*told, *(line for name, facts in listed.items() for line in _listed(name, facts))],
    )


def gold(
    directory: RunPath,
    task: Tasks = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Take the label of this document out; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the gold labels that a run keeps, with where each came from; take some out."""
    from pipeline.results.gold_store import list_gold, remove_gold

    if not remove:
        with open_ledger(directory) as ledger:
            listed = list_gold(ledger, task)
        lines = [line for name, rows in listed.items() for line in _gold_lines(name, rows)]
        print_facts({"tasks": listed} if as_json else None, lines)
        return
    with _changing(directory, "gold") as ledger:
        gone = remove_gold(ledger, task, remove)
    print_facts(
        {"removed": gone} if as_json else None,
        [
            f"{name}: {count:,} taken out; views that were made with them stay as they are, calibrate again"
            for name, count in gone.items()
        ],
    )


def add_calibration_commands(app: Commands) -> None:
    """Give the program these commands."""
    app.command(needs={"label_field": ["gold"], "replace": ["gold"]})(calibrate)
    app.command(
        alone={
            "show": ["choose", "delete", "as_configured"],
            "choose": ["delete", "as_configured"],
            "delete": ["as_configured"],
        }
    )(views)
    app.command()(gold)


@contextmanager
def _changing(directory: Path, command: str) -> Iterator[Ledger]:
    """The ledger of a run directory that no run is using, to be changed; then its report is written again."""
    from pipeline.results.report import check_report, write_report
    from pipeline.stores.ledger.ledger import Ledger
    from pipeline.system.run_directory import RunDirectory

    place = RunDirectory(directory)
    with open_ledger(directory):
        pass  # a folder without a ledger is refused before a lock is made in it
    with place.locked(command), Ledger.open(place.ledger, write=True) as ledger:
        check_report(directory)
        yield ledger
        write_report(ledger, directory)


# ── as lines ────────────────────────────────────────────────────────────────────────────────────────────────


def _calibrated_facts(found: Calibrated) -> dict[str, Any]:
    view, counts = found.view, found.gold
    return {
        "view": view.number,
        "method": view.calibration.method,
        "threshold": view.threshold,
        "final": view.final,
        "sentence": view.sentence,
        "shown": found.is_shown,
        "gold": None
        if counts is None
        else {"kept": counts.kept, "new": counts.new, "replaced": counts.replaced},
    }


def _calibrated_lines(directory: Path, name: str, found: Calibrated) -> list[str]:
    lines = [f"{name}: view {found.view.number}; {found.view.sentence}"]
    if found.gold is not None:
        lines.append(f"  {found.gold.sentence}")
    if not found.is_shown:
        command = f"overnight views {shlex.quote(str(directory))} --task {shlex.quote(name)} --choose"
        lines.append(
            f"  it answers no document, so {_spoken(found.shown)} stays shown; "
            f"{command} {found.view.number} shows it"
        )
    return lines


def _spoken(number: int | None) -> str:
    return f"view {number}" if number else "what the model said itself"


def _listed(name: str, facts: Mapping[str, Any]) -> list[str]:
    """A line a view, the one shown with a star."""
    lines = [name]
    for view in facts["views"]:
        mark = "*" if facts["shown"] == view["view"] else " "
        parts = [f"by {view['by'] or 'an earlier version'}, {view['made']}"]
        parts += [f"{view['gold']:,} gold labels"] if view["gold"] else []
        parts += [f"target accuracy {view['target_accuracy']:.1%}"] if view["target_accuracy"] else []
        if view["answers_nobody"]:
            parts.append("answers no document")
        elif view["threshold"] is not None:
            parts.append(f"abstains below {view['threshold']:.3f}")
        parts += [] if view["final"] else ["not final"]
        lines.append(f"  {mark} {view['view']:>3}  {view['method']:<13}  {'; '.join(parts)}")
    mark = "*" if facts["shown"] in (0, None) else " "
    lines.append(f"  {mark}   0  {'none':<13}  what the model said itself")
    if facts["held"]:
        lines.append(f"  {_spoken(facts['shown'])} stays shown after later runs; --as-configured ends that")
    return lines


def _described(facts: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{facts['task']}: view {facts['view']}{', which is shown' if facts['shown'] else ''}",
        f"  method: {facts['method']}, by {facts['by'] or 'an earlier version'}, {facts['made']}",
        f"  documents: {facts['documents']:,}, gold labels: {facts['gold']:,}",
        f"  labels: {', '.join(facts['labels'])}",
    ]
    if facts["threshold"] is not None:
        nobody = ", which no document reaches" if facts["answers_nobody"] else ""
        lines.append(f"  answers below the probability {facts['threshold']:.3f} are abstained from{nobody}")
    return [
        *lines,
        f"  {facts['sentence']}",
        *([] if facts["final"] else ["  not final: documents were missing"]),
    ]


def _gold_lines(name: str, rows: list[dict[str, Any]]) -> list[str]:
    """How many of each label, and a line a document."""
    counts = Counter(one for row in rows for one in _labels(row))
    chosen = sum(row["chosen_by_review"] for row in rows)
    told = ", ".join(f"{label} {count:,}" for label, count in counts.most_common())
    lines = [
        f"{name}: {len(rows):,} gold labels{f' ({told})' if told else ''}, {chosen:,} chosen by a review"
    ]
    for row in rows:
        origin = row["file"] or "an earlier calibration"
        gone = "" if row["in_the_source"] else "; not in the source"
        lines.append(f"  {row['id']}  {'|'.join(_labels(row)) or '[]'}  ({origin}, {row['given']}{gone})")
    return lines


def _labels(row: Mapping[str, Any]) -> list[str]:
    return [row["label"]] if isinstance(row["label"], str) else list(row["label"])
