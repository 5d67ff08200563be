"""What is computed over a run's answers at its end, as their kinds want it; and what is checked for that
before the night.
"""

from __future__ import annotations

import logging

from pipeline.config import Config
from pipeline.stores.ledger.ledger import Ledger
from pipeline.tasks.registry import answers_of

_log = logging.getLogger(__name__)


def check_configured(config: Config) -> None:
    """Before a run: what its end will need of the configuration is there. Raises UsageError."""
    for task in config.tasks:
        answers_of(task.kind).check(task)


def settle_answers(ledger: Ledger, config: Config) -> dict[str, str]:
    """After a run: by task, a sentence about what could not be computed over its answers.

    Never raises: how answers are seen must not take away a night's report.
    """
    known = {task.job.name: task for task in ledger.tasks()}
    told = {}
    for task in config.tasks:
        if task.name not in known:
            continue
        answers = answers_of(task.kind)
        try:
            told[task.name] = answers.settle(ledger, known[task.name], task)
        except Exception as error:  # noqa: BLE001  # see above
            _log.exception("task %s: %s", task.name, answers.unsettled)
            told[task.name] = f"{answers.unsettled}: {error}"
    return {name: sentence for name, sentence in told.items() if sentence}
