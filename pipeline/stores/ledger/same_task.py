"""Whether a task that is asked for is one that the ledger holds: all that can change an answer is the same.

Weights are the same where a name that both sides know says so: the digest of their files, the commit of their
repository, the file of the packaged model. How somebody calls the model, its id, a folder or a branch,
distinguishes only models of which nothing else is known. Ledgers of earlier versions recorded that, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_CALLED = ("id", "revision")
_NAMES = (("weights",), ("repository", "commit"), ("model", "gguf"))


def same_task(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    """Whether two identities of a task mean the same question to the same model."""
    one, other = told_apart_by(recorded, asked)
    return one == other


def told_apart_by(
    recorded: Mapping[str, Any], asked: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both identities, as plain values, without what does not count between these two."""
    one, other = (json.loads(json.dumps(identity)) for identity in (recorded, asked))
    models = [identity.get("model") for identity in (one, other)]
    if all(isinstance(model, Mapping) and isinstance(model.get("weights"), Mapping) for model in models):
        shared = _shared_names(*(model["weights"] for model in models))
        for model in models:
            for name in _CALLED:
                model.pop(name, None)
            if shared:
                model["weights"] = {
                    name: value for name, value in model["weights"].items() if name in (*shared, "code")
                }
    return one, other


def _shared_names(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, ...]:
    """The first names of weights that both know; empty where there are none."""
    return next((names for names in _NAMES if all(name in one and name in other for name in names)), ())
