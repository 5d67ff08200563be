"""``overnight reproduce``: one document of a run asked about again, alone, in a run directory of its own
beneath the other.

The run that it is from is only read. What happened to the document there (the worker died, the model raised)
happens here at once, with nothing beside it, and its traces are in one small log.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from pipeline.config import parse_config
from pipeline.errors import UsageError
from pipeline.records import Progress, digest
from pipeline.run.runner import RunResult, run
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.run_directory import LEDGER, RunDirectory
from pipeline.system.stop_signal import StopSignal


def reproduce(
    directory: Path, document_id: str, observer: Callable[[Progress], None], stop: StopSignal
) -> RunResult:
    """Run the configuration of the latest run over the documents of this id. Raises UsageError when the run
    has never seen it.
    """
    with Ledger.open(directory / LEDGER, write=False) as ledger:
        if not ledger.documents(document_id):
            raise UsageError(f"the run in {directory} has seen no document with the id {document_id!r}")
        config = parse_config(ledger.runs()[-1]["facts"]["config"])
    place = RunDirectory(directory).reproduced / digest(document_id)[:12]
    shutil.rmtree(place, ignore_errors=True)  # an earlier look at it: here everything is to be tried again
    changed: dict[str, object] = {"directory": str(place), "deadline": None, "max_attempts": 1, "output": []}
    alone = config.run.model_copy(update=changed)
    return run(config.model_copy(update={"run": alone}), only=document_id, observer=observer, stop=stop)
