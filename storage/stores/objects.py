"""Immutable objects by name: in memory, in a local folder, or in S3 (storage.stores.s3).

**Theory.** An object is created once and never overwritten. `put` creates it if the name is free and says whether it
did; of any number of racing writers exactly one is told True. Everything that must have one winner is built on this
single condition, because it is the one that real stores keep (compare-and-swap on tags is missing or silently
ignored in many).

**The local folder.** The bytes are written to a file of a name that nobody else has and synced; then a hard link
gives it its real name. The link is the commit point: it is atomic, it fails when the name exists, and a crash before
it leaves nothing but a temporary file. The folder is synced before `put` answers. A name part that has parts below it
is a folder with "+" behind its name, which no object name can contain: so "a" and "a/b" can both exist, and no name
leads out of the folder.

All stores here block; cluster.host.store_ports gives them to actors.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from pathlib import Path
from typing import Protocol

from sluice.storage.errors import Corrupt, Invalid, NotFound, SluiceError, Unavailable
from sluice.storage.format.frame import Buffer
from sluice.storage.stores.limits import check_name, check_prefix, folder_of

_TEMPORARY = "+temporary+"
_STALE_SECONDS = 3600
_numbers = itertools.count()


class ObjectStore(Protocol):
    """The protocol of object stores. Blocking, safe for threads. Names: parts of [A-Za-z0-9._-] joined by "/"."""

    def put(self, name: str, data: Buffer) -> bool:
        """Create if absent. False: the name is taken. Either way the object is durable when this returns.

        Raises Unavailable (the outcome is unknown), Invalid (a bad name, or the store is set up wrongly).
        """

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """The object from byte `start`, at most `length` bytes; shorter, or empty, at its end.

        Raises NotFound, Unavailable, Corrupt (the store itself says that the bytes are damaged), Invalid.
        """

    def names(self, prefix: str) -> list[str]:
        """Every name that starts with the prefix (any string, not only whole parts), sorted. Raises Unavailable."""

    def size(self, prefix: str) -> int:
        """Bytes of all objects whose names start with the prefix. Raises Unavailable."""

    def delete(self, name: str) -> None:
        """Remove; fine if it does not exist. Raises Unavailable."""


def check_range(start: int, length: int | None) -> None:
    """Raises Invalid for a negative range."""
    if start < 0 or (length is not None and length < 0):
        raise Invalid(f"a range starts at 0 or later and has 0 bytes or more, not start={start} length={length}")


class MemoryObjects:
    """Objects in memory, for tests and for a broker that keeps nothing."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put(self, name: str, data: Buffer) -> bool:
        content = bytes(data)
        with self._lock:
            if check_name(name) in self._objects:
                return False
            self._objects[name] = content
            return True

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        check_range(start, length)
        with self._lock:
            content = self._objects.get(check_name(name))
        if content is None:
            raise NotFound(f"there is no object {name}")
        return content[start : None if length is None else start + length]

    def names(self, prefix: str) -> list[str]:
        check_prefix(prefix)
        with self._lock:
            return sorted(name for name in self._objects if name.startswith(prefix))

    def size(self, prefix: str) -> int:
        with self._lock:
            return sum(len(content) for name, content in self._objects.items() if name.startswith(prefix))

    def delete(self, name: str) -> None:
        with self._lock:
            self._objects.pop(check_name(name), None)


