"""Commands about the quality of answers: evaluate, review, sample. Thin, and without an import that takes time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli_words import AsJson, ConfigPath, Overrides, RunPath, open_ledger, print_facts

Count = Annotated[int, typer.Option(min=1, help="Documents to write.")]
Table = Annotated[Path, typer.Option("--output", "-o", help="CSV file to write.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file although labels are filled in, or it is another one.")]
Seed = Annotated[int, typer.Option(help="Of what is drawn at random.")]


def evaluate(
    directory: RunPath,
    gold: Annotated[Path | None, typer.Option(help="File of ids and true labels, for label tasks.")] = None,
    references: Annotated[Path | None, typer.Option(help="File of ids and reference summaries, for summarize tasks.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="Only this task; may be repeated.")] = None,
    view: Annotated[int | None, typer.Option(min=0, help="Calibration to judge; 0: the model's own labels. The latest otherwise.")] = None,
    label_field: Annotated[str, typer.Option(help="Field of the gold file that holds the label.")] = "label",
    reference_field: Annotated[str, typer.Option(help="Field of the references that holds the summary.")] = "summary",
    plots: Annotated[Path | None, typer.Option(help="Folder for plots: reliability, coverage and accuracy, confusion.")] = None,
    plot_format: Annotated[str, typer.Option(help="png or svg.")] = "png",
    as_json: AsJson = False,
) -> None:
    """Compare the answers of a run with gold labels or reference summaries; the model is not asked."""
    from pipeline.assessment import evaluate as judge
    from pipeline.assessment_table import render

    with open_ledger(directory) as ledger:
        facts = judge(
            ledger, gold=gold, references=references, names=task, view=view, label_field=label_field, reference_field=reference_field,
            plots=plots, plot_format=plot_format,
        )  # fmt: skip
    print_facts(facts if as_json else None, render(facts))


def review(
    directory: RunPath,
    output: Table,
    count: Count = 50,
    task: Annotated[str | None, typer.Option(help="Label task to review; needed where there are several.")] = None,
    force: Force = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Write the labelled documents most worth a person's look; with the column label filled in, the file is a gold file."""
    from pipeline.picking import review_run

    with open_ledger(directory) as ledger:
        facts = review_run(ledger, output, count, name=task, force=force, seed=seed)
    left = [f"left out: {number:,} {reason}" for reason, number in facts["left_out"].items()]
    print_facts(facts if as_json else None, [*_written(facts), f"labels: {', '.join(facts['labels'])}", *left])


def sample(
    config: ConfigPath,
    output: Table,
    overrides: Overrides = None,
    count: Count = 50,
    force: Force = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Write the documents that a person should label first, before any run; with the column label filled in, it is a gold file."""
    from pipeline.config import load_config
    from pipeline.picking import sample_source

    facts = sample_source(load_config(config, overrides or ()), output, count, force=force, seed=seed)
    labels = [f"labels of {name}: {', '.join(names)}" for name, names in facts["labels"].items()]
    print_facts(facts if as_json else None, [*_written(facts), *labels])


def add_quality_commands(app: typer.Typer) -> None:
    """Give the program these commands."""
    for command in (evaluate, review, sample):
        app.command()(command)


def _written(facts: dict[str, object]) -> list[str]:
    return [f"{facts['rows']:,} documents written to {facts['output']}; fill in the column label and use it as --gold"]
