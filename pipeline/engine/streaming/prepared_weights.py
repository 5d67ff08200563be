"""Weights prepared once: a folder of block files beside the model cache, made group by group, whole or
resumable at any moment.

A file appears by a rename and then counts by an entry in the manifest, which is replaced as a whole. What a
killed preparation left is used by the next one; a file whose bytes have changed is made again from the
model's own files.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from pipeline.config import ModelConfig
from pipeline.engine.model.demo_model import cache_folder
from pipeline.engine.model.location import Location
from pipeline.engine.streaming.conversion import Conversion
from pipeline.engine.streaming.weight_file import Block, Described, write_blocks
from pipeline.errors import ConfigError, DoesNotFit, StoppedEarly
from pipeline.records import digest
from pipeline.system.atomic_write import replace_file
from pipeline.system.units import amount

_FORMAT = 2
_MANIFEST = "manifest.json"
_ROWS_BYTES = 8 * 2**20  # of a block of rows: embeddings and heads are read in such pieces
_BY_ROWS_FROM_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which weights, in which numbers, made on which kind of device: all that makes prepared files these
    files.
    """

    config: ModelConfig
    location: Location
    dtype: str
    weights: Mapping[str, str]
    device: torch.device

    @property
    def key(self) -> str:
        """32 hex digits."""
        libraries = [f"{name} {version(name)}" for name in ("transformers", "bitsandbytes")]
        identity = json.dumps(dict(self.weights), sort_keys=True)
        return digest(
            str(_FORMAT), identity, self.config.quantization, self.dtype, self.device.type, *libraries
        )


class Prepared:
    """One folder of prepared weights. ``files`` maps group to its blocks, in their order."""

    def __init__(self, wanted: Wanted, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, list[Block]] = {}
        self.rebuilt: list[str] = []
        """Names of files that were damaged and made again."""
        self._wanted = wanted

    @cached_property
    def _conversion(self) -> Conversion:
        wanted = self._wanted
        return Conversion(wanted.config, wanted.location, wanted.dtype, wanted.device)

    def complete(self, say: Callable[[str], None]) -> None:
        """Make what is missing. Raises ConfigError, DoesNotFit or StoppedEarly."""
        self._read_manifest()
        groups = self._conversion.meta_model.groups()
        missing = [group for group in groups if group not in self.files]
        if missing:
            done = len(groups) - len(missing)
            self._require_room(missing)
            say(
                f"preparing the weights of {self._wanted.config.id} once for streaming"
                + (f"; {done} parts are there" if done else "")
            )
        for count, group in enumerate(missing, 1):
            self._make(group)
            if count % max(1, len(missing) // 10) == 0:
                say(f"prepared {count} of {len(missing)} parts")
        del self._conversion  # a meta model of a large model is itself not small

    def rebuild(self, file: str) -> list[Block]:
        """Make a damaged file again; its blocks."""
        group = next(group for group, blocks in self.files.items() if blocks[0].file == file)
        self._make(group)
        del self._conversion
        self.rebuilt.append(file)
        return self.files[group]

    def _make(self, group: str) -> None:
        tensors = self._conversion.group(group)
        by_rows = len(tensors) == 1 and self._goes_by_rows(group)
        path = self.folder / f"{'rows' if by_rows else 'part'}-{digest(group)[:12]}.safetensors"
        if by_rows:
            ((name, tensor),) = tensors.items()
            pieces = list(_row_pieces(name, tensor))
            self.files[group] = write_blocks(
                path, [piece[0] for piece in pieces], (tensor[begin:end] for _, begin, end in pieces)
            )
        else:
            described = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]
            self.files[group] = write_blocks(path, described, tensors.values())
        self._write_manifest()

    def _goes_by_rows(self, group: str) -> bool:
        """Whether a group is the table of an embedding or the matrix of the head, of which parts are read."""
        model = self._conversion.meta_model.model
        path, _, last = group.rpartition(".")
        if group.startswith("layer-") or last != "weight":
            return False
        module = model.get_submodule(path)
        large = module.weight.numel() * module.weight.element_size() >= _BY_ROWS_FROM_BYTES
        return isinstance(module, torch.nn.Embedding) or (large and module is model.get_output_embeddings())

    # ── manifest ────────────────────────────────────────────────────────────────────────────────────────────

    def _read_manifest(self) -> None:
        """Take in what is there. Files that are missing or have another length are made again."""
        try:
            held = json.loads((self.folder / _MANIFEST).read_text("utf-8"))
            if held["key"] != self._wanted.key:
                return
            for group, entry in held["files"].items():
                blocks = [Block.from_json(str(entry["name"]), block) for block in entry["blocks"]]
                path = self.folder / blocks[0].file
                if path.is_file() and path.stat().st_size == blocks[-1].offset + blocks[-1].bytes:
                    self.files[group] = blocks
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            self.files = {}

    def _write_manifest(self) -> None:
        files = {
            group: {"name": blocks[0].file, "blocks": [block.to_json() for block in blocks]}
            for group, blocks in self.files.items()
        }
        about = {"format": _FORMAT, "key": self._wanted.key, "model": self._wanted.config.id, "files": files}
        with replace_file(self.folder / _MANIFEST) as file:
            file.write(json.dumps(about).encode())

    def _require_room(self, groups: Sequence[str]) -> None:
        needed, free = self._expected_bytes(groups), shutil.disk_usage(self.folder).free
        if needed > free:
            raise DoesNotFit(
                f"prepared weights of {self._wanted.config.id} take about {amount(needed)} in {self.folder} "
                f"and {amount(free)} are free "
                "there; free space, or set OVERNIGHT_CACHE to a folder on another disk"
            )

    def _expected_bytes(self, groups: Sequence[str]) -> int:
        """An upper bound within a few percent: quantized products by their packed bytes, the rest as
        computed.
        """
        meta_model, wanted = self._conversion.meta_model, set(groups)
        return sum(
            _stored_bytes(meta_model.model, name)
            for name, group in meta_model.tensors.items()
            if group in wanted
        )


