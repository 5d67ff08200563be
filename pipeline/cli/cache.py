"""``overnight cache``: what the KV store holds, whether it is intact, and making room. Works beside runs that
use the store.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.commands import Commands
from pipeline.cli.common import AsJson, print_facts
from pipeline.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from pipeline.stores.kv.admin import Inspected, Listed
    from pipeline.stores.kv.manifest import EntryKind

app = Commands(name="cache", help="Persisted KV caches: list, verify, prune.", no_args_is_help=True)

StorePath = Annotated[
    Path,
    typer.Argument(
        metavar="PLACE",
        help="A configuration, a run directory, or the folder of a store.",
        show_default=False,
    ),
]
_DAY_SECONDS = 86_400


@app.command()
def ls(place: StorePath, as_json: AsJson = False) -> None:
    """List the entries, last used first; remains of entries that cannot be read are removed."""
    from pipeline.stores.kv import admin

    _show(admin.ls(_folder(place)), "held", as_json=as_json)


@app.command()
def verify(place: StorePath, as_json: AsJson = False) -> None:
    """Read every byte; damaged entries are removed. They cost time, never a result."""
    from pipeline.stores.kv import admin

    _show(admin.verify(_folder(place)), "verified", as_json=as_json)


@app.command()
def prune(
    place: StorePath,
    to: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Remove what is worth least until so much is used, e.g. 5GB."),
    ] = None,
    unused_days: Annotated[
        float | None, typer.Option(min=0, help="Remove what nobody used for so many days.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only prefix, document or checkpoint; may be repeated. Alone: all of these."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Remove all of it, or of the kinds named.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove entries. Deleting them costs time, not results."""
    from pipeline.stores.kv import admin

    limited = to is not None or unused_days is not None
    if not (limited or kind or everything):
        raise UsageError("say what to remove: --to SIZE, --unused-days N, --kind KIND, or --all")
    if limited and everything:
        raise UsageError(
            "--all removes everything; --to and --unused-days leave something: name one or the other"
        )
    pruned = admin.prune(
        _folder(place),
        to_bytes=None if to is None else _bytes(to),
        unused_seconds=None if unused_days is None else unused_days * _DAY_SECONDS,
        kinds=_kinds(kind),
    )
    _show(pruned, "removed", as_json=as_json)


def _folder(place: Path) -> Path:
    """The folder of the store that ``place`` names."""
    if place.is_file():
        from pipeline.config import load_config, store_folder

        return store_folder(load_config(place))
    return place / "kv" if (place / "kv").is_dir() else place


def _bytes(text: str) -> int:
    from pipeline.system.units import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ConfigError(f"--to: {error}") from None


def _kinds(names: list[str] | None) -> list[EntryKind] | None:
    from pipeline.stores.kv.manifest import KINDS

    unknown = [name for name in names or () if name not in KINDS]
    if unknown:
        raise UsageError(f"there is no kind {unknown[0]!r} of cache; kinds are {', '.join(KINDS)}")
    return [kind for kind in KINDS if kind in names] if names else None


def _show(found: Inspected, verb: str, *, as_json: bool) -> None:
    # also those whose manifest told it: they are no entries any more
    damaged = found.warnings.get("damaged", 0)
    removed = f"; {damaged:,} damaged and removed" if damaged else ""
    left = "".join(
        f"; {what}: {count:,}" for what, count in sorted(found.warnings.items()) if what != "damaged"
    )
    total = f"{len(found.entries):,} entries {verb}{removed}{left}; {found.used_bytes / 1e6:,.1f} MB used"
    facts = {
        "entries": [_facts(entry) for entry in found.entries],
        "used_bytes": found.used_bytes,
        "warnings": dict(found.warnings),
    }
    print_facts(facts if as_json else None, [*map(_line, found.entries), total])


def _facts(entry: Listed) -> dict[str, Any]:
    facts = {name: getattr(entry, name) for name in entry.__dataclass_fields__}
    return {**facts, "fingerprint": dict(entry.fingerprint), "owner": dict(entry.owner)}


def _line(entry: Listed) -> str:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used))
    text = (
        f"{entry.entry_id[:12]}  {entry.kind:<10} {entry.tokens:>8,} tokens "
        f"{entry.size_bytes / 1e6:>10,.1f} MB  "
    )
    text += f"{entry.storage_format:<11} took {entry.seconds:,.1f} s, used {used}"
    return text if entry.problem is None else f"{text}  DAMAGED: {entry.problem}"
