"""The command line. Commands are thin: they read arguments, call the product, and print. Imports are inside,
so help is instant.
"""

from __future__ import annotations

import errno
import itertools
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline import __version__
from pipeline.cli.cache import app as cache_commands
from pipeline.cli.calibration import add_calibration_commands
from pipeline.cli.commands import Commands
from pipeline.cli.common import AsJson, ConfigPath, Overrides, RunPath, open_ledger, print_facts
from pipeline.cli.plan import plan
from pipeline.cli.quality import add_quality_commands
from pipeline.cli.serve import serve
from pipeline.cli.tables import (
    AllFields,
    Flat,
    InFormat,
    WithFields,
    export,
    outputs_asked_for,
    print_beside,
    table_lines,
)
from pipeline.cli.watch import add_watch_commands
from pipeline.errors import EXIT_DONE, EXIT_FAULT, EXIT_STOPPED, EXIT_USAGE, OvernightError
from pipeline.system.standard_streams import forgive, lost_output

if TYPE_CHECKING:
    from pipeline.run.runner import RunResult


def _print_version(wished: bool) -> None:
    if wished:
        print(f"overnight {__version__}")
        raise typer.Exit


app = Commands(
    name="overnight",
    epilog="Exit codes: 0 all done; 3 finished, but some documents failed or could not be read; 2 wrong "
    "usage or configuration, or nothing to read; 75 the same command has work left; 1 a fault of ours.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(cache_commands)

# what the library raises for arguments that it cannot read; it has a name only in a private module
_WRONG_ARGUMENTS: Any = typer.BadParameter.__base__


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Summarize and label whole collections of documents with a large language model, overnight, on one small
    GPU or a CPU.
    """


@app.command()
def run(
    config: ConfigPath,
    overrides: Overrides = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first N documents; does not change their identity.")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only tasks of this kind (summarize, label).")
    ] = None,
    fork: Annotated[
        bool, typer.Option("--fork", help="Start changed tasks beside the old ones instead of refusing.")
    ] = False,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            help="Export here when the run ends (.jsonl, .csv, .tsv, .parquet; - is standard output); may be "
            "repeated."
        ),
    ] = None,
    fields: WithFields = None,
    all_fields: AllFields = False,
    flat: Flat = False,
    written: InFormat = None,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Start the night, or go on with it: do what the run directory does not hold yet."""
    from pipeline.cli.progress import display
    from pipeline.system.stop_signal import StopSignal

    stop = StopSignal()
    with stop.watch_signals(), display(f"reading {config}", quiet=quiet) as observer:
        from pipeline.config import load_config  # seconds of imports, so only now that something was said
        from pipeline.run.runner import run as run_night

        outputs = outputs_asked_for(
            output, fields, all_fields=all_fields, flat=flat, written=written, as_json=as_json
        )
        settings = load_config(config, overrides or ())
        result = run_night(
            settings,
            limit=limit,
            fork=fork,
            kinds=set(kind) if kind else None,
            observer=observer,
            stop=stop,
            outputs=outputs,
        )
    facts = _run_facts(result)
    print_beside(outputs, facts if as_json else None, _run_lines(result))
    raise typer.Exit(result.exit_code)


app.command(needs={"plot_format": ["plots"], "disk": ["vram", "ram", "pcie", "cores"]})(plan)
app.command()(serve)


@app.command(
    needs={"context": ["placements"]},
    alone={"placements": ["documents", "slow_documents", "task", "to_the_end", "only"]},
)
def bench(
    config: ConfigPath,
    overrides: Overrides = None,
    documents: Annotated[int, typer.Option(min=2, help="Documents of the source that take part.")] = 32,
    slow_documents: Annotated[
        int, typer.Option(min=1, help="Documents a turn for contestants that go one by one.")
    ] = 4,
    repetitions: Annotated[int, typer.Option(min=1, help="Turns; what is told is their median.")] = 3,
    task: Annotated[str | None, typer.Option(help="Task to measure; the first one otherwise.")] = None,
    to_the_end: Annotated[
        bool,
        typer.Option("--to-the-end", help="Every text gets max_output_tokens; end tokens do not end it."),
    ] = False,
    placements: Annotated[
        bool,
        typer.Option("--placements", help="Compare placements of the KV cache instead, by prompt length."),
    ] = False,
    context: Annotated[
        list[int] | None, typer.Option(min=1, help="With --placements: tokens of a prompt; may be repeated.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Contestant beside ours; may be repeated. All of them otherwise.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare this program with the ways of doing it by hand, on this machine, with the configuration's model
    and documents.
    """
    from pipeline.config import load_config

    settings = load_config(config, overrides or ())  # a wrong one is told before the libraries are imported
    if placements:
        from pipeline.bench.placements import DEFAULT_CONTEXTS, bench_placements, placement_table

        found = bench_placements(settings, context or DEFAULT_CONTEXTS, repetitions=repetitions, say=_say)
        print_facts(found.to_json() if as_json else None, placement_table(found))
        return
    from pipeline.bench.compare import bench as measure
    from pipeline.bench.results import table
    from pipeline.bench.turns import BenchOptions

    options = BenchOptions(documents, slow_documents, repetitions, task, to_the_end, tuple(only or ()))
    result = measure(settings, options, _say)
    print_facts(result.to_json() if as_json else None, table(result))


app.command()(export)


add_calibration_commands(app)


@app.command()
def report(directory: RunPath, as_json: AsJson = False) -> None:
    """Print the report, fresh from the ledger; also while a run is going on."""
    from pipeline.results.report import build_report, render_markdown

    with open_ledger(directory) as ledger:
        facts = build_report(ledger, directory)
    print_facts(facts if as_json else None, [render_markdown(facts)])


@app.command()
def retry(
    directory: RunPath,
    task: Annotated[list[str] | None, typer.Option(help="Only this task; may be repeated.")] = None,
    as_json: AsJson = False,
) -> None:
    """Set failed and quarantined documents back to pending; the next run tries them again."""
    from pipeline.stores.ledger.ledger import Ledger
    from pipeline.system.run_directory import RunDirectory

    place = RunDirectory(directory)
    with open_ledger(directory):
        pass  # a folder without a ledger is refused before a lock is made in it
    with place.locked("retry"), Ledger.open(place.ledger, write=True) as ledger:
        count = ledger.retry(task or None)
    print_facts(
        {"retried": count} if as_json else None,
        [f"{count:,} set back to pending; run the configuration again"],
    )


@app.command()
def show(
    directory: RunPath,
    document: Annotated[str, typer.Argument(metavar="ID", help="Id of the document.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show how one document was asked and answered: prompts as the model saw them, parts, answers,
    timings.
    """
    from pipeline.results.show import inspect, render

    facts = inspect(directory, document)
    print_facts(facts if as_json else None, render(facts))


@app.command()
def reproduce(
    directory: RunPath,
    document: Annotated[str, typer.Argument(metavar="ID", help="Id of the document.", show_default=False)],
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Ask about one document of a run again, alone and in a run directory of its own: to see why it
    failed.
    """
    from pipeline.cli.progress import display
    from pipeline.system.stop_signal import StopSignal

    stop = StopSignal()
    with stop.watch_signals(), display(f"looking for {document}", quiet=quiet) as observer:
        from pipeline.run.reproduce import reproduce as ask_again  # as in a run

        result = ask_again(directory, document, observer, stop)
    facts = _run_facts(result)
    print_facts(
        facts if as_json else None,
        [*_run_lines(result), f"  logs: {result.directory}/overnight.log and worker.log"],
    )
    raise typer.Exit(result.exit_code)


@app.command()
def keys(
    begin: Annotated[
        str | None, typer.Argument(metavar="KEY", help="Only this key and those below it.")
    ] = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="As tables, as in configs/REFERENCE.md.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print every key of the configuration: what it may be, its default, and what it means."""
    from pipeline.cli.reference import chosen, markdown, text_lines, to_json
    from pipeline.config.keys import config_keys

    found = chosen(config_keys(), begin)
    print_facts(to_json(found) if as_json else None, markdown(found) if as_markdown else text_lines(found))


@app.command(needs={"overrides": ["config"]})
def doctor(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="Also check this configuration.")
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Name in one sentence each what would stop or slow a night on this machine. What a run would be refused
    for is refused here, with its sentence and its exit code; the run directory stays as it is.
    """
    from pipeline.cli.doctor import examine

    found = examine(config, overrides or ())
    words = {"ok": "ok  ", "warn": "note", "stop": "STOP"}
    facts = {
        "exit_code": found.exit_code,
        "findings": [
            {"name": finding.name, "level": finding.level, "message": finding.sentence}
            for finding in found.findings
        ],
    }
    print_facts(
        facts if as_json else None,
        [f"{words[finding.level]}  {finding.name}: {finding.sentence}" for finding in found.findings],
    )
    raise typer.Exit(found.exit_code)


add_quality_commands(app)
add_watch_commands(app)


def main() -> None:
    """Entry point: a user's mistake is a sentence, with ``--json`` also an object, and every end has its exit
    code.
    """
    forgive()
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # until a run watches for them itself, nothing is under way that they could harm
        signal.signal(number, lambda *_: sys.exit(EXIT_STOPPED))
    try:
        code = app(standalone_mode=False)
    except OvernightError as error:
        print(f"overnight: {error}", file=sys.stderr)
        code = _failed(str(error), error.exit_code)
    except _WRONG_ARGUMENTS as error:
        error.show()
        code = _failed(error.format_message(), EXIT_USAGE)
    except SystemExit:
        code = _failed("stopped by a signal", EXIT_STOPPED)
    except Exception as error:
        _failed(f"a fault of ours: {type(error).__name__}: {error}", EXIT_FAULT)
        raise
    lost = lost_output()
    if lost is not None and lost.errno != errno.EPIPE:  # nobody misses what a closed pipe, as of head, lost
        print(f"overnight: standard output could not be written: {lost.strerror}", file=sys.stderr)
    if code is None:  # the command gives none of its own: what it printed is all that it did
        code = EXIT_DONE if lost is None else EXIT_FAULT
    sys.exit(code)


def _failed(sentence: str, code: int) -> int:
    """Tell a program that asked for JSON what went wrong. The exit code."""
    asked = itertools.takewhile(lambda word: word != "--", sys.argv[1:])
    if "--json" in asked:
        print_facts({"error": sentence, "exit_code": code}, [])
    return code


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _run_facts(result: RunResult) -> dict[str, Any]:
    return {
        "exit_code": result.exit_code,
        "reason": result.reason,
        "run_directory": str(result.directory),
        "report": str(result.report),
        "status": result.status.to_json(),
        "exports": [output.to_json() for output in result.outputs],
        "settled": dict(result.settled),
    }


def _run_lines(result: RunResult) -> list[str]:
    status = result.status
    lines = [result.headline]
    lines += [
        f"  {name}: " + ", ".join(f"{count:,} {state}" for state, count in states.items() if count)
        for name, states in status.tasks.items()
    ]
    lines += [f"  {name}: {sentence}" for name, sentence in result.settled.items()]
    lines += [f"  {sentence}" for sentence in status.sentences]
    if status.rejected:
        lines.append(f"  {status.rejected:,} rows were rejected: {result.directory}/rejects.jsonl")
    lines.append(f"  report: {result.report}")
    return lines + [f"  {line}" for output in result.outputs for line in table_lines(output.to_json())]


if __name__ == "__main__":
    main()
