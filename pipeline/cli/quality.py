"""Commands about the quality of answers: evaluate, review, sample. Thin, and without an import that takes
time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.commands import Commands
from pipeline.cli.common import AsJson, ConfigPath, Overrides, RunPath, open_ledger, print_facts

if TYPE_CHECKING:
    from pipeline.stores.ledger.ledger import Ledger

Count = Annotated[int, typer.Option(min=1, help="Documents to write.")]
Table = Annotated[Path, typer.Option("--output", "-o", help="CSV file to write.", show_default=False)]
Force = Annotated[
    bool,
    typer.Option("--force", help="Overwrite the file although labels are filled in, or it is another one."),
]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of what is drawn at random.")]


def evaluate(
    directory: RunPath,
    gold: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of ids and true labels, for label tasks; may be repeated, they add up. Without any "
            "file, the gold labels that the run keeps."
        ),
    ] = None,
    references: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of ids and reference summaries, for summarize tasks; may be repeated, they add up."
        ),
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help="Only this task; may be repeated.")] = None,
    view: Annotated[
        int | None,
        typer.Option(
            min=0, help="View to judge; 0: the model's own labels. The one that is shown otherwise."
        ),
    ] = None,
    label_field: Annotated[str, typer.Option(help="Field of the gold file that holds the label.")] = "label",
    reference_field: Annotated[
        str, typer.Option(help="Field of the references that holds the summary.")
    ] = "summary",
    plots: Annotated[
        bool,
        typer.Option("--plots", help="Draw reliability, coverage and accuracy, confusion, for the report."),
    ] = False,
    plots_to: Annotated[
        Path | None, typer.Option(help="Another folder for the plots than that of the report.")
    ] = None,
    plot_format: Annotated[str, typer.Option(help="png or svg.")] = "png",
    as_json: AsJson = False,
) -> None:
    """Compare the answers of a run with gold labels or reference summaries; the model is not asked."""
    from pipeline.results.evaluate import evaluate as judge
    from pipeline.results.evaluate.table import render
    from pipeline.results.report.evaluation import PLOTS

    with open_ledger(directory) as ledger:
        facts = judge(
            ledger,
            gold=gold or (),
            references=references or (),
            names=task,
            view=view,
            label_field=label_field,
            reference_field=reference_field,
            plots=plots_to or (directory / PLOTS if plots else None),
            plot_format=plot_format,
        )
        told = _into_report(ledger, directory, facts)
    print_facts(facts if as_json else None, [*render(facts), told])


def _into_report(ledger: Ledger, directory: Path, facts: dict[str, Any]) -> str:
    """Keep the figures for the report and write it again; a run directory that cannot be written to is no
    reason to fail.
    """
    from pipeline.errors import StoppedEarly
    from pipeline.results.report import write_report
    from pipeline.results.report.evaluation import keep_evaluation

    try:
        keep_evaluation(directory, facts)
        write_report(ledger, directory)
    except (OSError, StoppedEarly) as error:
        return f"the report does not show these figures: {error}"
    return f"report: {directory / 'report.md'}"


def review(
    directory: RunPath,
    output: Table,
    count: Count = 50,
    task: Annotated[
        str | None, typer.Option(help="Label task to review; needed where there are several.")
    ] = None,
    gold: Annotated[
        list[Path] | None,
        typer.Option(
            help="Gold file, or an earlier review: its documents are left out, as those are that have a "
            "label in the run; may be repeated."
        ),
    ] = None,
    label_field: Annotated[str, typer.Option(help="Field of these files that holds the label.")] = "label",
    force: Force = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Write the labelled documents most worth a person's look; with the column label filled in, the file is a
    gold file.
    """
    from pipeline.results.review import review_run

    with open_ledger(directory) as ledger:
        facts = review_run(
            ledger, output, count, name=task, gold=gold or (), label_field=label_field, force=force, seed=seed
        )
    several = (
        ["several labels: write them with | between them, and [] for none of them"] if facts["multi"] else []
    )
    left = [f"left out: {number:,} {reason}" for reason, number in facts["left_out"].items()]
    print_facts(
        facts if as_json else None,
        [*_written(facts), f"labels: {', '.join(facts['labels'])}", *several, *left],
    )


def sample(
    config: ConfigPath,
    output: Table,
    overrides: Overrides = None,
    count: Count = 50,
    force: Force = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Write the documents that a person should label first, before any run; with the column label filled in,
    it is a gold file.
    """
    from pipeline.config import load_config
    from pipeline.results.review import sample_source

    facts = sample_source(load_config(config, overrides or ()), output, count, force=force, seed=seed)
    labels = [f"labels of {name}: {', '.join(names)}" for name, names in facts["labels"].items()]
    print_facts(facts if as_json else None, [*_written(facts), *labels])


def add_quality_commands(app: Commands) -> None:
    """Give the program these commands."""
    app.command(
        needs={
            "label_field": ["gold"],
            "reference_field": ["references"],
            "plot_format": ["plots", "plots_to"],
        }
    )(evaluate)
    app.command(needs={"label_field": ["gold"]})(review)
    app.command()(sample)


def _written(facts: dict[str, object]) -> list[str]:
    return [
        (
            f"{facts['rows']:,} documents written to {facts['output']}; fill in the column label and use it "
            f"as --gold"
        )
    ]
