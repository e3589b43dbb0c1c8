"""Recordings of a data folder: each process that runs dispatchers keeps its own below `recorder`.

Reading needs no cluster: the files say what came into the decisions, also of processes that have ended.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sluice.actors.dispatcher.takeover import ProcessRecorder
from sluice.actors.ports import Ports
from sluice.actors.recorder.flight_file import RecordedCalls, excerpt, unpack
from sluice.actors.recorder.flight_recorder import KEPT_MS, PREFIX, FlightRecorder
from sluice.cluster.base.real import Tasks
from sluice.cluster.host.disk import FileDisk
from sluice.storage.errors import NotFound, Unavailable

FOLDER = "recorder"
PART_BYTES = 4 << 20


def open_recorder(ports: Ports, settings: Mapping[str, Any]) -> None:
    """Let the flight recorder of this process begin, if it has not. settings: with `recorder_bytes` above 0."""
    process_recorder, limit = ports.process.of(ProcessRecorder), int(settings["recorder_bytes"])
    if process_recorder.recorder is not None:
        return
    root, process = Path(settings["data_dir"]) / FOLDER, ports.me.partition("/")[0]
    remove_stale(root)
    try:
        disk = FileDisk(root / process, readers=1)
    except (Unavailable, OSError) as error:
        ports.log("recorder_off", error=str(error))
        return
    me = f"{process}/recorder"
    tasks = Tasks(me, lambda name, error: ports.log("recorder_failed", task=name, error=repr(error)))
    process_recorder.recorder = recorder = FlightRecorder()
    recorder.open(replace(ports, me=me, disk=disk, spawn=tasks), limit)


def remove_stale(root: Path) -> None:
    """Remove what processes left that have ended, and had written nothing for as long as recordings are kept."""
    oldest = time.time() - KEPT_MS / 1000
    for folder in root.glob("*"):
        with contextlib.suppress(Unavailable, OSError):  # it lives, or its files go just now
            if max((file.stat().st_mtime for file in folder.glob(f"{PREFIX}*")), default=oldest) < oldest:
                with contextlib.closing(FileDisk(folder, readers=1)):
                    shutil.rmtree(folder, ignore_errors=True)


def recording_part(data_dir: Path, file: str, offset: int) -> tuple[str, list[str], bytes]:
    """Return which folder of recordings this is, the names of its files, and of one of them `PART_BYTES` from `offset`.

    file: empty for none. Raises NotFound if it is none of the names.
    """
    root = data_dir / FOLDER
    names = sorted(str(path.relative_to(root)) for path in root.glob(f"*/{PREFIX}*"))
    place = f"{socket.gethostname()}-{root.stat().st_dev}-{root.stat().st_ino}" if names else ""
    if not file:
        return place, names, b""
    if file not in names:
        raise NotFound(f"{file[:100]!r} is no recording here")
    with (root / file).open("rb") as stream:
        stream.seek(offset)
        return place, [], stream.read(PART_BYTES)


def recorded_chunks(data_dir: Path, topic: str, subscription: str) -> Iterator[RecordedCalls]:
    """Yield what the processes of this machine recorded of a subscription, each dispatcher's in order.

    Raises NotFound where nothing is recorded at all, Corrupt.
    """
    for file in recorded_files(data_dir):
        yield from chunks_in(file, topic, subscription)


def recorded_files(data_dir: Path) -> list[Path]:
    """Return the files of all processes of this machine, in order. Raises NotFound if there are none."""
    files = sorted((data_dir / FOLDER).glob(f"*/{PREFIX}*"))
    if not files:
        raise NotFound(f"{data_dir / FOLDER} has no recordings; see recorder_bytes, and --data-dir of the machine")
    return files


def chunks_in(file: Path, topic: str, subscription: str) -> Iterator[RecordedCalls]:
    """Yield what a file has of a subscription. Raises Corrupt."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:  # the ring went on
        return
    for chunk in unpack(data, str(file), whole=False):
        if (chunk.of.topic, chunk.of.subscription) == (topic, subscription):
            yield chunk


def export_incident(data_dir: Path, topic: str, subscription: str, span: tuple[int, int], output: Path) -> int:
    """Write what was recorded of a subscription in `span` (both ends in ms) into one file; return its bytes.

    Raises NotFound, Invalid if it would be too long, Corrupt.
    """
    data = excerpt(recorded_chunks(data_dir, topic, subscription), *span)
    output.write_bytes(data)
    return len(data)
