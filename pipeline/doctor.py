"""``overnight doctor``: one sentence for each thing that would stop or slow a night on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pipeline.backends import open_backend
from pipeline.config import Config, load_config
from pipeline.engine.facts import Finding, check_environment
from pipeline.errors import OvernightError
from pipeline.preparation import prepare, resolve
from pipeline.records import Reject
from pipeline.sources import read_source, source_files

_FREE_DISK_BYTES = 2 * 10**9


def examine(config: Path | None, overrides: Sequence[str] = ()) -> list[Finding]:
    """The machine, and with a configuration whether its model, source and run directory would work. Loads no weights."""
    findings = list(check_environment())
    if config is not None:
        findings += _examine_config(load_config(config, overrides))
    return findings


def _examine_config(config: Config) -> Iterator[Finding]:
    yield from _try("model", _model, config)
    yield from _try("source", _source, config)
    folder = Path(config.run.directory).absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    told, floor = f"{free / 1e9:.1f} GB are free where the run directory is", config.run.keep_free_disk
    if free < floor:
        yield Finding("disk", "stop", f"{told}, less than run.keep_free_disk = {floor / 1e9:.1f} GB: free some space or lower it")
        return
    yield Finding("disk", "ok" if free >= _FREE_DISK_BYTES else "warn", told)


def _try(name: str, look: Callable[[Config], Iterator[Finding]], config: Config) -> Iterator[Finding]:
    try:
        yield from look(config)
    except OvernightError as error:
        yield Finding(name, "stop", str(error))


def _model(config: Config) -> Iterator[Finding]:
    backend = open_backend(config)
    prepared = prepare(config, backend, resolve(config, backend, {}))
    yield Finding("model", "ok", "; ".join(prepared.plan.reasons))
    for note in prepared.notes:
        yield Finding("prompt", "warn", note)


def _source(config: Config) -> Iterator[Finding]:
    files = source_files(config.source)
    first = next(read_source(config.source), None)
    if first is None:
        yield Finding("source", "warn", "the source is empty")
    elif isinstance(first, Reject):
        yield Finding("source", "warn", f"the first row is rejected: {first.origin.file}, line {first.origin.line}: {first.reason}")
    else:
        yield Finding("source", "ok", f"{len(files) or 'some'} files; the first document is {first.id!r}, {len(first.text):,} characters")
