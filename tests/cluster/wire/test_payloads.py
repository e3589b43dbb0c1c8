"""Shared payloads: written once, read in place, changed by nobody, and gone when the last one lets go."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from sluice.actors.ports.wire import Packed
from sluice.cluster.wire import payloads
from sluice.cluster.wire.frames import ATTACHED, REQUEST, FrameReader, MalformedFrame, WireFrame
from sluice.cluster.wire.payloads import SharedPayload, read, written

pytestmark = pytest.mark.skipif(not payloads.POSSIBLE, reason="this system has no sealed memory")

ROWS = np.random.default_rng(7).bytes(200_000)


def share(data: bytes = ROWS) -> SharedPayload:
    made = SharedPayload.create(data)
    assert made is not None
    return made


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Check that the test has closed the descriptors and mappings that it shared."""
    gc.collect()
    before, mapped, counted = psutil.Process().num_fds(), mappings(), SharedPayload.open
    yield
    gc.collect()
    assert (psutil.Process().num_fds(), mappings(), SharedPayload.open) == (before, mapped, counted)


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:sluice")


def over(packed: Packed, *, passes: bool, settle: bool = True) -> Packed:
    """A message as another process would read it."""
    pieces, descriptors = written(REQUEST, 1, b"a", packed, passes)
    reader = FrameReader()
    reader.descriptors.extend(os.dup(each) for each in descriptors)
    frames: list[WireFrame] = []
    for piece in pieces:
        left = memoryview(piece).cast("B")
        while left:
            room = reader.buffer()
            count = min(len(room), len(left))
            room[:count] = left[:count]
            left = left[count:]
            frames += reader.advance(count)
    (frame,) = frames
    return read(frame, settle=settle)


def test_a_payload_is_read_as_it_was_written() -> None:
    view = share().view()
    assert view == ROWS
    assert view.readonly


def test_a_view_outlives_everything_else() -> None:
    view = share().view()[10:20]
    gc.collect()
    assert view == ROWS[10:20]


def test_a_shared_payload_cannot_be_changed() -> None:
    made = share()
    with pytest.raises(OSError, match="not permitted"):
        os.write(made.descriptor, b"x")
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(made.descriptor, 10)


def test_a_payload_that_its_author_can_change_is_not_taken() -> None:
    """The author could cut the payload while another process reads it, which ends the reader."""
    for descriptor in (os.memfd_create("x", os.MFD_ALLOW_SEALING), os.open(os.devnull, os.O_RDONLY)):
        with pytest.raises(MalformedFrame):
            SharedPayload.received(descriptor)
    weak = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    fcntl.fcntl(weak, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with pytest.raises(MalformedFrame, match="can still change"):
        SharedPayload.received(weak)


@pytest.mark.parametrize("settle", [True, False])
def test_a_payload_travels_as_a_descriptor(settle: bool) -> None:
    made = share()
    got = over(Packed(b"head", [b"column"], [made]), passes=True, settle=settle)
    (handle,) = got.handles
    assert isinstance(handle, SharedPayload)
    assert handle.view() == ROWS
    assert (handle.descriptor >= 0) is not settle
    assert [bytes(part) for part in got.attachments] == [b"column"]


def test_between_machines_it_travels_as_its_bytes() -> None:
    got = over(Packed(b"head", [b"column"], [share(), share(b"z" * 70_000)]), passes=False)
    assert [bytes(part) for part in got.attachments] == [b"column"]
    assert [bytes(part) for part in got.handles] == [ROWS, b"z" * 70_000]


def test_one_that_is_read_here_is_passed_on_as_its_bytes() -> None:
    made = share().keep_mapping()
    assert made.descriptor < 0
    pieces, descriptors = written(REQUEST, 1, b"a", Packed(b"", [], [made]), True)
    assert not descriptors
    assert bytes(memoryview(pieces[0])[5:6]) == bytes([REQUEST | ATTACHED])


def test_a_payload_is_passed_on_without_a_copy() -> None:
    made = share()
    assert SharedPayload.behind(made.view()) is made
    assert SharedPayload.behind(made.view()[1:]) is None
    assert SharedPayload.behind(ROWS) is None
    assert SharedPayload.behind(memoryview(ROWS)) is None
    made.keep_mapping()
    assert SharedPayload.behind(made.view()) is None


def test_nothing_is_shared_if_descriptors_run_short(monkeypatch: pytest.MonkeyPatch) -> None:
    first = share()
    monkeypatch.setattr(payloads, "_most_open", lambda: SharedPayload.open)
    assert SharedPayload.create(ROWS) is None
    del first


def test_parts_become_one() -> None:
    made = SharedPayload.create(ROWS[:1000], b"", memoryview(ROWS)[1000:])
    assert made is not None
    assert made.size == len(ROWS)
    assert made.view() == ROWS


def test_a_payload_is_not_passed_on_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    made = share()
    view = made.view()
    monkeypatch.setattr(payloads, "_most_open", lambda: 0)
    assert SharedPayload.behind(view) is None
    assert made.descriptor < 0
    assert view == ROWS


def test_a_frame_that_nobody_reads_leaves_no_descriptor() -> None:
    made, reader = share(), FrameReader()
    reader.descriptors.append(os.dup(made.descriptor))
    reader.close()
    frame = WireFrame(REQUEST, 1, b"", b"", [], [os.open(os.devnull, os.O_RDONLY), os.dup(made.descriptor)])
    with pytest.raises(MalformedFrame):
        read(frame, settle=True)


SHARER = """
import os, socket, sys, time
sys.path.insert(0, {root!r})
from sluice.cluster.wire.payloads import SharedPayload
made = SharedPayload.create(bytes(range(256)) * 1000)
sock = socket.socket(fileno=int(sys.argv[1]))
socket.send_fds(sock, [b"x"], [made.descriptor])
time.sleep(600)
"""


def test_a_payload_outlives_a_sharer_that_is_killed() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    root = str(Path(payloads.__file__).parents[2])
    with ours, theirs:
        code = SHARER.format(root=root)
        sharer = subprocess.Popen([sys.executable, "-c", code, str(theirs.fileno())], pass_fds=[theirs.fileno()])
        try:
            _, (descriptor,), _, _ = socket.recv_fds(ours, 10, 1)
        finally:
            with contextlib.suppress(ProcessLookupError):
                sharer.send_signal(signal.SIGKILL)
            sharer.wait()
        assert SharedPayload.received(descriptor).view() == bytes(range(256)) * 1000
