"""A disk that fails on schedule, for tests: every change to the files under a folder is recorded, and the
n-th one fails, once.

Real files and a real SQLite, whose writes and syncs are reached through a file layer (VFS) of our own around
its own one; everything else goes through the functions of ``os`` that this program changes files with. Only
this process is affected. Connections to databases must be opened and closed inside the block.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Action = Literal["create", "write", "truncate", "sync", "sync folder", "rename"]


@dataclass(frozen=True, slots=True)
class Change:
    """One change to the disk, in the order in which it was asked for. ``target`` is the new name of what is
    renamed.
    """

    action: Action
    path: Path
    target: Path | None = None


class FailingDisk:
    """Counts and records the changes under ``folder``; number ``fails_at`` (from 1) does not happen and
    raises ``error`` (an errno).

    With ``for_good`` all later ones fail too, as on a full disk that stays full.
    """

    def __init__(
        self, folder: Path, fails_at: int | None = None, error: int = errno.ENOSPC, *, for_good: bool = False
    ) -> None:
        self.changes: list[Change] = []
        self.failed: Change | None = None
        self._folder = folder.resolve()
        self._fails_at = fails_at
        self._error = error
        self._for_good = for_good
        self._lock = threading.Lock()

    def change(self, action: Action, path: Path, target: Path | None = None) -> bool:
        """Note a change that is asked for; whether it is to fail."""
        if not path.is_relative_to(self._folder):
            return False
        with self._lock:
            self.changes.append(Change(action, path, target))
            count = len(self.changes)
            fails = self._fails_at is not None and (
                count == self._fails_at or (self._for_good and count > self._fails_at)
            )
            if fails and self.failed is None:
                self.failed = self.changes[-1]
            return fails

    @property
    def is_full(self) -> bool:
        """Whether it fails for want of space."""
        return self._error in (errno.ENOSPC, errno.EDQUOT)

    def gate(self, action: Action, path: Path, target: Path | None = None) -> None:
        """Note a change; raise OSError if it is to fail."""
        if self.change(action, path, target):
            raise OSError(self._error, os.strerror(self._error), str(path))

    @contextlib.contextmanager
    def installed(self) -> Iterator[FailingDisk]:
        """Put this disk under the process."""
        with _operating_system(self), _sqlite(self):
            yield self


def out_of_order(changes: list[Change]) -> list[str]:
    """Renames that were not: all bytes written, file synced, renamed, folder synced. One sentence each."""
    wrong = []
    for place, change in enumerate(changes):
        if change.action != "rename" or change.target is None:
            continue
        of_file = [earlier.action for earlier in changes[:place] if earlier.path == change.path]
        later = [(after.action, after.path) for after in changes[place + 1 :]]
        if "write" in of_file and of_file[-1] != "sync":
            wrong.append(f"{change.target.name} was given its name before its bytes were on the disk")
        if ("sync folder", change.target.parent) not in later:
            wrong.append(f"the folder of {change.target.name} was not synced after it")
    return wrong


# ── the functions of the operating system ───────────────────────────────────────────────────────────────────


class _Raw(io.FileIO):
    """A file whose writes pass the gate."""

    disk: FailingDisk

    def write(self, data: Any, /) -> int:
        self.disk.gate("write", _path_of(self.fileno()))
        return super().write(data)


@contextlib.contextmanager
def _operating_system(disk: FailingDisk) -> Iterator[None]:
    real = {
        name: getattr(os, name)
        for name in ("open", "fdopen", "write", "pwrite", "fsync", "ftruncate", "replace", "rename")
    }

    def opened(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_CREAT and not os.path.lexists(path):
            disk.gate("create", Path(path).absolute())
        return int(real["open"](path, flags, *rest, **more))

    def as_file(descriptor: int, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if mode != "wb":
            return real["fdopen"](descriptor, mode, *rest, **more)
        raw = _Raw(descriptor, "wb")
        raw.disk = disk
        return io.BufferedWriter(raw)

    def gated(name: str, action: Action) -> Callable[..., Any]:
        def call(descriptor: int, *rest: Any) -> Any:
            place = _path_of(descriptor)
            disk.gate("sync folder" if action == "sync" and place.is_dir() else action, place)
            return real[name](descriptor, *rest)

        return call

    def renamed(source: Any, target: Any, **more: Any) -> None:
        disk.gate("rename", Path(source).absolute(), Path(target).absolute())
        real["replace"](source, target, **more)

    ours = {"open": opened, "fdopen": as_file, "replace": renamed, "rename": renamed}
    ours |= {"write": gated("write", "write"), "pwrite": gated("pwrite", "write")}
    ours |= {"fsync": gated("fsync", "sync"), "ftruncate": gated("ftruncate", "truncate")}
    for name, function in ours.items():
        setattr(os, name, function)
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def _path_of(descriptor: int) -> Path:
    with contextlib.suppress(OSError):
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    return Path("/")


# ── SQLite ──────────────────────────────────────────────────────────────────────────────────────────────────

_OK, _FULL = 0, 13
_IOERR: dict[Action, int] = {
    "write": 10 | 3 << 8,
    "sync": 10 | 4 << 8,
    "truncate": 10 | 6 << 8,
}  # SQLITE_IOERR and its kinds
_Pointer = ctypes.c_void_p
_OPEN = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, _Pointer, _Pointer, ctypes.c_int, _Pointer)
_WRITE = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, _Pointer, ctypes.c_int, ctypes.c_int64)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_int64)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, ctypes.c_int)


class _Vfs(ctypes.Structure):
    """``sqlite3_vfs`` of sqlite3.h, up to its third version."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_bytes", ctypes.c_int),
        ("longest_path", ctypes.c_int),
        ("next", _Pointer),
        ("name", ctypes.c_char_p),
        ("data", _Pointer),
        ("open", _Pointer),
        ("others", _Pointer * 15),
    )


