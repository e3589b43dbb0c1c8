"""The disk of one node: a folder of flat files behind `actors.ports.Disk`.

All writing goes through one thread, so appends to a file are in order and the write and its fdatasync cost one hop
from the event loop. Reading has threads of its own, so that a long sync does not hold up reads.

A small append that finds the thread idle is done where it is asked for, as long as the disk is quick: two changes of
threads take more processor time than such a write, and what comes meanwhile would wait for it anyway. As soon as one
takes longer than QUICK_S, the thread has them all again for SLOW_FOR_S, or for SLOW_TIMES what it took: while a sync
takes a fifth of a second, the other actors on the event loop hardly notice.

A failed write or sync is final (after a failed fsync Linux takes the pages for clean and reports success the next
time, so nothing that follows could be believed): from then on every call raises DiskFailed. The next process reads
what was not synced from the page cache, and makes it durable by `rewrite`, which makes the pages dirty again. A full
device is different: the bytes written so far are cut off again and DiskFull says that nothing happened.

What was synced leaves the page cache at once. It is read again only by those who have fallen far behind or after a
failure, while the pages that it frees take the next append: writing to pages that the processor has just used costs
a third of what fresh ones cost.

The folder is locked while it is open. A frozen process that comes back therefore never writes beside its successor:
the successor cannot open the folder before the old process has ended.

**The thread** does the work of the event loop, one call after the other. asyncio's own way to a thread makes a future
for each side and joins them with callbacks; `Worker` makes one, and a hop costs half the processor time. Where a
message takes several hops, that is what most of its time goes into.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from sluice.actors.ports import DiskFailed, DiskFull
from sluice.cluster.base.forks import keep_from_children
from sluice.cluster.base.impairments import IMPAIRMENTS
from sluice.storage.errors import Invalid, NotFound, Unavailable
from sluice.storage.format.frame import Buffer
from sluice.storage.stores.objects import make_private

T = TypeVar("T")

_Job = tuple["asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class Worker:
    """A thread that begins with the first work and waits for more until `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._under_way = 0
        self.closed = False

    @property
    def idle(self) -> bool:
        """Whether all work is done, as the event loop that gave it knows."""
        return not self._under_way

    def do(self, work: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """Call a function in the thread; the future gets its result or error.

        A caller that gives up changes nothing: the work is done all the same. Raises RuntimeError once closed.
        """
        if self.closed:
            raise RuntimeError(f"the thread {self._name} has ended")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._under_way += 1
        self._queue.put((future, work, arguments))
        return future

    def close(self) -> None:
        """Finish the given work, then end. Idempotent."""
        self.closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            future, work, arguments = job
            result: object = None
            error: BaseException | None = None
            try:
                result = work(*arguments)
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                future.get_loop().call_soon_threadsafe(self._settle, future, result, error)
            del job, future, work, arguments, result, error  # not to be kept until the next work comes

    def _settle(self, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        self._under_way -= 1
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(cast("Exception", error))


_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")
_TEMPORARY = ".new"
_LOCK = ".lock"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PAGE = os.sysconf("SC_PAGESIZE")
_MAX_PARTS = 1024
"""Linux refuses longer vectors."""
SMALL = 2048
"""An append of up to so many bytes may be done where it is asked for."""
QUICK_S, SLOW_FOR_S, SLOW_TIMES = 0.002, 0.2, 100
"""Seconds: what such an append may take, and how long none is done so after one took longer; or how many times that."""


@dataclass(slots=True)
class _File:
    """An open file. Nobody else writes to it, so its size is known, and how much of it is synced."""

    fd: int
    size: int
    synced: int


class FileDisk:
    """A folder as a Disk. Raises Unavailable if another process has it open.

    folder: created if it is missing. readers: threads for reading. quick_s: see QUICK_S. read_only: look at a folder,
    also one that is open elsewhere, without creating, locking or changing anything; writing raises Invalid.
    """

    def __init__(
        self, folder: str | Path, *, readers: int = 4, quick_s: float = QUICK_S, read_only: bool = False
    ) -> None:
        self.folder = Path(folder)
        self._read_only = read_only
        self._closing: list[int] = []
        if not read_only:
            make_private(self.folder)
            self._closing.append(_take_lock(self.folder / _LOCK))
            for stale in self.folder.glob(f"*{_TEMPORARY}"):
                stale.unlink()
        self._folder_fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        self._closing.append(self._folder_fd)
        self._writer = Worker("disk-write")
        self._readers = ThreadPoolExecutor(readers, thread_name_prefix="disk-read")
        self._open: dict[str, _File] = {}
        self._failed: str | None = None
        self._here = threading.Lock()
        """Held by who writes on the event loop's own thread."""
        self._quick_s, self._slow_until = quick_s, 0.0

    def close(self) -> None:
        """Finish work under way, close all files and release the folder. Idempotent."""
        self._writer.close()
        self._readers.shutdown()
        with self._here:
            for fd in [*(file.fd for file in self._open.values()), *reversed(self._closing)]:
                os.close(fd)
            self._open.clear()
            self._closing.clear()

    async def append(
        self, name: str, parts: Sequence[Buffer], *, sync: bool, witness: tuple[str, Buffer] | None = None
    ) -> int:
        """Write the parts at the end of a file; see `actors.ports.Disk.append`."""
        if witness is not None and witness[0] not in self._open:
            _check_name(witness[0])
        if self._writer.idle and self._is_small(name, parts) and (began := time.monotonic()) >= self._slow_until:
            return self._append_here(began, name, parts, sync, witness)
        return await self._write(self._append, name, parts, sync, witness)

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`. Raises NotFound."""
        return await self._read(self._pread, name, offset, length)

    async def size(self, name: str) -> int:
        """Bytes in the file; 0 if it does not exist."""
        return await self._read(self._stat_size, name)

    async def names(self) -> list[str]:
        """All files, sorted."""
        found = await self._look(os.listdir, self.folder)
        return sorted(name for name in found if _NAME.fullmatch(name))

    async def truncate(self, name: str, size: int) -> None:
        """Cut the file, durably. Raises NotFound."""
        await self._write(self._truncate, name, size)

    async def rewrite(self, name: str, offset: int, data: Buffer) -> None:
        """Write bytes once more in their place, durably. Raises NotFound."""
        await self._write(self._rewrite, name, offset, data)

    async def replace(self, name: str, data: Buffer) -> None:
        """Write a whole file atomically and durably."""
        await self._write(self._replace, name, data)

    async def delete(self, name: str) -> None:
        """Remove the file; fine if it does not exist."""
        await self._write(self._delete, name)

    async def free(self) -> int:
        """Bytes that an unprivileged writer still gets."""
        return (await self._look(shutil.disk_usage, self.folder)).free

    # -- in the threads --

    def _append(self, name: str, parts: Sequence[Buffer], sync: bool, witness: tuple[str, Buffer] | None) -> int:
        file = self._file(name)
        start = file.size
        try:
            file.size += _write_all(file.fd, parts)
        except OSError as error:
            full = _unless_full(error, f"no space for {sum(map(len, parts))} bytes in {name}")
            os.ftruncate(file.fd, start)
            raise full from error
        if sync:
            _sync(file.fd, os.fdatasync)
            file.synced = file.size
            _drop_cached(file.fd, start, file.size)
        if witness is not None:
            with contextlib.suppress(DiskFull):
                self._append(witness[0], [witness[1]], False, None)
        return start

    def _file(self, name: str) -> _File:
        file = self._open.get(name)
        if file is None:
            path = self.folder / name
            is_new = not path.exists()
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise _unless_full(error, f"no space for the file {name}") from error
            size = os.fstat(fd).st_size
            file = self._open[name] = _File(fd, size, size)
            if is_new:
                _sync(self._folder_fd)
        return file

    def _truncate(self, name: str, size: int) -> None:
        if not (self.folder / name).exists():
            raise NotFound(f"there is no file {name}")
        file = self._file(name)
        os.ftruncate(file.fd, size)
        _sync(file.fd)
        file.size = file.synced = size

    def _rewrite(self, name: str, offset: int, data: Buffer) -> None:
        try:
            fd = os.open(self.folder / name, os.O_WRONLY | os.O_CLOEXEC)  # a file opened to append has no places
        except FileNotFoundError:
            raise NotFound(f"there is no file {name}") from None
        try:
            os.lseek(fd, offset, os.SEEK_SET)
            _write_all(fd, [data])
            _sync(fd)
        finally:
            os.close(fd)

    def _replace(self, name: str, data: Buffer) -> None:
        temporary = self.folder / f"{name}{_TEMPORARY}"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _write_all(fd, [data])
                _sync(fd)
            finally:
                os.close(fd)
            os.rename(temporary, self.folder / name)
        except OSError as error:
            full = _unless_full(error, f"no space for {len(data)} bytes in {name}")
            temporary.unlink(missing_ok=True)
            raise full from error
        _sync(self._folder_fd)
        self._forget(name)

    def _delete(self, name: str) -> None:
        self._forget(name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.folder / name)

    def _forget(self, name: str) -> None:
        file = self._open.pop(name, None)
        if file is not None:
            os.close(file.fd)

    def _pread(self, name: str, offset: int, length: int) -> bytes:
        try:
            fd = os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFound(f"there is no file {name}") from None
        try:
            return _read_all(fd, offset, length)
        finally:
            os.close(fd)

    def _stat_size(self, name: str) -> int:
        try:
            return os.stat(self.folder / name).st_size
        except FileNotFoundError:
            return 0

    # -- between the loop and the threads --

    def _is_small(self, name: str, parts: Sequence[Buffer]) -> bool:
        """Whether little was written since the last sync, this append included."""
        file = self._open.get(name)
        return file is not None and file.size - file.synced + sum(map(len, parts)) <= SMALL

    def _append_here(
        self, began: float, name: str, parts: Sequence[Buffer], sync: bool, witness: tuple[str, Buffer] | None
    ) -> int:
        with self._here:
            if self._writer.closed:
                raise RuntimeError(f"{self.folder} was closed")
            start = self._guarded(self._append, name, parts, sync, witness)
        ended = time.monotonic()
        if ended - began > self._quick_s:
            self._slow_until = ended + max(SLOW_FOR_S, (ended - began) * SLOW_TIMES)
        return start

    async def _write(self, work: Callable[..., T], name: str, *args: object) -> T:
        if self._read_only:
            raise Invalid(f"{self.folder} was opened for reading only")
        self._check()
        _check_name(name)
        return await self._writer.do(self._guarded, work, name, *args)

    async def _read(self, work: Callable[..., T], name: str, *args: object) -> T:
        self._check()
        _check_name(name)
        return await self._look(work, name, *args)

    async def _look(self, work: Callable[..., T], *args: object) -> T:
        self._check()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, work, *args)
        except OSError as error:
            raise Unavailable(f"the disk did not read: {error}") from error

    def _guarded(self, work: Callable[..., T], *args: object) -> T:
        self._check()
        try:
            return work(*args)
        except OSError as error:
            self._failed = f"{self.folder}: {error}"
            raise DiskFailed(self._failed) from error

    def _check(self) -> None:
        if self._failed is not None:
            raise DiskFailed(self._failed)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Invalid(f"a file name is 1 to 100 of a-z, 0-9 and -, not {name!r}")


def _unless_full(error: OSError, what: str) -> DiskFull:
    """The word for a full device. Raises any other error as it is."""
    if error.errno not in _FULL:
        raise error
    return DiskFull(what)


def _sync(fd: int, how: Callable[[int], None] = os.fsync) -> None:
    if IMPAIRMENTS.disk_slowed:
        IMPAIRMENTS.before_sync()
    how(fd)


def _take_lock(path: Path) -> int:
    fd = keep_from_children(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise Unavailable(f"{path.parent} is open in another process, which must end first") from error
    return fd


def _drop_cached(fd: int, start: int, size: int) -> None:
    """Drop synced pages from `start` on from the page cache; the last, incomplete page stays for the next append."""
    first, end = start // _PAGE * _PAGE, size // _PAGE * _PAGE
    if end > first:
        with contextlib.suppress(OSError):  # advice only: the bytes are on the disk
            os.posix_fadvise(fd, first, end - first, os.POSIX_FADV_DONTNEED)


def _write_all(fd: int, parts: Sequence[Buffer]) -> int:
    """Write the parts behind one another; returns how many bytes that were."""
    left = [view for part in parts if len(view := memoryview(part).cast("B"))]
    size = sum(map(len, left))
    while left:
        written = os.writev(fd, left[:_MAX_PARTS])
        done = 0
        while done < len(left) and written >= len(left[done]):
            written -= len(left[done])
            done += 1
        del left[:done]
        if written:
            left[0] = left[0][written:]
    return size


def _read_all(fd: int, offset: int, length: int) -> bytes:
    data = os.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    got = len(data)
    while got < length and (more := os.pread(fd, length - got, offset + got)):
        parts.append(more)
        got += len(more)
    return b"".join(parts)
