"""The device, compiled for this Python's torch: by g++, once, kept in ``.tests-cache/`` of the checkout.

Imports nothing that imports torch: a process has to have the device before torch looks for one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from filelock import FileLock

NATIVE = Path(__file__).parent / "native"
KEPT = Path(__file__).parents[2] / ".tests-cache" / "pretend_card"
MODULE = "pretend_card_native"
NO_COMPILER = "the pretended card is compiled by g++, and there is none"
NO_HEADERS = "the pretended card is compiled with Python's headers, and they are not installed"
_FLAGS = ("-O1", "-std=c++20", "-fPIC", "-shared", "-w", f"-DTORCH_EXTENSION_NAME={MODULE}")


class CannotBuild(RuntimeError):
    """The compiler does not like the sources; the message is what it said."""


class NoCompiler(CannotBuild):
    """What a compiler needs is not here."""


def built() -> Path:
    """The shared library; compiled, a minute, unless it has been. Several processes may ask at once.

    Raises NoCompiler, or CannotBuild.
    """
    library = KEPT / _digest() / f"{MODULE}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(library.with_suffix(".lock")):
        if not library.exists():
            _compile(library)
    return library


def compiler() -> str | None:
    """The compiler's path; ``CXX`` may name another."""
    return shutil.which(os.environ.get("CXX", "g++"))


def _digest() -> str:
    found = hashlib.sha256(repr((_FLAGS, sys.version, _torch_version())).encode())
    for source in sorted(NATIVE.glob("*.[hc]pp")):
        found.update(source.name.encode() + source.read_bytes())
    return found.hexdigest()[:16]


def _torch_version() -> str:
    return importlib.metadata.version("torch")


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise CannotBuild("torch is not installed")
    return Path(spec.origin).parent


def _compile(library: Path) -> None:
    program = compiler()
    if program is None:
        raise NoCompiler(NO_COMPILER)
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        raise NoCompiler(NO_HEADERS)
    made = library.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        [program, *_arguments(), "-o", str(made)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        made.unlink(missing_ok=True)
        raise CannotBuild(f"{program} refused the pretended card:\n{done.stderr[-4000:]}")
    made.replace(library)


def _arguments() -> list[str]:
    torch = _torch_folder()
    headers = (torch / "include", torch / "include/torch/csrc/api/include", sysconfig.get_paths()["include"])
    libraries = ("torch", "torch_cpu", "c10", "torch_python")
    return [
        *_FLAGS,
        *(f"-I{folder}" for folder in headers),
        str(NATIVE / "card.cpp"),
        f"-L{torch / 'lib'}",
        *(f"-l{name}" for name in libraries),
        f"-Wl,-rpath,{torch / 'lib'}",
    ]


if __name__ == "__main__":
    print(built())
