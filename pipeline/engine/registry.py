"""Which backend serves a configuration. The one place that knows their names; importing it imports none of
them.

A backend is found by ``engine.backend``: in the table below, among the entry points that installed packages
declare in the group ``overnight.backends``, or, written out as ``module:Class``, where Python finds it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from pipeline.config import Config
from pipeline.engine.interface import Backend
from pipeline.errors import ConfigError

GROUP = "overnight.backends"
AUTO = "transformers"
BUILT_IN: Mapping[str, str] = {"transformers": "pipeline.engine.hf_backend:TransformersBackend"}


Say = Callable[[str], None]
Kind = Callable[[Config, Say], Any]
"""How a backend is made; ``say`` hears what takes long, such as a download."""


def open_backend(config: Config, say: Say = lambda _: None) -> Backend:
    """The backend that ``engine.backend`` names. Raises ConfigError where there is none of that name, or it
    cannot be imported.
    """
    asked = config.engine.backend
    name = AUTO if asked == "auto" else asked
    backend: Backend = _kind(name)(config, say)
    return backend


def known_backends() -> tuple[str, ...]:
    """Names that ``engine.backend`` can take here; an entry point cannot take a built-in one's."""
    return tuple(sorted({*BUILT_IN, *(found.name for found in entry_points(group=GROUP))}))


def _kind(name: str) -> Kind:
    if name in BUILT_IN:
        return _imported(BUILT_IN[name])
    try:
        if ":" in name:
            return _imported(name)
        for found in entry_points(group=GROUP, name=name):
            kind: Kind = found.load()
            return kind
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"engine.backend {name!r} cannot be opened: {error}") from None
    raise ConfigError(
        f"engine.backend {name!r} is no backend that is installed here; there is: "
        f"{', '.join(known_backends())}; or write module:Class"
    )


def _imported(path: str) -> Kind:
    module, _, attribute = path.partition(":")
    kind: Kind = getattr(importlib.import_module(module), attribute)
    return kind
