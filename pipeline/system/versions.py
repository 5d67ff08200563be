"""Versions of the stack, read from package metadata: importing this imports none of the packages. Our own is
that of the code that runs.
"""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

from pipeline import __version__

STACK: tuple[str, ...] = (
    "torch",
    "transformers",
    "accelerate",
    "bitsandbytes",
    "tokenizers",
    "safetensors",
    "huggingface-hub",
)
STACK += ("datasets", "pyarrow", "prefect")


def stack_versions() -> dict[str, str]:
    """Version by name of ``overnight``, Python and the libraries that shape results; "not installed" where
    one is missing.
    """
    libraries = {name: version_of(name) for name in STACK}
    return {"overnight": __version__, **libraries, "python": platform.python_version()}


@cache  # looking through all that is installed takes milliseconds each time
def version_of(name: str) -> str:
    """Installed version of one distribution, as it was when it was first asked for."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
