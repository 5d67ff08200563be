"""The structure of the program in numbers: rooms, the arrows between them, layers, cycles, long files and
functions, and task kinds named outside their own files. ``python tests/structure.py [--json] [--repo DIR]``
imports nothing but the standard library, runs nothing of the program, and reads older checkouts alike.

A room is a folder of ``pipeline/``, a module that lies flat in it, or ``flows``. An arrow is drawn from a
room to another that it imports, wherever in the file the import stands.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("pipeline", "flows")
MAY_LIE_FLAT = frozenset({"config", "records", "errors", "prompts"})
LONG_FILE_LINES = 300
KINDS = frozenset({"label", "summarize"})
KIND_CLASSES = frozenset({"LabelTask", "SummarizeTask"})
REGISTRIES = frozenset({"pipeline/tasks/registry.py", "pipeline/tasks/__init__.py"})
KIND_HOMES = ("pipeline/tasks/", "pipeline/results/kinds/")
_BY_NAME = re.compile(r"(pipeline|flows)(\.\w+)+(:\w+)?")


@dataclass(frozen=True)
class Module:
    """One file of the program: its path under the root, its lines, and its syntax tree."""

    path: str
    lines: int
    tree: ast.Module

    @property
    def room(self) -> str:
        """The folder of ``pipeline/`` that it lies in, its own name where it lies flat, or ``flows``; empty
        for ``pipeline/__init__.py``, which holds a version.
        """
        package, *rest = self.path.split("/")
        if package != "pipeline":
            return package
        return "" if rest == ["__init__.py"] else rest[0].removesuffix(".py")


def read_modules(root: Path = ROOT) -> list[Module]:
    """Every module of the program below ``root``, by path."""
    files = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    texts = ((path, path.read_text(encoding="utf-8")) for path in files)
    return [
        Module(path.relative_to(root).as_posix(), text.count("\n"), ast.parse(text)) for path, text in texts
    ]


def arrows(modules: Iterable[Module]) -> dict[str, set[str]]:
    """Rooms that each room imports."""
    modules = list(modules)
    rooms = {module.room for module in modules} - {""}
    found: dict[str, set[str]] = {room: set() for room in sorted(rooms)}
    for module in modules:
        if module.room:
            found[module.room] |= (_imported_rooms(module) & rooms) - {module.room}
    return found


def _imported_rooms(module: Module) -> set[str]:
    return {room for name in _imported_names(module) if (room := _room_of(name))}


def _imported_names(module: Module) -> Iterator[str]:
    """Dotted names, ``package.module.thing`` where a thing is imported from a module."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(module, node)
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def arrows_by_name(modules: Iterable[Module]) -> list[str]:
    """Rooms that are found by a name while the program runs (registries, processes that are started), which
    no import shows: ``config -> pipeline.tasks.registry:kinds``.
    """
    return sorted(
        {
            f"{module.room} -> {node.value}"
            for module in modules
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and _BY_NAME.fullmatch(node.value)
            if module.room and _room_of(node.value.split(":")[0]) not in ("", module.room)
        }
    )


