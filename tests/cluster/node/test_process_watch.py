"""The end of a process is known at once and for certain; being frozen, or somebody else, is not an end."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sluice.cluster.node import process_watch
from sluice.cluster.node.process_watch import ProcessWatch, this_process

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no handles of processes")

_TELL = (
    "import sys; from sluice.cluster.node.process_watch import this_process; "
    "print(this_process(), flush=True); sys.stdin.read()"
)


@pytest.fixture
def child() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process and the name that it gives itself."""
    command = [sys.executable, "-c", _TELL]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.kill()


async def test_killed_process_has_ended_before_anybody_reaps_it(child: tuple[subprocess.Popen[str], str]) -> None:
    process, name = child
    watch = ProcessWatch()
    waiting = [asyncio.ensure_future(watch.ended(name)) for _ in range(3)]
    await asyncio.sleep(0)
    assert len(watch._watches) == 1
    process.kill()
    await asyncio.wait_for(asyncio.gather(*waiting), 30)
    assert watch._watches == {}
    await asyncio.wait_for(watch.ended(name), 30)  # also for one who asks later


async def test_the_end_of_this_process_is_waited_for_by_nobody(child: tuple[subprocess.Popen[str], str]) -> None:
    """A process does not wait for an end that would end itself, too."""
    name = child[1]
    elsewhere = "machine/" + name.partition("/")[2]
    assert [ProcessWatch().sees(one) for one in (name, this_process(), elsewhere, "")] == [True, False, False, False]


async def test_frozen_process_has_not_ended(child: tuple[subprocess.Popen[str], str]) -> None:
    process, name = child
    waiting = asyncio.ensure_future(ProcessWatch().ended(name))
    process.send_signal(signal.SIGSTOP)
    done, _ = await asyncio.wait([waiting], timeout=0.3)
    assert not done
    process.kill()
    await asyncio.wait_for(waiting, 30)


async def test_a_number_given_to_another_process_means_the_first_ended() -> None:
    machine, pid, started = this_process().split("/")
    await asyncio.wait_for(ProcessWatch().ended(f"{machine}/{pid}/{int(started) - 1}"), 30)


@pytest.mark.parametrize("name", ["", "other-machine:1/1/1"])
async def test_process_of_another_machine_is_never_said_to_have_ended(name: str) -> None:
    done, left = await asyncio.wait([asyncio.ensure_future(ProcessWatch().ended(name))], timeout=0.2)
    assert not done
    for task in left:
        task.cancel()


async def unfinished(*names: str) -> bool:
    """Whether none of these is said to have ended in a while."""
    waiting = [asyncio.ensure_future(ProcessWatch().ended(name)) for name in names]
    done, left = await asyncio.wait(waiting, timeout=0.2)
    for task in left:
        task.cancel()
    return not done


async def test_a_process_whose_start_cannot_be_read_has_not_ended(
    child: tuple[subprocess.Popen[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor is left to read it with, or it belongs to a user whose processes are hidden."""
    process, name = child
    monkeypatch.setattr(process_watch, "_started", lambda _: "")
    assert await unfinished(name)
    waiting = asyncio.ensure_future(ProcessWatch().ended(name))
    process.kill()
    await asyncio.wait_for(waiting, 30)


async def test_a_process_that_does_not_know_its_start_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as it does not."""
    name = this_process()
    machine, pid, _ = name.split("/")
    assert await unfinished(f"{machine}/{pid}/")
    monkeypatch.setattr(process_watch, "_started", lambda _: "")
    process_watch._known.clear()
    assert this_process() == ""
    monkeypatch.undo()
    assert this_process() == name


async def test_a_name_that_means_no_process_is_waited_for() -> None:
    machine = this_process().partition("/")[0]
    wrong = ["", "/", "x/1", "-1/1", "0/1", f"{1 << 40}/1", f"{1 << 70}/1"]
    assert await unfinished(*(f"{machine}/{pid}" for pid in wrong))


async def test_a_process_without_a_handle_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(_: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "pidfd_open", short)
    assert await unfinished(this_process())


async def test_a_cancelled_wait_leaves_nothing_open() -> None:
    watch = ProcessWatch()
    before = len(os.listdir("/proc/self/fd"))
    waiting = [asyncio.ensure_future(watch.ended(this_process())) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.sleep(0.01)
    assert watch._watches == {}
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_forked_child_has_a_name_of_its_own() -> None:
    parent = this_process()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, this_process().encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        name = told.read()
    os.waitpid(child, 0)
    assert name.split("/")[:2] == [parent.split("/")[0], str(child)]


async def test_a_cancelled_wait_does_not_end_the_others(child: tuple[subprocess.Popen[str], str]) -> None:
    process, name = child
    watch = ProcessWatch()
    waiting = [asyncio.ensure_future(watch.ended(name)) for _ in range(3)]
    await asyncio.sleep(0.01)
    waiting.pop(1).cancel()
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in waiting)
    process.kill()
    await asyncio.wait_for(asyncio.gather(*waiting), 30)
    assert watch._watches == {}
