"""``overnight bench``: how fast this machine does a configuration's own documents, beside the ways people do
it by hand.

All contestants run in one process on one loaded model, in turn, several times over; what counts is the median
of the ratios taken inside one turn, because machines are shared and their speed drifts. The naive loop would
take all night, so it gets a few documents a turn, spread over the lengths, and its time is scaled to all
documents by their tokens.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.bench.contestants import Contest, open_contest
from pipeline.bench.probe import PROBE_DOCUMENTS, speeds
from pipeline.bench.results import BenchResult
from pipeline.bench.turns import BenchOptions, Say, Turns
from pipeline.bench.weights import open_weights
from pipeline.config import Config
from pipeline.errors import UsageError
from pipeline.prepare.measured_speeds import measured_by, remember
from pipeline.prepare.prepare import Preparation, prepare, resolve
from pipeline.records import Decode, Document, Request
from pipeline.sources import read_source
from pipeline.system.machine_load import OthersLoad
from pipeline.tasks import Task
from pipeline.tasks.driver import TaskDriver


def bench(config: Config, options: BenchOptions | None = None, say: Say = lambda _: None) -> BenchResult:
    """Measure. Raises UsageError, ConfigError, DoesNotFit, SourceError; loads the model into this process."""
    options = options or BenchOptions()
    backend = open_weights(config, say)
    prepared = prepare(config, backend, resolve(config, backend, {}))
    task = _task(prepared, options.task)
    requests = first_questions(task, documents_of(config, options.documents), options.to_the_end)
    with tempfile.TemporaryDirectory() as folder:
        contest = open_contest(backend, prepared.plan, Path(folder), say, to_the_end=options.to_the_end)
        result = Turns(contest, task, requests, options, say).run()
        _calibrate(config, str(prepared.plan.dtype), task, contest, requests, result, options)
        return result


def _calibrate(
    config: Config,
    dtype: str,
    task: Task,
    contest: Contest,
    requests: Sequence[Request],
    result: BenchResult,
    options: BenchOptions,
) -> None:
    """Let the plan know how fast the model is here, and how long its answers are."""
    written = (
        {task.job.fingerprint: result.output_tokens}
        if result.output_tokens and not options.to_the_end
        else {}
    )
    others = OthersLoad()
    seen = speeds(contest, requests)
    remember(config, dtype, **seen, origin=measured_by("overnight bench", others), output_tokens=written)


def measure_speeds(config: Config, say: Say = lambda _: None) -> dict[str, Any]:
    """Only our own engine, on a few documents: enough for the plan. Loads the model, keeps what was seen.

    Raises ConfigError, DoesNotFit, SourceError, UsageError.
    """
    backend = open_weights(config, say)
    resolved = resolve(config, backend, {})
    prepared = prepare(config, backend, resolved)
    found = documents_of(config, PROBE_DOCUMENTS)
    asked = first_questions(prepared.tasks[0], found, to_the_end=True)
    with tempfile.TemporaryDirectory() as folder:
        contest = open_contest(backend, prepared.plan, Path(folder), say, to_the_end=True)
        say("timing the model")
        others = OthersLoad()
        seen = speeds(contest, asked)
    origin = measured_by("overnight plan --measure", others)
    remember(config, str(resolved["dtype"]), **seen, origin=origin)
    return seen


def _task(prepared: Preparation, name: str | None) -> Task:
    found = [task for task in prepared.tasks if name in (None, task.job.name)]
    if not found:
        raise UsageError(
            f"there is no task {name!r}; the configuration has "
            f"{', '.join(task.job.name for task in prepared.tasks)}"
        )
    return found[0]


def documents_of(config: Config, count: int) -> list[Document]:
    """The first ``count`` documents. Raises UsageError where there are fewer than two."""
    rows = (item for item in read_source(config.source, ()) if isinstance(item, Document))
    documents = list(itertools.islice(rows, count))
    if len(documents) < 2:
        raise UsageError(
            f"the source has {len(documents)} readable documents; a comparison needs at least two"
        )
    return documents


def first_questions(task: Task, documents: Sequence[Document], to_the_end: bool) -> list[Request]:
    """The first question of every document; of one read in parts, its first part."""
    driver = TaskDriver(per_work=1)
    for document in {task.job.key(document): document for document in documents}.values():
        driver.begin(task, document, 1, {})
    requests = driver.requests()
    if not to_the_end:
        return requests
    return [dataclasses.replace(request, ask=_to_the_end(request.ask)) for request in requests]


def _to_the_end(ask: Any) -> Any:
    return dataclasses.replace(ask, loops_end=False) if isinstance(ask, Decode) else ask
