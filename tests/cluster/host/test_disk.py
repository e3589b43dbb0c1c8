"""The folder behind the Disk port.

The thread that event loops give work to.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.actors.ports import DiskFailed, DiskFull
from sluice.cluster.host.disk import SMALL, FileDisk, Worker
from sluice.storage.errors import Invalid, NotFound, Unavailable


async def test_appends_go_behind_one_another_and_are_read_back(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    assert await disk.append("log-1", [b"ab", memoryview(b"cd")], sync=True) == 0
    assert await disk.append("log-1", [bytearray(b"e")], sync=False) == 4
    assert await disk.append("log-1", [], sync=True) == 5
    assert await disk.read("log-1", 1, 3) == b"bcd"
    assert await disk.read("log-1", 4, 100) == b"e"
    assert await disk.read("log-1", 50, 10) == b""
    assert await disk.size("log-1") == 5
    assert await disk.size("log-2") == 0
    assert await disk.free() > 0
    with pytest.raises(NotFound):
        await disk.read("log-2", 0, 1)
    with pytest.raises(NotFound):
        await disk.truncate("log-2", 0)
    disk.close()
    disk.close()


async def test_many_parts_are_one_append(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    parts = [bytes([n % 256]) * (n % 7) for n in range(5000)]
    await asyncio.gather(*(disk.append("log", parts, sync=True) for _ in range(3)))
    assert (tmp_path / "log").read_bytes() == b"".join(parts) * 3
    disk.close()


async def test_a_witness_is_written_behind_the_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, marks, seen = FileDisk(tmp_path), tmp_path / "marks", list[bool]()
    sync = os.fdatasync

    def watched(fd: int) -> None:
        seen.append(marks.exists() and marks.stat().st_size > 0)
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", watched)
    assert await disk.append("log", [b"ab"], sync=True, witness=("marks", b"m")) == 0
    assert await disk.append("log", [b"cd"], sync=True) == 2
    assert seen == [False, True]
    assert marks.read_bytes() == b"m"
    with pytest.raises(Invalid, match="file name"):
        await disk.append("log", [b"e"], sync=True, witness=("../marks", b"m"))
    disk.close()


async def test_replace_truncate_and_delete(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    await disk.replace("state", b"one")
    await disk.append("state", [b"+"], sync=True)
    await disk.replace("state", b"two")
    assert await disk.append("state", [b"!"], sync=True) == 3
    await disk.truncate("state", 2)
    assert await disk.append("state", [b"?"], sync=True) == 2
    assert await disk.read("state", 0, 9) == b"tw?"
    assert await disk.names() == ["state"]
    await disk.delete("state")
    await disk.delete("state")
    assert await disk.names() == []
    disk.close()


async def test_bytes_are_written_once_more_in_their_place(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    await disk.append("log", [b"abcdef"], sync=True)
    await disk.rewrite("log", 2, b"CD")
    assert await disk.append("log", [b"!"], sync=True) == 6
    assert await disk.read("log", 0, 9) == b"abCDef!"
    with pytest.raises(NotFound):
        await disk.rewrite("none", 0, b"x")
    disk.close()


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A", ".lock", "a.new", "-a", "a" * 101, "a\0"])
async def test_a_name_outside_the_rules_is_refused(tmp_path: Path, name: str) -> None:
    disk = FileDisk(tmp_path / "inner")
    with pytest.raises(Invalid):
        await disk.append(name, [b"x"], sync=True)
    with pytest.raises(Invalid):
        await disk.read(name, 0, 1)
    disk.close()


async def test_a_folder_that_is_not_read_is_no_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FileDisk(tmp_path)
    await disk.append("log", [b"x"], sync=True)

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patched:
        for name in ("listdir", "stat", "statvfs", "open"):
            patched.setattr(os, name, broken)
        for call in (disk.names(), disk.free(), disk.size("log"), disk.read("log", 0, 1)):
            with pytest.raises(Unavailable, match="broken"):
                await call
    assert await disk.names() == ["log"]
    disk.close()


async def test_a_folder_is_open_once(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    await disk.append("log", [b"x"], sync=True)
    with pytest.raises(Unavailable, match="another process"):
        FileDisk(tmp_path)
    looker = FileDisk(tmp_path, read_only=True)
    assert await looker.read("log", 0, 9) == b"x"
    with pytest.raises(Invalid):
        await looker.append("log", [b"y"], sync=True)
    looker.close()
    disk.close()
    FileDisk(tmp_path).close()


async def test_a_temporary_file_of_a_crash_is_cleared(tmp_path: Path) -> None:
    (tmp_path / "state.new").write_bytes(b"half")
    disk = FileDisk(tmp_path)
    assert await disk.names() == []
    assert not (tmp_path / "state.new").exists()
    disk.close()


async def test_a_full_device_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FileDisk(tmp_path)
    await disk.append("log", [b"before"], sync=True)
    real, calls = os.writev, []

    def half(fd: int, buffers: list[memoryview]) -> int:
        calls.append(len(buffers))
        if len(calls) == 1:
            return real(fd, [buffers[0][:3]])
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "writev", half)
    with pytest.raises(DiskFull):
        await disk.append("log", [b"after", b"wards"], sync=True)
    with pytest.raises(DiskFull):
        await disk.replace("state", b"new")
    monkeypatch.undo()
    assert await disk.append("log", [b"!"], sync=True) == 6
    assert await disk.read("log", 0, 99) == b"before!"
    assert await disk.names() == ["log"]
    disk.close()


@pytest.mark.parametrize("call", ["open", "rename"])
async def test_no_room_for_a_file_is_a_full_device_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """If inodes or blocks of the folder are used up, nothing was written either, and the disk can still be read."""
    disk = FileDisk(tmp_path)
    await disk.append("log", [b"before"], sync=True)
    await disk.replace("state", b"old")
    known = getattr(os, call)

    def no_room(name: object, *args: Any) -> Any:
        if call == "rename" or args[0] & os.O_CREAT:
            raise OSError(errno.ENOSPC, "no space")
        return known(name, *args)

    monkeypatch.setattr(os, call, no_room)
    with pytest.raises(DiskFull):
        await disk.replace("state", b"new")
    if call == "open":
        with pytest.raises(DiskFull):
            await disk.append("other", [b"new"], sync=True)
        assert await disk.append("log", [b"!"], sync=True, witness=("marks", b"m")) == 6
    monkeypatch.undo()
    assert (await disk.read("state", 0, 9), (await disk.read("log", 0, 6))) == (b"old", b"before")
    assert sorted(os.listdir(tmp_path)) == [".lock", "log", "state"]
    await disk.replace("state", b"new")
    assert await disk.read("state", 0, 9) == b"new"
    disk.close()


async def test_a_witness_without_space_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, write = FileDisk(tmp_path), os.writev

    def no_marks(fd: int, parts: list[memoryview]) -> int:
        if bytes(parts[0]) == b"m":
            raise OSError(errno.ENOSPC, "no space")
        return write(fd, parts)

    monkeypatch.setattr(os, "writev", no_marks)
    assert await disk.append("log", [b"ab"], sync=True, witness=("marks", b"m")) == 0
    assert await disk.size("marks") == 0
    assert await disk.append("log", [b"c"], sync=True) == 2
    disk.close()


async def test_a_failed_sync_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FileDisk(tmp_path)

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "lost")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(DiskFailed):
        await disk.append("log", [b"x"], sync=True)
    monkeypatch.undo()
    for call in (disk.append("log", [b"y"], sync=True), disk.read("log", 0, 1), disk.names(), disk.size("log")):
        with pytest.raises(DiskFailed):
            await call
    disk.close()


async def test_synced_bytes_leave_the_page_cache_in_whole_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, dropped = FileDisk(tmp_path), list[tuple[int, int]]()
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, start, length, advice: dropped.append((start, length)))
    page = os.sysconf("SC_PAGESIZE")
    for size, sync in ((page // 2, True), (page, True), (3 * page, False), (page // 2, True), (0, True)):
        await disk.append("log", [b"x" * size], sync=sync)
    assert dropped == [(0, page), (4 * page, page)]
    disk.close()


class Threads:
    """A record of the threads that sync appends, in order: "here", the thread of the event loop, or "thread"."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self._sync = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self._watched)

    def _watched(self, fd: int) -> None:
        self.seen.append("here" if threading.current_thread() is threading.main_thread() else "thread")
        self._sync(fd)


