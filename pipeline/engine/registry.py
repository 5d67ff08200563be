"""Which backend serves a configuration. The one place that knows their names; importing it imports none of
them.
"""

from __future__ import annotations

import importlib
import os

from pipeline.config import Config
from pipeline.engine.interface import Backend
from pipeline.errors import UsageError

DEFAULT = "pipeline.engine.hf_backend:TransformersBackend"
VARIABLE = "OVERNIGHT_BACKEND"


def open_backend(config: Config) -> Backend:
    """The backend named by $OVERNIGHT_BACKEND ("module:Class", how tests put a scripted engine in), else
    transformers.
    """
    name = os.environ.get(VARIABLE, DEFAULT)
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        if name != DEFAULT:
            raise UsageError(f"{VARIABLE}={name!r} names no backend: {error}") from None
        raise
    backend: Backend = kind(config)
    return backend