class LocalObjects:
    """Objects as files of one folder. Several processes of one machine may share it."""

    def __init__(self, folder: str | os.PathLike[str], *, read_only: bool = False) -> None:
        """Make the folder if it is missing, unless it is only to be read. Raises Invalid if it cannot be used."""
        self.folder = Path(folder).absolute()
        self._temporary = self.folder / _TEMPORARY
        self._read_only = read_only
        if read_only:
            return
        try:
            make_private(self._temporary)
            self._sweep()
        except OSError as error:
            raise Invalid(f"the object folder {self.folder} cannot be used: {error.strerror}") from error

    def put(self, name: str, data: Buffer) -> bool:
        """See ObjectStore. Raises Unavailable when the disk is full or fails."""
        path = self._path(name)
        draft = self._temporary / f"{os.getpid()}-{threading.get_ident()}-{next(_numbers)}-{os.urandom(4).hex()}"
        try:
            _write_synced(draft, data)
            try:
                make_private(path.parent)
                os.link(draft, path)
                created = True
            except FileExistsError:
                created = False
            finally:
                os.unlink(draft)
            # Also of a name that is taken: perhaps by a put whose own sync failed, or has not ended.
            _sync_folder(path.parent)
        except OSError as error:
            raise self._unavailable(error) from error
        return created

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        check_range(start, length)
        try:
            with open(self._path(name), "rb") as file:
                file.seek(start)
                return file.read() if length is None else file.read(length)
        except (FileNotFoundError, NotADirectoryError):
            self._check_there()
            raise NotFound(f"there is no object {name}") from None
        except OSError as error:
            raise self._unavailable(error) from error

    def names(self, prefix: str) -> list[str]:
        """See ObjectStore. Looks only into folders that can hold such names."""
        folder = folder_of(prefix)
        if folder is None:
            return []
        top = self.folder.joinpath(*[part + "+" for part in folder.split("/")[:-1]])
        found: list[str] = []
        try:
            self._walk(top, folder, prefix, found)
        except OSError as error:
            raise self._unavailable(error) from error
        if not found:
            self._check_there()
        return sorted(found)

    def size(self, prefix: str) -> int:
        """See ObjectStore. An object that goes meanwhile has no bytes."""
        found = 0
        for name in self.names(prefix):
            with contextlib.suppress(FileNotFoundError):
                found += self._path(name).stat().st_size
        return found

    def delete(self, name: str) -> None:
        """See ObjectStore. Durable: a deleted object does not come back after a power cut."""
        path = self._path(name)
        try:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
                _sync_folder(path.parent)
        except OSError as error:
            raise self._unavailable(error) from error

    def url_of(self, name: str) -> str:
        """Return the URL of an object for other programs. The path is not escaped: they expect it so."""
        return f"file://{self._path(name)}"

    def _check_there(self) -> None:
        """Check on a miss that the store is there. Raises Unavailable if its disk is not mounted, or its folder was
        moved: then nothing is known of any object. An empty folder may be the mount point of a missing disk.
        """
        if not self._read_only and not self._temporary.is_dir():
            raise Unavailable(f"the object folder {self.folder} is not there: {self._temporary} is missing")

    def _path(self, name: str) -> Path:
        *folders, last = check_name(name).split("/")
        return self.folder.joinpath(*[part + "+" for part in folders], last)

    def _walk(self, folder: Path, above: str, prefix: str, found: list[str]) -> None:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            if entry.name == _TEMPORARY:
                continue
            if entry.name.endswith("+"):
                inner = above + entry.name[:-1] + "/"
                if inner.startswith(prefix) or prefix.startswith(inner):
                    self._walk(folder / entry.name, inner, prefix, found)
            elif (above + entry.name).startswith(prefix):
                found.append(above + entry.name)

    def _sweep(self) -> None:
        """Remove what crashed writers left an hour ago or longer."""
        for entry in os.scandir(self._temporary):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - entry.stat().st_mtime > _STALE_SECONDS:
                    os.unlink(entry.path)

    def _unavailable(self, error: OSError) -> Unavailable:
        return Unavailable(f"the object folder {self.folder} failed: {error.strerror or error}")


def probe(objects: ObjectStore, prefix: str = "probe") -> None:
    """Refuse a store that ignores the condition, at start-up: create one name twice, then remove it.

    Raises Invalid when the second creation is allowed or the content is not what the first wrote; Unavailable.
    """
    name = f"{prefix}/{os.getpid()}-{next(_numbers)}-{os.urandom(8).hex()}"
    try:
        if not objects.put(name, b"first"):
            raise Invalid("the object store refuses to create an object that does not exist")
        if objects.put(name, b"second") or objects.get(name) != b"first":
            raise Invalid(
                "the object store overwrites an object although it was told to create it only if it is absent "
                "(If-None-Match: *). Two owners could both win. Use a store that honours the condition."
            )
        if objects.names(name) != [name]:
            raise Corrupt("the object store does not list an object that it has just stored")
    except BaseException:
        # What is told is what was wrong first; whoever may not write may perhaps not delete either.
        with contextlib.suppress(SluiceError):
            objects.delete(name)
        raise
    objects.delete(name)


def _write_synced(path: Path, data: Buffer) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def make_private(folder: Path) -> None:
    """Make a folder and what is missing above it, for this user alone, each synced into its parent. Raises OSError."""
    if folder.is_dir():
        return
    make_private(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
