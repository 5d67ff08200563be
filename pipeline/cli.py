"""The command line. Commands are thin: they read arguments, call the product, and print. Imports are inside, so help is instant."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli_plan import plan
from pipeline.errors import EXIT_DONE, EXIT_FAULT, EXIT_STOPPED, EXIT_USAGE, OvernightError

if TYPE_CHECKING:
    from pipeline.stores.ledger import Ledger

app = typer.Typer(
    name="overnight",
    help="Summarize and label whole collections of documents with a large language model, overnight, on one small GPU or a CPU.",
    epilog="Exit codes: 0 all done; 3 finished, some documents failed; 2 wrong usage or configuration; "
    "75 stopped early, the same command goes on; 1 a fault of ours.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML configuration.", show_default=False)]
RunPath = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run directory.", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a key of the configuration; may be repeated.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")]


@app.command()
def run(
    config: ConfigPath,
    overrides: Overrides = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N documents; does not change their identity.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only tasks of this kind (summarize, label).")] = None,
    fork: Annotated[bool, typer.Option("--fork", help="Start changed tasks beside the old ones instead of refusing.")] = False,
    output: Annotated[
        list[Path] | None, typer.Option(help="Export here when the run ends (.jsonl, .parquet, .csv); may be repeated.")
    ] = None,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Start the night, or go on with it: do what the run directory does not hold yet."""
    from pipeline.config import load_config
    from pipeline.display import display
    from pipeline.export import check_output
    from pipeline.runner import run as run_night
    from pipeline.sources import source_files
    from pipeline.stopping import StopSignal

    settings = load_config(config, overrides or ())
    for path in output or ():
        check_output(path, [*source_files(settings.source), *settings.source.paths])
    stop = StopSignal()
    with stop.watch_signals(), display(quiet=quiet) as observer:
        result = run_night(settings, limit=limit, fork=fork, kinds=set(kind) if kind else None, observer=observer, stop=stop)
    exported = [_export(result.directory, path, force=False) for path in output or ()]
    facts = {"exit_code": result.exit_code, "reason": result.reason, "run_directory": str(result.directory), "report": str(result.report),
             "status": result.status.to_json(), "exports": exported}  # fmt: skip
    _print(facts if as_json else None, _run_lines(facts))
    raise typer.Exit(result.exit_code)


app.command()(plan)


