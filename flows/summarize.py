"""The flow ``summarize``. As a script, ``python flows/summarize.py [CONFIG] [--set A.B=C] [--limit N]``, it
brings a temporary server.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # started as a script: import from the project's folder, not from this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from prefect import flow
from prefect.client.schemas.objects import State

from flows.parameters import ConfigPath, Limit, Overrides
from flows.script import main
from flows.stages import through_the_night


@flow(name="summarize", persist_result=False, retries=0)
def summarize(
    config: ConfigPath = "configs/demo.yaml",
    overrides: Overrides = [],  # noqa: B006  # the form in the web page shows it
    limit: Limit = None,
) -> State[Any]:
    """Write a summary of every document in the configuration's source that has no answer yet. Started again,
    it goes on from there.

    Args:
        config: Path of the YAML configuration, as seen from where `python -m flows.serve` was started.
        overrides: Keys of the configuration to override, each as a.b=c, for example run.deadline="07:00".
        limit: Only the first so many documents; empty for all.
    """
    return through_the_night("summarize", config, overrides, limit)


if __name__ == "__main__":
    sys.exit(main(summarize, "summarize"))