def _origin(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    folder = module.path.split("/")[: -node.level]
    return ".".join([*folder, node.module] if node.module else folder)


def _room_of(name: str) -> str:
    package, *rest = name.split(".")
    if package == "pipeline":
        return rest[0] if rest else ""
    return package if package in PACKAGES else ""


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of rooms that reach each other, each sorted."""
    reached = {room: _reach(graph, room) for room in graph}
    groups = {
        tuple(sorted(other for other in reached[room] if room in reached[other]))
        for room in graph
        if room in reached[room]
    }
    return sorted(map(list, groups))


def _reach(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        if (room := waiting.pop()) not in seen:
            seen.add(room)
            waiting += graph[room]
    return seen


def layers(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Rooms from the top down, each one lower than all that import it; rooms in a cycle share a layer."""
    reached = {room: _reach(graph, room) for room in graph}
    below = {room: {each for each in reached[room] if room not in reached[each]} for room in graph}
    height: dict[str, int] = {}
    for room in sorted(graph, key=lambda room: len(below[room])):
        height[room] = 1 + max((height[other] for other in below[room]), default=0)
    return [
        sorted(room for room, high in height.items() if high == level)
        for level in sorted(set(height.values()), reverse=True)
    ]


def contract_layers(root: Path = ROOT) -> list[str]:
    """Layers of the import contract in ``pyproject.toml``, from the top down."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return list(next(each["layers"] for each in contracts if each["type"] == "layers"))


def flat_modules(modules: Iterable[Module]) -> list[str]:
    """Modules that lie flat in ``pipeline/``, beside its ``__init__``."""
    paths = [Path(module.path) for module in modules if module.room]
    return sorted(path.stem for path in paths if path.parent == Path("pipeline"))


@dataclass(frozen=True)
class KindNamed:
    """A place where a kind of task is named outside its own files. ``check``: what is done there depends on
    the kind, by a comparison or isinstance; otherwise it is a type or a name.
    """

    path: str
    line: int
    text: str
    check: bool


def kinds_named(modules: Iterable[Module], root: Path = ROOT) -> list[KindNamed]:
    """Where kinds are named outside their own files and the registry."""
    return [
        place
        for module in modules
        if not _of_a_kind(module.path)
        for place in _places(module, (root / module.path).read_text(encoding="utf-8").splitlines())
    ]


def _of_a_kind(path: str) -> bool:
    """Whether a file is a kind's own, a module or a folder of its name where kinds are at home, or the
    registry.
    """
    rest = next((path.removeprefix(home) for home in KIND_HOMES if path.startswith(home)), "")
    return path in REGISTRIES or rest.split("/")[0].removesuffix(".py") in KINDS


def _places(module: Module, source: list[str]) -> list[KindNamed]:
    lines: dict[int, bool] = {}
    for node in ast.walk(module.tree):
        for place, check in _named_at(node):
            lines[place] = lines.get(place, False) or check
    return [KindNamed(module.path, line, source[line - 1].strip(), lines[line]) for line in sorted(lines)]


def _named_at(node: ast.AST) -> Iterator[tuple[int, bool]]:
    """Lines on which a node names a kind, with whether it decides by it. ``"label"`` is a column of gold
    files as well: it is a kind where it is compared with one, stands beside ``"summarize"`` as a key, or is
    passed as ``kind``.
    """
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        if any(_says_kind(side) for side in sides) and any(_literals(side) for side in sides):
            yield node.lineno, True
    elif isinstance(node, ast.Call) and getattr(node.func, "id", None) == "isinstance":
        if any(_is_class(each) for each in ast.walk(node.args[1])):
            yield node.lineno, True
    elif isinstance(node, ast.Dict):
        if {key.value for key in node.keys if isinstance(key, ast.Constant)} >= KINDS:
            yield node.lineno, True
    elif isinstance(node, ast.keyword):
        if node.arg == "kind" and _literals(node.value):
            yield node.value.lineno, False
    elif _is_class(node) or (isinstance(node, ast.Constant) and node.value == "summarize"):
        yield node.lineno, False


def _says_kind(node: ast.expr) -> bool:
    """Whether an expression is a kind: ``kind``, ``task.kind``, ``found["kind"]``."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value == "kind"
    return "kind" in (getattr(node, "id", ""), getattr(node, "attr", ""))


def _literals(node: ast.expr) -> set[str]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and each.value in KINDS}


def _is_class(node: ast.AST) -> bool:
    """Whether a node is the configuration class of a kind: a name, an attribute or something imported."""
    return any(getattr(node, field, None) in KIND_CLASSES for field in ("id", "attr", "name"))


