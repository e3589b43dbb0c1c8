"""Recordings of a whole cluster on this machine: each machine's files, fetched in parts from a process there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sluice.actors.ports import Net, Unknown
from sluice.cluster.host.recordings import FOLDER, recording_part, remove_stale
from sluice.cluster.launch.process_requests import ACTOR, ReadRecording, RecordingPart
from sluice.storage.errors import Invalid, NotFound, SluiceError, Unavailable

ASK_MS = 10_000
MOST_BYTES = 4 << 30
"""A gathering that would be longer is refused."""
OTHERS = "others"
logger = logging.getLogger(__name__)


def hosts_of(status: Mapping[str, Any]) -> set[str]:
    """Names of the processes of a cluster with this status."""
    return {str(row["address"]).partition("/")[0] for row in status.get("actors", ())}


class KeptRecordings:
    """The recordings of all machines for a process that asks often: files of other machines are kept, and followed."""

    def __init__(self, net: Net, me: str, data_dir: Path) -> None:
        """me: name of this process, which is not asked."""
        self._net, self._me, self._data_dir = net, me, data_dir
        self._one = asyncio.Lock()

    async def __call__(self, status: Mapping[str, Any] | None) -> Path:
        """Return a data folder that has them as of now. status: of the cluster, if it is known. Raises Invalid."""
        into = self._data_dir / FOLDER / OTHERS
        async with self._one:
            await asyncio.to_thread(remove_stale, into / FOLDER)
            await gather(self._net, hosts_of(status or {}) - {self._me}, into, self._data_dir)
        return into


async def gather(net: Net, hosts: set[str], into: Path, here: Path | None = None) -> None:
    """Fetch what is new in the recordings of the machines of these processes.

    Processes of one machine share a folder, also with what ended processes left there. One that does not give them is
    logged. here: data folder of this machine, which needs no copy. Raises Invalid.
    """
    root = into / FOLDER
    places: set[str] = set()
    kept: set[Path] = set()
    whole = 0
    if here is not None:
        own, names, _ = await asyncio.to_thread(recording_part, here, "", 0)
        places.add(own)
        for process in sorted({name.partition("/")[0] for name in names}):
            root.mkdir(parents=True, exist_ok=True)
            if not (root / process).exists():
                (root / process).symlink_to((here / FOLDER / process).absolute())
    for host in sorted(hosts):
        try:
            found = await _part(net, host, "", 0)
            if found.place in places:
                continue
            places.add(found.place)
            for name in found.files:
                process, _, file = name.partition("/")
                folder = root / f"{found.place}-{process}"
                folder.mkdir(parents=True, exist_ok=True)
                kept.add(folder / file)
                whole += await _copy(net, host, name, folder / file, MOST_BYTES - whole)
            for gone in set(root.glob(f"{found.place}-*/*")) - kept:
                gone.unlink()
        except Invalid:
            raise
        except (SluiceError, OSError) as error:
            logger.warning("the recordings of %s are missing: %s", host, error)


async def _copy(net: Net, host: str, name: str, target: Path, most: int) -> int:
    """Fetch what is new of one file, which may grow meanwhile; return its bytes."""
    with target.open("ab") as stream, suppress(NotFound):  # the ring went on
        offset = stream.tell()
        while data := (await _part(net, host, name, offset)).data.data:
            stream.write(data)
            offset += len(data)
            if offset > most:
                raise Invalid(f"all recordings together are longer than {MOST_BYTES} bytes; ask on each machine")
    return offset


async def _part(net: Net, host: str, file: str, offset: int) -> RecordingPart:
    answer = await net.call(f"{host}/{ACTOR}", ReadRecording(file=file, offset=offset), ASK_MS)
    if isinstance(answer, Unknown):
        raise Unavailable(answer.reason)
    return answer
