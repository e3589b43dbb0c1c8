"""Recordings of several machines come together in one folder, through the requests that a process answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.actors.ports import Unknown
from sluice.actors.ports.wire import Packed, Request, pack
from sluice.actors.recorder.flight_file import RecordedSubscription, assemble
from sluice.actors.recorder.flight_file import pack as packed
from sluice.actors.runtime.host import opened
from sluice.cluster.host import recordings
from sluice.cluster.host.recordings import FOLDER, recorded_chunks
from sluice.cluster.launch import gathering
from sluice.cluster.launch.gathering import KeptRecordings, gather
from sluice.cluster.launch.process_requests import ReadRecording, answer
from sluice.storage.errors import Invalid, NotFound
from tests.actors.recorder.test_replay import busy


class Machines:
    """Processes with the data folders of their machines, reached through the codec; None does not answer."""

    def __init__(self, **folders: Path | None) -> None:
        self.folders = folders
        self.asked = 0

    @property
    def status(self) -> dict[str, Any]:
        """That of the cluster."""
        return {"actors": [{"address": f"{name}/{kind}"} for name in self.folders for kind in ("topic", "dispatcher")]}

    async def call(self, to: str, request: Request[Any], timeout: int) -> Any:
        self.asked += 1
        folder = self.folders[to.partition("/")[0]]
        if folder is None:
            return Unknown("it hangs")
        host: Any = None
        told = await answer(host, type(request).__name__, pack(request).copied(), folder)
        return opened(request, told.copied() if isinstance(told, Packed) else told)


def recorded(folder: Path, process: str, epoch: int) -> None:
    """Write a file of a ring."""
    chunk = busy().recording.taken(1_000)
    assert chunk is not None
    target = folder / FOLDER / process
    target.mkdir(parents=True)
    data = assemble([packed(type(chunk)(RecordedSubscription("orders", 0, "billing", epoch), 0, 1_000, chunk.calls))])
    (target / "flight-00000001").write_bytes(data)


async def test_each_machine_gives_its_files_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recordings, "PART_BYTES", 1_000)
    recorded(tmp_path / "a", "broker-0", 1)
    recorded(tmp_path / "a", "ended", 2)
    recorded(tmp_path / "b", "broker-0", 3)
    machines: Any = Machines(one=tmp_path / "a", two=tmp_path / "a", three=tmp_path / "b", hangs=None)
    await gather(machines, set(machines.folders), tmp_path / "all")
    found = list(recorded_chunks(tmp_path / "all", "orders", "billing"))
    assert sorted(chunk.of.epoch for chunk in found) == [1, 2, 3]
    assert caplog.messages == ["the recordings of hangs are missing: it hangs"]
    assert "hangs" not in caplog.records[0].msg, "each process is a kind of line by itself, and fills the log"
    bytes_on = sum(file.stat().st_size for file in (tmp_path / "all").rglob("flight-*"))
    assert machines.asked >= 4 + bytes_on // 1_000, "no file came in one part"


async def test_too_many_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MOST_BYTES", 100)
    recorded(tmp_path / "a", "broker-0", 1)
    machines: Any = Machines(one=tmp_path / "a")
    with pytest.raises(Invalid, match="longer than 100 bytes"):
        await gather(machines, set(machines.folders), tmp_path / "all")


@pytest.mark.parametrize("file", ["../token", "/etc/passwd", "broker-0/../../secret", "broker-0/nothing"])
async def test_a_file_that_is_no_recording_is_not_read(tmp_path: Path, file: str) -> None:
    recorded(tmp_path, "broker-0", 1)
    (tmp_path / "secret").write_text("x")
    machines: Any = Machines(one=tmp_path)
    with pytest.raises(NotFound, match="no recording"):
        await machines.call("one/process", ReadRecording(file=file, offset=0), 1)


async def test_later_fetch_brings_new_recordings_alone(tmp_path: Path) -> None:
    recorded(tmp_path / "a", "broker-0", 1)
    recorded(tmp_path / "b", "broker-0", 2)
    machines: Any = Machines(one=tmp_path / "a", two=tmp_path / "b")
    everywhere = KeptRecordings(machines, "one", tmp_path / "a")

    async def epochs() -> list[int]:
        return sorted(
            chunk.of.epoch for chunk in recorded_chunks(await everywhere(machines.status), "orders", "billing")
        )

    assert await epochs() == [1, 2]
    copied = [file for file in (tmp_path / "a").rglob("flight-*") if "others" in file.parts]
    assert len(copied) == 1, "those of this machine are not copied"
    before = copied[0].stat()
    assert await epochs() == [1, 2]
    assert copied[0].stat().st_mtime_ns == before.st_mtime_ns
    ring = tmp_path / "b" / FOLDER / "broker-0"
    recorded(tmp_path / "c", "broker-0", 3)
    (tmp_path / "c" / FOLDER / "broker-0" / "flight-00000001").rename(ring / "flight-00000002")
    assert await epochs() == [1, 2, 3]
    (ring / "flight-00000001").unlink()
    assert await epochs() == [1, 3]
    assert [each.of.epoch for each in recorded_chunks(tmp_path / "a", "orders", "billing")] == [1]
    machines.folders["two"] = None
    assert await epochs() == [1, 3]
