"""Files on their way into the store: allocated at their final size, written and synced aside, then published
in one step. No torch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.stores.kv import manifest, tensor_file
from pipeline.stores.kv.files import BLOCK_BYTES, Files, disk_bytes
from pipeline.stores.kv.manifest import File, Manifest
from pipeline.stores.kv.tensor_file import FileLayout

_NO_CHECKSUM = "0" * 32


def planned_file(name: str, begin: int, end: int, layout: FileLayout) -> File:
    """A file of the manifest whose checksum is not known yet."""
    return File(name, begin, end, layout.size_bytes, layout.header_bytes, _NO_CHECKSUM)


@dataclass
class StagedWrite:
    """New files of one entry, in a folder of their own until they are published."""

    files: Files
    folder: Path
    about: Manifest
    layouts: Mapping[str, FileLayout]
    now: float
    _open: dict[str, int] = field(default_factory=dict)

    @property
    def needed_bytes(self) -> int:
        """What the files take while they are written and afterwards; the folder counted."""
        sizes = [*(layout.size_bytes for layout in self.layouts.values()), len(self.about.to_bytes())]
        return sum(map(disk_bytes, sizes)) + BLOCK_BYTES

    def allocate(self) -> None:
        """Reserve the bytes of all files, of the manifest too. Raises OSError."""
        self.files.make_folder(self.folder)
        sizes = {name: layout.size_bytes for name, layout in self.layouts.items()}
        for name, size_bytes in {**sizes, manifest.NAME: len(self.about.to_bytes())}.items():
            self._open[name] = self.files.allocate(self.folder / name, size_bytes)

    def write(self, contents: Mapping[str, Iterable[tuple[str, memoryview]]]) -> None:
        """Write and sync all files; the manifest, which names the checksums of the others, last."""
        checksums = {}
        for name, data in contents.items():
            checksums[name] = tensor_file.write(self.files, self._open[name], self.layouts[name], data)
            self.files.sync(self._open[name])
        self.about = self.about.with_checksums(checksums)
        self.files.write(self._open[manifest.NAME], memoryview(self.about.to_bytes()), 0)
        self.files.touch(self.folder / manifest.NAME, self.now)  # when the entry was last used
        self.files.sync(self._open[manifest.NAME])
        self.files.sync_folder(self.folder)

    def publish_new(self, target: Path) -> None:
        """The whole folder becomes the entry."""
        self.files.publish(self.folder, target)

    def publish_into(self, target: Path) -> None:
        """The files join those of the entry; they count from the moment at which its manifest is replaced."""
        for name in self.layouts:
            self.files.publish(self.folder / name, target / name)
        self.files.publish(self.folder / manifest.NAME, target / manifest.NAME)

    def discard(self) -> None:
        """Close the files; whatever was not published is removed."""
        for descriptor in self._open.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._open.clear()
        with contextlib.suppress(OSError):
            self.files.remove(self.folder)