class _Methods(ctypes.Structure):
    """``sqlite3_io_methods`` of sqlite3.h, up to its third version."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("close", _Pointer),
        ("read", _Pointer),
        ("write", _Pointer),
        ("truncate", _Pointer),
        ("sync", _Pointer),
        ("others", _Pointer * 13),
    )


class _File(ctypes.Structure):
    """``sqlite3_file``: whatever a layer keeps begins with its table of functions."""

    _fields_ = (("methods", ctypes.POINTER(_Methods)),)


def _library() -> ctypes.CDLL:
    """The SQLite that Python's own module uses."""
    import _sqlite3

    assert sqlite3.sqlite_version_info >= (3, 7)  # the layouts above
    # a symbol that is not in the module is found in what it is linked to
    library = ctypes.CDLL(_sqlite3.__file__)
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    library.sqlite3_vfs_find.argtypes = [ctypes.c_char_p]
    library.sqlite3_vfs_register.argtypes = [ctypes.POINTER(_Vfs), ctypes.c_int]
    library.sqlite3_vfs_unregister.argtypes = [ctypes.POINTER(_Vfs)]
    return library


@contextlib.contextmanager
def _sqlite(disk: FailingDisk) -> Iterator[None]:
    """Make a layer that fails SQLite's default one."""
    library = _library()
    real = library.sqlite3_vfs_find(None)
    layer = _Layer(disk, real)
    library.sqlite3_vfs_register(ctypes.byref(layer.vfs), 1)
    try:
        yield
    finally:
        library.sqlite3_vfs_register(real, 1)
        library.sqlite3_vfs_unregister(ctypes.byref(layer.vfs))


class _Layer:
    """Passes on what SQLite asks of its files, but for the changes that are to fail. Keeps alive what SQLite
    points to.
    """

    def __init__(self, disk: FailingDisk, real: Any) -> None:
        self._disk = disk
        self._real = real
        self._paths: dict[int, Path] = {}
        self._tables: dict[int, _Methods] = {}
        self._kept: list[Any] = []
        self._open_really = _OPEN(real.contents.open)
        self.vfs = _Vfs.from_buffer_copy(real.contents)
        self.vfs.name, self.vfs.next = b"failing", None
        self.vfs.open = self._keep(_OPEN(self._open))

    def _keep(self, function: Any) -> int | None:
        self._kept.append(function)
        return ctypes.cast(function, _Pointer).value

    # ``name`` goes on as the address that it is: SQLite's own layer keeps it.
    def _open(self, _vfs: int, name: int | None, file: int, flags: int, out_flags: int) -> int:
        code: int = self._open_really(ctypes.cast(self._real, _Pointer), name, file, flags, out_flags)
        opened = ctypes.cast(file, ctypes.POINTER(_File)).contents
        if code == _OK and name is not None and opened.methods:
            self._paths[file] = Path(os.fsdecode(ctypes.string_at(name)))
            table = ctypes.cast(opened.methods, _Pointer).value or 0
            if table not in self._tables:
                self._tables[table] = self._wrapped(opened.methods.contents)
            opened.methods = ctypes.pointer(self._tables[table])
        return code

    def _wrapped(self, methods: _Methods) -> _Methods:
        ours = _Methods.from_buffer_copy(methods)
        ours.write = self._keep(_WRITE(self._gated("write", _WRITE(methods.write))))
        ours.truncate = self._keep(_TRUNCATE(self._gated("truncate", _TRUNCATE(methods.truncate))))
        ours.sync = self._keep(_SYNC(self._gated("sync", _SYNC(methods.sync))))
        return ours

    def _gated(self, action: Action, really: Callable[..., int]) -> Callable[..., int]:
        def call(file: int, *rest: Any) -> int:
            if self._disk.change(action, self._paths.get(file, Path("/"))):
                return _FULL if action == "write" and self._disk.is_full else _IOERR[action]
            return really(file, *rest)

        return call
