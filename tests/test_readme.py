"""What the READMEs name is there: files, commands with their options, keys of the configuration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from pipeline.cli.main import app
from pipeline.config.keys import config_keys

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path for folder in ("pipeline", "flows", "tests", "data") for path in (ROOT / folder).rglob("README.md")
)
PAGES = [ROOT / "README.md", ROOT / "configs" / "REFERENCE.md", *PAGES]
RETIRED = {"engine.decoder"}
_SECTION = r"(?:model|kv_cache|source|generation|engine|run)"

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def code(page: Path) -> str:
    """What stands in blocks and spans of code, a line each."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`([^`]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE))
    return "\n".join([*blocks, *(" ".join(span.split()) for span in spans)])


@pages
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        file, _, heading = target.partition("#")
        place = page if not file else page.parent / file
        assert place.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.+)$", place.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}, (
                target
            )


def command_of(words: list[str]) -> TyperCommand | TyperGroup | None:
    """The command that a line begins with, of a group or not."""
    found: Any = typer.main.get_command(app)
    for word in words:
        if not isinstance(found, TyperGroup):
            break
        if word not in found.commands:
            return None
        found = found.commands[word]
    assert isinstance(found, TyperCommand | TyperGroup)
    return found


def commands(page: Path) -> list[str]:
    """Lines of code that ask for something of the program, without remarks."""
    lines = [line.split("#")[0] for line in code(page).splitlines()]
    return [found for line in lines for found in re.findall(r"(?<![\w.-])overnight ([a-z]\w*[^|;&…]*)", line)]


@pages
def test_commands_and_their_options_exist(page: Path) -> None:
    for line in commands(page):
        found = command_of(line.split())
        assert found is not None, f"overnight {line}"
        known = {option for each in found.params for option in (*each.opts, *each.secondary_opts)}
        asked = set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", line))
        assert asked <= known | {"--help"}, f"overnight {line}"


def test_the_readme_names_every_command() -> None:
    named = {line.split()[0] for line in commands(ROOT / "README.md")}
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    assert set(group.commands) - named == set()


@pages
def test_keys_exist(page: Path) -> None:
    known = {key.key for key in config_keys()}
    known |= {key.rsplit(".", depth)[0] for key in known for depth in (1, 2)}
    named = set(re.findall(rf"(?<![\w./]){_SECTION}(?:\.[a-z_]+)+(?![\w./(])", code(page)))
    assert {name for name in named if not name.endswith(".py")} <= known | RETIRED


@pages
def test_files_exist(page: Path) -> None:
    """Paths from the root, from ``pipeline/`` or from the page's own room; what runs write is not meant."""
    for name in re.findall(r"(?<![\w/.<>-])[a-z_][\w/]*\.py(?!\w)", code(page)):
        assert any((start / name).is_file() for start in (ROOT, ROOT / "pipeline", page.parent)), name
    for module in re.findall(r"python -m ((?:flows|pipeline)[\w.]+)", code(page)):
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), module
