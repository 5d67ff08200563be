"""Whether there is a Prefect server to talk to, said in one sentence when there is not."""

from __future__ import annotations

from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from pipeline.errors import UsageError

_START = "prefect server start"
_SET = "prefect config set PREFECT_API_URL=http://127.0.0.1:4200/api"


def require_server() -> str:
    """The API's address. Raises UsageError when none is set or nothing answers there."""
    address: str | None = PREFECT_API_URL.value()
    if not address:
        raise UsageError(
            f"PREFECT_API_URL is not set, so no server can schedule anything: start one with `{_START}`, "
            f"then `{_SET}`"
        )
    where = f"the Prefect server at {address}"
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(sync_client=True, httpx_settings={"timeout": 10}) as client,
    ):
        problem = client.api_healthcheck()
    if problem is not None:
        raise UsageError(
            f"{where} does not answer ({problem}): start it with `{_START}`, or correct PREFECT_API_URL"
        )
    return address
