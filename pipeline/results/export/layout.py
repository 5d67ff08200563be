"""What a table is to look like: its format, and which columns it has beside the usual ones."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pipeline.errors import UsageError

Format = Literal["jsonl", "csv", "tsv", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)
_BY_ENDING: dict[str, Format] = {f".{name}": name for name in FORMATS}


@dataclass(frozen=True, slots=True)
class Layout:
    """``format``: None for that of the file's name. ``fields``: columns of the source, None for all of them.
    ``flat``: a column for each number that is otherwise part of an object.
    """

    format: Format | None = None
    fields: tuple[str, ...] | None = ()
    flat: bool = False

    @property
    def has_source(self) -> bool:
        """Whether columns of the source stand beside the answers."""
        return self.fields is None or bool(self.fields)

    def format_of(self, output: Path | None) -> Format:
        """Of a file, or of standard output (None). Raises UsageError where name and format do not agree."""
        if output is None:
            return self.format or "jsonl"
        named = _BY_ENDING.get(output.suffix.lower())
        if named is not None and self.format not in (None, named):
            raise UsageError(
                f"cannot export to {output}: by its name it is {named}, and the format is said to be "
                f"{self.format}; leave out one of the two"
            )
        found = self.format or named
        if found is None:
            endings = ", ".join(list(_BY_ENDING)[:-1])
            raise UsageError(
                f"cannot export to {output}: the name must end in {endings} or {list(_BY_ENDING)[-1]}, or a "
                f"format be given"
            )
        return found


@dataclass(frozen=True, slots=True)
class Output:
    """A table that is asked for: in a file, or on standard output (``path`` None)."""

    path: Path | None
    layout: Layout = Layout()

    @property
    def name(self) -> str:
        """As the command line has it."""
        return "-" if self.path is None else str(self.path)

    def command(self, directory: Path) -> str:
        """What writes it at any time from a run directory."""
        layout = self.layout
        words = ["overnight", "export", str(directory), "-o", self.name]
        words += ["--all-fields"] if layout.fields is None else []
        words += [word for name in layout.fields or () for word in ("--with", name)]
        words += ["--flat"] if layout.flat else []
        words += ["--format", layout.format] if layout.format is not None else []
        return shlex.join(words)