def function_lengths(modules: Iterable[Module]) -> list[tuple[int, str]]:
    """Lines of every function with its signature and docstring, longest first."""
    found = [
        ((node.end_lineno or 0) - node.lineno + 1, f"{module.path}:{node.lineno} {node.name}")
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return sorted(found, reverse=True)


def measure(root: Path = ROOT) -> dict[str, Any]:
    """All of it, as plain values."""
    modules = read_modules(root)
    graph = arrows(modules)
    named = kinds_named(modules, root)
    lengths = function_lengths(modules)
    lines = [module.lines for module in modules]
    return {
        "modules": len(modules),
        "lines": sum(lines),
        "file_lines": _spread(lines),
        "rooms": {room: sorted(targets) for room, targets in graph.items()},
        "arrows": sum(map(len, graph.values())),
        "arrows_by_name": arrows_by_name(modules),
        "layers": layers(graph),
        "contract_layers": contract_layers(root),
        "cycles": cycles(graph),
        "flat_modules": flat_modules(modules),
        "long_files": {module.path: module.lines for module in modules if module.lines > LONG_FILE_LINES},
        "function_lines": _spread([length for length, _ in lengths]),
        "longest_functions": [f"{length} {place}" for length, place in lengths[:5]],
        "kinds_named": [vars(place) for place in named],
        "kind_checks": sum(place.check for place in named),
    }


def _spread(numbers: list[int]) -> dict[str, float]:
    return {
        "median": statistics.median(numbers),
        "p90": statistics.quantiles(numbers, n=10)[-1],
        "max": max(numbers),
    }


def lines_of(found: Mapping[str, Any]) -> list[str]:
    """The measure as lines for people."""
    return [
        f"{found['modules']} modules, {found['lines']:,} lines",
        f"Lines of a file: {_words(found['file_lines'])}; of a function: {_words(found['function_lines'])}",
        *(f"  {place}" for place in found["longest_functions"]),
        f"Files over {LONG_FILE_LINES} lines: {len(found['long_files'])}",
        *(f"  {lines} {path}" for path, lines in found["long_files"].items()),
        f"Flat in pipeline/: {len(found['flat_modules'])}",
        *(["  " + ", ".join(found["flat_modules"])] if found["flat_modules"] else []),
        *_room_lines(found),
        *_kind_lines(found["kinds_named"]),
    ]


def _room_lines(found: Mapping[str, Any]) -> list[str]:
    return [
        f"Rooms: {len(found['rooms'])}; arrows: {found['arrows']}; cycles: {len(found['cycles'])}",
        *(f"  cycle: {', '.join(group)}" for group in found["cycles"]),
        *(f"  {room} -> {', '.join(targets) or 'none'}" for room, targets in found["rooms"].items()),
        f"Found by name while running: {len(found['arrows_by_name'])}",
        *(f"  {arrow}" for arrow in found["arrows_by_name"]),
        f"Layers: {len(found['layers'])}; in the import contract: {len(found['contract_layers'])}",
        *(f"  {number:2} {'  '.join(level)}" for number, level in enumerate(found["layers"], 1)),
    ]


def _kind_lines(named: Iterable[Mapping[str, Any]]) -> list[str]:
    named = list(named)
    checks = [place for place in named if place["check"]]
    return [
        f"Kinds named outside their own files: {_counted(named)}; checks of the kind: {_counted(checks)}",
        *(f"  {place['path']}:{place['line']}: {place['text']}" for place in named),
    ]


def _counted(places: list[Mapping[str, Any]]) -> str:
    return f"{len(places)} lines in {len({place['path'] for place in places})} files"


def _words(spread: Mapping[str, float]) -> str:
    return f"median {spread['median']:g}, p90 {spread['p90']:g}, longest {spread['max']:g}"


def main() -> None:
    """Print the structure of a checkout."""
    parser = argparse.ArgumentParser(description="The structure of the program in numbers.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repo", type=Path, default=ROOT, help="root of the checkout; this one otherwise")
    asked = parser.parse_args()
    found = measure(asked.repo)
    print(json.dumps(found) if asked.json else "\n".join(lines_of(found)))


if __name__ == "__main__":
    main()
