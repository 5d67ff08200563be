"""``overnight export``, and the options by which a table is asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.common import AsJson, RunPath, open_ledger, print_facts
from pipeline.errors import UsageError

if TYPE_CHECKING:
    from pipeline.results.export.layout import Layout, Output

_STANDARD_OUTPUT = Path("-")

WithFields = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="FIELD,...",
        help="Columns of the source beside the answers, and file and line; may be repeated.",
    ),
]
AllFields = Annotated[
    bool, typer.Option("--all-fields", help="All columns of the source beside the answers, file and line.")
]
Flat = Annotated[
    bool,
    typer.Option("--flat", help="A column for the probability of each label, the second label, the margin."),
]
InFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="jsonl, csv, tsv or parquet; by the name of the file otherwise, jsonl on standard output.",
    ),
]


def outputs_asked_for(
    paths: Sequence[Path] | None,
    fields: Sequence[str] | None,
    *,
    all_fields: bool,
    flat: bool,
    written: str | None,
    as_json: bool,
) -> list[Output]:
    """The tables that the options ask for, each once. Raises UsageError."""
    from pipeline.results.export.layout import Output

    layout = _layout(fields, all_fields, flat, written)
    if not paths and (fields or all_fields or flat or written):
        raise UsageError(
            "--with, --all-fields, --flat and --format say how the files of --output look: name one with "
            "--output"
        )
    if as_json and _STANDARD_OUTPUT in (paths or ()):
        raise UsageError("--json and --output - would both write to standard output: keep one of the two")
    return [Output(None if path == _STANDARD_OUTPUT else path, layout) for path in dict.fromkeys(paths or ())]


def _layout(fields: Sequence[str] | None, all_fields: bool, flat: bool, written: str | None) -> Layout:
    from pipeline.results.export.layout import FORMATS, Layout

    if fields and all_fields:
        raise UsageError("--with names columns of the source and --all-fields means all: keep one of the two")
    known = next((name for name in FORMATS if name == written), None)
    if written is not None and known is None:
        raise UsageError(f"--format {written}: there are {', '.join(FORMATS)}")
    named = [name.strip() for part in fields or () for name in part.split(",")]
    if not all(named):
        raise UsageError(f"--with {','.join(fields or ())}: a name is missing between two commas")
    return Layout(known, None if all_fields else tuple(dict.fromkeys(named)), flat)


def export(
    directory: RunPath,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            help="File to write: .jsonl, .csv, .tsv or .parquet; - is standard output; may be repeated. "
            "Without it those that the run's configuration names are written.",
            show_default=False,
        ),
    ] = None,
    fields: WithFields = None,
    all_fields: AllFields = False,
    flat: Flat = False,
    written: InFormat = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that is not an earlier export.")
    ] = False,
    view: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="View to show; 0: the model's own labels. The one that overnight views says otherwise.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one row a document, in input order."""
    from pipeline.results.export import export as write_export
    from pipeline.results.outputs import Written, configured
    from pipeline.results.source_texts import last_config

    outputs = outputs_asked_for(
        output, fields, all_fields=all_fields, flat=flat, written=written, as_json=as_json
    )
    told = []
    with open_ledger(directory) as ledger:
        outputs = outputs or configured(last_config(ledger))
        if not outputs:
            raise UsageError("name a file with --output: the configuration of the run has no run.output")
        for each in outputs:
            found = write_export(ledger, each.path, each.layout, force=force, view=view)
            told.append(Written(each, found).to_json())
    facts = {**(told[0] if len(told) == 1 else {}), "exports": told}
    print_beside(outputs, facts if as_json else None, [line for each in told for line in table_lines(each)])


def print_beside(outputs: Sequence[Output], facts: dict[str, Any] | None, lines: list[str]) -> None:
    """Print facts or lines where no table goes: beside one on standard output, on standard error."""
    if any(output.path is None for output in outputs):
        print("\n".join(lines), file=sys.stderr)
    else:
        print_facts(facts, lines)


def table_lines(facts: dict[str, Any]) -> list[str]:
    """What is told of a table: how large it is and what it lacks, or why there is none."""
    if facts["error"] is not None:
        return [f"export: {facts['error']}"]
    place = "standard output" if facts["output"] == str(_STANDARD_OUTPUT) else facts["output"]
    return [f"export: {place} ({facts['rows']:,} rows)", *(f"  {note}" for note in facts["notes"])]