async def test_a_small_append_to_an_idle_disk_is_done_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, threads = FileDisk(tmp_path, quick_s=60), Threads(monkeypatch)
    for size in (10, 10, SMALL + 1, 10):
        await disk.append("log", [b"x" * size], sync=True)
    assert threads.seen == ["thread", "here", "thread", "here"], "the first one makes the file"
    disk.close()


async def test_a_small_append_overtakes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, threads = FileDisk(tmp_path, quick_s=60), Threads(monkeypatch)
    await disk.append("log", [b"begin"], sync=True)
    large = asyncio.create_task(disk.append("log", [b"x" * 100_000], sync=True))
    await asyncio.sleep(0)
    large.cancel()  # whoever asked has gone, and it is written all the same
    assert await disk.append("log", [b"end"], sync=True) == 100_005
    assert threads.seen == ["thread"] * 3
    assert (tmp_path / "log").read_bytes() == b"begin" + b"x" * 100_000 + b"end"
    disk.close()


async def test_a_small_append_does_not_sync_what_much_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, threads = FileDisk(tmp_path, quick_s=60), Threads(monkeypatch)
    await disk.append("log", [b"x" * 100_000], sync=False)
    await disk.append("log", [], sync=True)
    await disk.append("log", [b"x"], sync=True)
    assert threads.seen == ["thread", "here"]
    disk.close()


