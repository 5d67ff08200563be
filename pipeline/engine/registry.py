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
from pipeline.errors import ConfigError, OvernightError

GROUP = "overnight.backends"
AUTO = "transformers"
BUILT_IN: Mapping[str, str] = {"transformers": "pipeline.engine.hf_backend:TransformersBackend"}


Say = Callable[[str], None]
Kind = Callable[[Config, Say], Any]
"""How a backend is made; ``say`` hears what takes long, such as a download."""
_METHODS = tuple(name for name in vars(Backend) if not name.startswith("_"))


def open_backend(config: Config, say: Say = lambda _: None) -> Backend:
    """The backend that ``engine.backend`` names. Raises ConfigError where there is none of that name, or it
    cannot be made.
    """
    asked = config.engine.backend
    name = AUTO if asked == "auto" else asked
    if name in BUILT_IN:
        ours: Backend = _imported(BUILT_IN[name])(config, say)
        return ours
    try:
        made = _kind(name)(config, say)
    except OvernightError:
        raise
    except (Exception, SystemExit) as error:  # anything may be wrong with a stranger's code
        raise ConfigError(f"engine.backend {name!r} cannot be opened: {_told(error)}") from error
    return _backend(made, name)


def known_backends() -> tuple[str, ...]:
    """Names that ``engine.backend`` can take here; an entry point cannot take a built-in one's."""
    return tuple(sorted({*BUILT_IN, *(found.name for found in entry_points(group=GROUP))}))


def _kind(name: str) -> Kind:
    """What makes a backend that is none of ours; it raises whatever its import does."""
    if ":" in name:
        return _imported(name)
    found = tuple(entry_points(group=GROUP, name=name))
    if not found:
        raise ConfigError(
            f"engine.backend {name!r} is no backend that is installed here; there is: "
            f"{', '.join(known_backends())}; or write module:Class"
        )
    if len(found) > 1:
        whose = " and ".join(sorted(point.dist.name if point.dist else "a package" for point in found))
        raise ConfigError(f"engine.backend {name!r} is a name of several packages: {whose}; uninstall one")
    kind: Kind = found[0].load()
    return kind


def _imported(path: str) -> Kind:
    module, _, attribute = path.partition(":")
    kind: Kind = getattr(importlib.import_module(module), attribute)
    return kind


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, ImportError | AttributeError) else repr(error)


def _backend(made: Any, name: str) -> Backend:
    """``made``, which has all that a backend has."""
    missing = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if missing:
        raise ConfigError(f"engine.backend {name!r} is no backend: it has no {missing[0]}()")
    backend: Backend = made
    return backend