def _stored_bytes(model: Any, name: str) -> int:
    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    tensor, kind = getattr(module, last), type(module).__name__
    if last == "weight" and kind == "Linear4bit":
        return int(tensor.numel() * (0.5 + 1 / 64 + 4 / 64 / 256)) + 4096
    if last == "weight" and kind == "Linear8bitLt":
        return int(tensor.numel() + 4 * tensor.shape[0])
    return int(tensor.numel() * tensor.element_size())


def _row_pieces(name: str, tensor: torch.Tensor) -> Iterator[tuple[Described, int, int]]:
    """(block, first row, row behind the last) of every piece of a table."""
    rows, row_bytes = tensor.shape[0], tensor[0].numel() * tensor.element_size()
    step = max(1, _ROWS_BYTES // row_bytes)
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        yield (f"{name}.rows-{begin}", tensor.dtype, (end - begin, *tensor.shape[1:])), begin, end


# ── the folder ──────────────────────────────────────────────────────────────────────────────────────────────


def prepare(wanted: Wanted, say: Callable[[str], None], quota_bytes: int | None = None) -> Prepared:
    """Prepared weights, made now as far as they are missing. One process at a time makes them; others wait.

    ``quota_bytes`` bounds what prepared weights of all models take; those used longest ago go first.

    Raises ConfigError, DoesNotFit or StoppedEarly.
    """
    root = cache_folder() / "prepared"
    folder = root / wanted.key
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(root / f"{wanted.key}.lock"):
            _drop_unfinished(folder)
            prepared = Prepared(wanted, folder)
            prepared.complete(say)
        os.utime(folder)
        keep_within(root, quota_bytes, keep=wanted.key)
    except StoppedEarly as error:
        raise StoppedEarly(f"{error}; what was prepared so far is used then") from None
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"cannot write prepared weights to {folder}: {reason}; set OVERNIGHT_CACHE to another folder"
        ) from error
    return prepared


def _drop_unfinished(folder: Path) -> None:
    """Files that a killed process was writing: nobody else writes here while the lock is held."""
    for leftover in folder.glob(".*.part"):
        leftover.unlink(missing_ok=True)


def keep_within(root: Path, quota_bytes: int | None, *, keep: str) -> None:
    """Remove prepared weights, those used longest ago first, until the rest is within the quota. ``keep``
    always stays.
    """
    if quota_bytes is None:
        return
    sizes = {
        folder: sum(file.stat().st_size for file in folder.iterdir())
        for folder in root.iterdir()
        if folder.is_dir()
    }
    oldest = sorted(
        (folder for folder in sizes if folder.name != keep), key=lambda folder: folder.stat().st_mtime
    )
    while oldest and sum(sizes.values()) > quota_bytes:
        folder = oldest.pop(0)
        try:
            with FileLock(root / f"{folder.name}.lock", timeout=0):
                shutil.rmtree(folder)
        except Timeout:
            continue  # in the making
        del sizes[folder]
