"""What all commands have in common: their arguments, the ledger that they look at, and how they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.system.standard_streams import shows_unicode

if TYPE_CHECKING:
    from pipeline.stores.ledger.ledger import Ledger

ConfigPath = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The YAML configuration.", show_default=False)
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run directory.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Override a key of the configuration; may be repeated."),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")
]


def open_ledger(directory: Path) -> Ledger:
    """The ledger of a run directory, to be looked at. Raises UsageError where there is none."""
    from pipeline.stores.ledger.ledger import Ledger
    from pipeline.system.run_directory import LEDGER

    return Ledger.open(directory / LEDGER, write=False)


def print_facts(facts: dict[str, Any] | None, lines: list[str]) -> None:
    """Facts as one JSON object, or lines for people."""
    print(
        "\n".join(lines)
        if facts is None
        else json.dumps(facts, ensure_ascii=not shows_unicode(), default=str)
    )
