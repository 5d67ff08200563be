"""One flow a registered kind of task, called like it; ``flows.kinds.NAME`` is the flow of that kind."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.flows import Flow

from flows.parameters import ConfigPath, Limit, Overrides
from flows.stages import through_the_night
from pipeline.errors import ConfigError
from pipeline.tasks.registry import kind_of, kinds


def flow_of(kind: str) -> Flow[Any, Any]:
    """The flow of a kind. Raises ConfigError for one that there is not."""
    told = (
        f"{kind_of(kind).does} in the configuration's source that has no answer yet. Started again, it goes "
        f"on from there."
    )

    @flow(name=kind, flow_run_name=run_name, description=told, persist_result=False, retries=0)
    def night(
        config: ConfigPath = "configs/demo.yaml",
        overrides: Overrides = [],  # noqa: B006  # the form in the web page shows it
        limit: Limit = None,
    ) -> State[Any]:
        """Do what has no answer yet.

        Args:
            config: Path of the YAML configuration, as seen from where `overnight serve` was started.
            overrides: Keys of the configuration to override, each as a.b=c, for example run.deadline="07:00".
            limit: Only the first so many documents; empty for all.
        """
        return through_the_night(kind, config, overrides, limit)

    # A serving process tells its runs where their flow is by its module and this name: see __getattr__.
    vars(night)["__name__"] = kind
    return night


def run_name() -> str:
    """What a run is called: its configuration, and when it began."""
    context = FlowRunContext.get()
    assert context is not None  # asked for where one begins
    assert context.parameters is not None
    return f"{Path(context.parameters['config']).stem} {datetime.now():%Y-%m-%d %H:%M}"


def flows() -> list[Flow[Any, Any]]:
    """Of every registered kind, in their order."""
    return [flow_of(kind) for kind in kinds()]


def __getattr__(name: str) -> Flow[Any, Any]:
    try:
        return flow_of(name)
    except ConfigError as error:
        raise AttributeError(str(error)) from None
