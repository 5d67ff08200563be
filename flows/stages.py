"""The stages of a night as Prefect tasks, and the body that all flows share.

Prefect only displays: no caching (its cache would pickle inputs and never hit), no persisted results, no
retries and no concurrency limits (their leases kill healthy runs); the run directory's lock and ledger do
that work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort
from prefect.states import Completed, Failed

from flows import board, night
from flows.logs import calm_logs
from flows.night import Ending, Facts
from flows.standing_aside import go_back
from pipeline.errors import OvernightError


@task(name="check the configuration", cache_policy=NO_CACHE, persist_result=False)
def check_configuration(kind: str, config: str, overrides: Sequence[str], limit: int | None) -> Facts:
    """Refuse early what cannot work."""
    return night.check(kind, config, overrides, limit)


@task(name="run the night", cache_policy=NO_CACHE, persist_result=False)
def run_the_night(kind: str, config: str, overrides: Sequence[str], limit: int | None) -> Facts:
    """Do what the run directory does not hold yet."""
    with board.Board(kind) as observer:
        return night.work(kind, config, overrides, limit, observer=observer, patient=board.is_served())


@task(name="publish the report", cache_policy=NO_CACHE, persist_result=False)
def publish_report(kind: str, run_directory: str, tasks: Sequence[str]) -> bool:
    """Show in the UI the report on each task that is this flow's."""
    return board.publish(kind, night.reports(run_directory, tasks))


def through_the_night(kind: str, config: str, overrides: Sequence[str], limit: int | None) -> State[Any]:
    """The body of every flow. The state's name says how the night ended; a user's mistake is a failure with
    its sentence.
    """
    calm_logs()
    go_back()
    try:
        checked = check_configuration(kind, config, overrides, limit)
        facts = run_the_night(kind, config, overrides, limit)
    except OvernightError as error:
        night.ended.get()(Ending(error.exit_code, "Failed", str(error)))
        return Failed(message=str(error), data=error)
    end = night.ending(facts)
    if end.name != "AlreadyRunning":
        publish_report(kind, facts["run_directory"], checked["tasks"])
    if board.is_being_cancelled():
        # the server takes no ending of ours for a cancelled run; the serving process writes it
        raise Abort("cancelled")
    return Completed(name=end.name, message=end.message, data=facts)
