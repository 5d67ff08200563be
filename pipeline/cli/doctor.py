"""``overnight doctor``: one sentence for each thing that would stop or slow a night on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pipeline.config import Config, load_config, store_folder
from pipeline.engine.model.environment_checks import Finding, check_environment
from pipeline.errors import OvernightError
from pipeline.prepare.preview import Preview, look
from pipeline.records import Reject
from pipeline.results.outputs import check_outputs, configured
from pipeline.sources import read_source, source_files
from pipeline.system.hardware import disk_of
from pipeline.system.run_directory import RunDirectory
from pipeline.system.units import amount, duration
from pipeline.tasks.registry import broken_kinds

_FREE_DISK_BYTES = 10**9  # beside the floor
# Of a night: longer work needs several.
_NIGHT_SECONDS = 12 * 3600
_SLOW_TIMES = 1.5


def examine(config: Path | None, overrides: Sequence[str] = ()) -> list[Finding]:
    """The machine, and with a configuration whether its model, source and run directory would work. Loads no
    weights.
    """
    findings = list(check_environment())
    findings += [Finding("kinds", "warn", reason) for reason in broken_kinds().values()]
    if config is not None:
        findings += _examine_config(load_config(config, overrides))
    return findings


def _examine_config(config: Config) -> Iterator[Finding]:
    yield from _try("run directory", _directory, config)
    yield from _try("source", _source, config)
    yield from _try("output", _outputs, config)
    yield from _try("model", _night, config)


def _try(name: str, examine_one: Callable[[Config], Iterator[Finding]], config: Config) -> Iterator[Finding]:
    try:
        yield from examine_one(config)
    except OvernightError as error:
        yield Finding(name, "stop", str(error))


def _directory(config: Config) -> Iterator[Finding]:
    RunDirectory(config.run.directory).check()
    yield from ()


def _outputs(config: Config) -> Iterator[Finding]:
    check_outputs(config, configured(config))
    yield from ()


def _night(config: Config) -> Iterator[Finding]:
    """What the plan says, a sentence each."""
    found = look(config)
    if not found.tasks or not found.fingerprints:
        yield Finding("model", "stop", found.remarks[0])
        return
    yield from _memory(found)
    yield from _disk(found)
    yield from _time(found)
    for note in dict.fromkeys(note for task in found.tasks for note in task.notes):
        yield Finding("prompt", "warn", note)
    for warning in found.forecast.warnings if found.forecast else ():
        yield Finding("memory", "warn", warning)


def _memory(found: Preview) -> Iterator[Finding]:
    if found.refused is not None:
        yield Finding("model", "stop", found.refused)
        return
    forecast = found.forecast
    if forecast is None:
        yield Finding(
            "model", "warn", f"{found.ground.cannot_plan}; a run works, its memory is not predicted"
        )
        return
    peaks = ", ".join(
        f"{amount(size)} of {name} at most"
        for name, size in (
            ("VRAM", forecast.vram_peak_bytes),
            ("RAM", forecast.ram_peak_bytes - forecast.ram_mapped_bytes),
        )
        if size
    )
    slow = forecast.step is not None and forecast.step.slowdown >= _SLOW_TIMES
    if forecast.verdict == "resident":
        yield Finding("model", "ok", f"{found.ground.shape.describe()}: it fits, with {peaks}")
    elif forecast.fits:
        times = f", decoding {forecast.step.slowdown:.1f} times slower" if slow and forecast.step else ""
        better = f"; {forecast.next_steps[0]}" if forecast.next_steps else ""
        yield Finding(
            "model", "warn" if slow else "ok", f"it works as {forecast.verdict}, with {peaks}{times}{better}"
        )
    else:
        steps = "; ".join(forecast.next_steps)
        yield Finding(
            "model", "warn", f"documents near the whole context do not fit: {forecast.reasons[-1]}; {steps}"
        )


def _disk(found: Preview) -> Iterator[Finding]:
    """The run directory's disk, and that of a store that lies elsewhere."""
    forecast, store = found.forecast, found.config.kv_cache.store
    kept = min(forecast.store_bytes or 0, store.quota) if forecast and forecast.keep_documents else 0
    needed = (forecast.disk_peak_bytes if forecast else 0) + _FREE_DISK_BYTES
    if store.path is not None and kept:
        needed -= kept
        yield _room(
            store_folder(found.config),
            kept + store.keep_free,
            "the KV store",
            "kv_cache.store.path, or lower its quota",
        )
    floor = found.config.run.keep_free_disk
    yield _room(Path(found.config.run.directory), needed + floor, "the run directory", "run.directory", floor)


def _room(folder: Path, needed_bytes: int, what: str, remedy: str, floor_bytes: int = 0) -> Finding:
    """With less than ``floor_bytes`` free a run stops at once."""
    free_bytes = disk_of(folder).free_bytes
    free = f"{free_bytes / 1e9:.1f} GB are free where {what} is"
    if free_bytes < floor_bytes:
        return Finding(
            "disk",
            "stop",
            f"{free}, less than run.keep_free_disk = {floor_bytes / 1e9:.1f} GB: free some space or lower it",
        )
    if free_bytes >= needed_bytes:
        return Finding("disk", "ok", free)
    return Finding(
        "disk", "warn", f"{free}, and {needed_bytes / 1e9:.1f} GB may be needed; free some, or move {remedy}"
    )


def _time(found: Preview) -> Iterator[Finding]:
    work = found.forecast.work if found.forecast else None
    for remark in found.remarks:
        yield Finding("time", "warn", remark)
    if work is None or found.forecast is None or not found.loads:
        return
    told = (
        f"{found.documents:,} documents take about {duration(work.seconds)} "
        f"({work.documents_per_hour:,.0f} an hour)"
    )
    deadline = found.forecast.deadline_seconds
    if deadline is not None and work.seconds > deadline:
        late = duration(work.seconds - deadline)
        yield Finding(
            "time",
            "warn",
            f"{told}, {late} more than until run.deadline; the rest is done by the same command later",
        )
    elif work.seconds > _NIGHT_SECONDS:
        yield Finding(
            "time", "warn", f"{told}: more than one night; the same command goes on in the next one"
        )
    else:
        known = "" if found.ground.calibration.measured else "; overnight plan --measure makes this exact"
        yield Finding("time", "ok", f"{told}{known}")


def _source(config: Config) -> Iterator[Finding]:
    files = source_files(config.source)
    first = next(read_source(config.source), None)
    if first is None:
        yield Finding("source", "warn", "the source is empty")
    elif isinstance(first, Reject):
        yield Finding(
            "source",
            "warn",
            f"the first row is rejected: {first.origin.file}, line {first.origin.line}: {first.reason}",
        )
    else:
        yield Finding(
            "source",
            "ok",
            f"{len(files) or 'some'} files; the first document is {first.id!r}, {len(first.text):,} "
            f"characters",
        )