@app.command()
def bench(
    config: ConfigPath,
    overrides: Overrides = None,
    documents: Annotated[int, typer.Option(min=2, help="Documents of the source that take part.")] = 32,
    slow_documents: Annotated[int, typer.Option(min=1, help="Documents a turn for contestants that go one by one.")] = 4,
    repetitions: Annotated[int, typer.Option(min=1, help="Turns; what is told is their median.")] = 3,
    task: Annotated[str | None, typer.Option(help="Task to measure; the first one otherwise.")] = None,
    to_the_end: Annotated[bool, typer.Option("--to-the-end", help="Every text gets max_output_tokens; end tokens do not end it.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Contestant beside ours; may be repeated. All of them otherwise.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare this program with the ways of doing it by hand, on this machine, with the configuration's model and documents."""
    from pipeline.config import load_config

    settings = load_config(config, overrides or ())  # a wrong one is told before the libraries are imported
    from pipeline.bench import BenchOptions, table
    from pipeline.bench import bench as measure

    options = BenchOptions(documents, slow_documents, repetitions, task, to_the_end, tuple(only or ()))
    result = measure(settings, options, lambda text: print(text, file=sys.stderr))
    _print(result.to_json() if as_json else None, table(result))


@app.command()
def status(directory: RunPath, as_json: AsJson = False) -> None:
    """Count documents and states; also while a run is going on."""
    with _ledger(directory) as ledger:
        counts = ledger.status().to_json()
    lines = [f"{counts['documents']:,} documents, {counts['rejected']:,} rejected, {counts['duplicates']:,} repeated; "
             + ("complete" if counts["complete"] else "not complete")]  # fmt: skip
    for name, states in counts["tasks"].items():
        lines.append(f"{name}: " + ", ".join(f"{count:,} {state}" for state, count in states.items() if count))
    _print(counts if as_json else None, lines)


@app.command()
def export(
    directory: RunPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .jsonl, .parquet or .csv.", show_default=False)],
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is not an earlier export.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write one row a document, in input order."""
    facts = _export(directory, output, force=force)
    _print(facts if as_json else None, [f"{facts['rows']:,} rows written to {facts['output']}"])


@app.command()
def report(directory: RunPath, as_json: AsJson = False) -> None:
    """Print the report, fresh from the ledger; also while a run is going on."""
    from pipeline.report import build_report, render_markdown

    with _ledger(directory) as ledger:
        facts = build_report(ledger)
    _print(facts if as_json else None, [render_markdown(facts)])


@app.command()
def retry(
    directory: RunPath,
    task: Annotated[list[str] | None, typer.Option(help="Only this task; may be repeated.")] = None,
    as_json: AsJson = False,
) -> None:
    """Set failed and quarantined documents back to pending; the next run tries them again."""
    from pipeline.run_directory import RunDirectory
    from pipeline.stores.ledger import Ledger

    place = RunDirectory(directory)
    with _ledger(directory):
        pass  # a folder without a ledger is refused before a lock is made in it
    with place.locked(), Ledger.open(place.ledger, write=True) as ledger:
        count = ledger.retry(task or None)
    _print({"retried": count} if as_json else None, [f"{count:,} set back to pending; run the configuration again"])


@app.command()
def show(
    directory: RunPath,
    document: Annotated[str, typer.Argument(metavar="ID", help="Id of the document.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show how one document was asked and answered: prompts as the model saw them, parts, answers, timings."""
    from pipeline.inspection import inspect, render

    facts = inspect(directory, document)
    _print(facts if as_json else None, render(facts))


@app.command()
def doctor(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="Also check this configuration.")] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Name in one sentence each what would stop or slow a night on this machine."""
    from pipeline.doctor import examine

    findings = examine(config, overrides or ())
    words = {"ok": "ok  ", "warn": "slow", "stop": "STOP"}
    facts = {"findings": [{"name": finding.name, "level": finding.level, "message": finding.sentence} for finding in findings]}
    _print(facts if as_json else None, [f"{words[finding.level]}  {finding.name}: {finding.sentence}" for finding in findings])
    raise typer.Exit(EXIT_USAGE if any(finding.level == "stop" for finding in findings) else EXIT_DONE)


def main() -> None:
    """Entry point: a user's mistake is a sentence, and every end has its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):  # until a run watches for them itself, nothing is under way that they could harm
        signal.signal(number, lambda *_: sys.exit(EXIT_STOPPED))
    try:
        app()
    except OvernightError as error:
        print(f"overnight: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # standard output went away, as in "overnight report … | head"
        sys.stderr.close()
        sys.exit(EXIT_FAULT)


def _ledger(directory: Path) -> Ledger:
    from pipeline.run_directory import LEDGER
    from pipeline.stores.ledger import Ledger

    return Ledger.open(directory / LEDGER, write=False)


def _export(directory: Path, output: Path, *, force: bool) -> dict[str, Any]:
    from pipeline.export import export as write_export

    with _ledger(directory) as ledger:
        rows = write_export(ledger, output, force=force)
    return {"output": str(output), "rows": rows}


def _run_lines(facts: dict[str, Any]) -> list[str]:
    counts = facts["status"]
    endings = {0: "All done", 3: "Finished; some documents failed"}
    lines = [endings.get(facts["exit_code"], f"Stopped early ({facts['reason']}); the same command goes on")]
    lines += [
        f"  {name}: " + ", ".join(f"{count:,} {state}" for state, count in states.items() if count)
        for name, states in counts["tasks"].items()
    ]
    if counts["rejected"]:
        lines.append(f"  {counts['rejected']:,} rows were rejected: {facts['run_directory']}/rejects.jsonl")
    lines.append(f"  report: {facts['report']}")
    return lines + [f"  export: {export['output']} ({export['rows']:,} rows)" for export in facts["exports"]]


def _print(facts: dict[str, Any] | None, lines: list[str]) -> None:
    """Facts as one JSON object, or lines for people."""
    print(json.dumps(facts, ensure_ascii=False, default=str) if facts is not None else "\n".join(lines))


if __name__ == "__main__":
    main()