async def test_a_slow_disk_is_left_to_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, threads = FileDisk(tmp_path, quick_s=0), Threads(monkeypatch)
    for _ in range(4):
        await disk.append("log", [b"x"], sync=True)
    assert threads.seen == ["thread", "here", "thread", "thread"]
    disk.close()


async def test_a_very_slow_disk_is_left_to_the_thread_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that held the event loop up for a fifth of a second is not tried there again a moment later."""
    disk, threads = FileDisk(tmp_path), Threads(monkeypatch)
    at = 1_000.0
    monkeypatch.setattr("sluice.cluster.host.disk.time", SimpleNamespace(monotonic=lambda: at))

    def sync(fd: int) -> None:
        nonlocal at
        threads._watched(fd)
        at += 0.2

    monkeypatch.setattr(os, "fdatasync", sync)
    for pause in (0.0, 1.0, 1.0, 10.0, 10.0):
        at += pause
        await disk.append("log", [b"x"], sync=True)
    assert threads.seen == ["thread", "here", "thread", "thread", "here"]
    disk.close()


async def test_a_closed_disk_takes_no_small_append(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path, quick_s=60)
    await disk.append("log", [b"x"], sync=True)
    disk.close()
    with pytest.raises(RuntimeError, match="ended"):
        await disk.append("log", [b"y"], sync=True)
    assert (tmp_path / "log").read_bytes() == b"x"


async def test_work_is_done_in_order_in_one_thread() -> None:
    worker, seen = Worker("w"), list[tuple[int, int]]()

    def note(number: int) -> int:
        seen.append((number, threading.get_ident()))
        return number

    assert await asyncio.gather(*(worker.do(note, number) for number in range(50))) == list(range(50))
    assert [number for number, _ in seen] == list(range(50))
    assert len({thread for _, thread in seen} | {threading.get_ident()}) == 2
    worker.close()
    worker.close()


async def test_an_error_of_the_work_comes_to_its_caller() -> None:
    worker = Worker("w")
    with pytest.raises(ZeroDivisionError):
        await worker.do(lambda: 1 // 0)
    assert await worker.do(len, "after it") == 8
    worker.close()
    with pytest.raises(RuntimeError, match="ended"):
        worker.do(len, "")


async def test_work_is_done_when_nobody_waits_any_more() -> None:
    worker, gate, done = Worker("w"), threading.Event(), list[str]()
    first, second = worker.do(gate.wait), worker.do(done.append, "second")
    second.cancel()
    gate.set()
    assert await first
    worker.close()
    assert done == ["second"]
    await asyncio.sleep(0)
    assert second.cancelled()


def test_closing_waits_for_work_whose_loop_has_ended() -> None:
    worker, gate, done = Worker("w"), threading.Event(), list[str]()

    async def give() -> None:
        worker.do(gate.wait)
        worker.do(done.append, "done")

    asyncio.run(give())
    gate.set()
    worker.close()
    assert done == ["done"]
