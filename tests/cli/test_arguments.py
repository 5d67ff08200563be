"""Options of all commands: given twice they add up or are refused, and none is dropped."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from flows import script, serve
from pipeline.cli.commands import Command
from pipeline.cli.main import app
from pipeline.errors import UsageError


def commands(group: Any, words: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Command]]:
    found: list[tuple[tuple[str, ...], Command]] = []
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        found += commands(command, (*words, name)) if inner else [((*words, name), command)]
    return found


COMMANDS = commands(typer.main.get_command(app))
OPTIONS = [
    (words, param)
    for words, command in COMMANDS
    for param in command.params
    if str(param.opts[0]).startswith("-")
]


def test_every_command_looks_at_its_arguments() -> None:
    assert len(COMMANDS) > 15
    assert all(isinstance(command, Command) for _, command in COMMANDS)


@pytest.mark.parametrize(
    ("words", "param"),
    [case for case in OPTIONS if not case[1].is_flag],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value.name),
)
def test_an_option_twice_adds_up_or_is_refused(words: tuple[str, ...], param: Any) -> None:
    """Before anything is looked at: the places named here do not exist."""
    option = max(param.opts, key=len)
    given = [*words, *["nowhere"] * 2, option, "x", option, "x"]
    done = CliRunner().invoke(app, given)
    said = f"{option} stands 2 times; give it once"
    refused = isinstance(done.exception, UsageError) and str(done.exception) == said
    assert refused is not bool(param.multiple), (done.output, done.exception)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("calibrate r --label-field x", "--label-field says nothing without --gold"),
        ("evaluate r --label-field x --references f", "--label-field says nothing without --gold"),
        ("evaluate r --gold f --reference-field x", "--reference-field says nothing without --references"),
        ("evaluate r --gold f --plot-format svg", "--plot-format says nothing without --plots or --plots-to"),
        ("review r -o x.csv --label-field x", "--label-field says nothing without --gold"),
        ("doctor --set a=b", "--set says nothing without [CONFIG]"),
        ("plan c --plot-format svg", "--plot-format says nothing without --plots"),
        ("plan c --disk sata", "--disk says nothing without --vram or --ram or --pcie or --cores"),
        ("bench c --context 5", "--context says nothing without --placements"),
        ("bench c --placements --documents 5", "--documents says nothing beside --placements"),
    ],
)
def test_an_option_that_would_be_dropped_is_refused(given: str, said: str) -> None:
    done = CliRunner().invoke(app, given.split())
    assert isinstance(done.exception, UsageError), done.output
    assert said in str(done.exception)


def test_a_home_is_one_where_the_shell_leaves_it(tmp_path: Path) -> None:
    command = dict(COMMANDS)[("export",)]
    context = command.make_context("export", ["r", "--output=~/x.csv"])
    assert context.params["output"] == [Path.home() / "x.csv"]


@pytest.mark.parametrize("parser", [script._parser("label"), serve._parser()], ids=["script", "serve"])
def test_scripts_of_the_flows_drop_nothing_either(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    for action in parser._actions:
        if action.option_strings and action.nargs != 0 and action.dest != "overrides":
            option = action.option_strings[-1]
            with pytest.raises(SystemExit):
                parser.parse_args([option, "1", option, "2"])
            assert f"{option} stands twice" in capsys.readouterr().err.replace("\n", " ")
