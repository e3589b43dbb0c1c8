"""Recordings of a whole cluster on this machine: each machine's files, fetched in parts from a process there."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sluice.actors.ports import Unknown
from sluice.cluster.client.async_client import AsyncClient
from sluice.cluster.host.recordings import FOLDER
from sluice.cluster.launch.connecting import connect
from sluice.cluster.launch.process_requests import ACTOR, ReadRecording, RecordingPart
from sluice.storage.errors import Invalid, NotFound, SluiceError, Unavailable

ASK_MS = 10_000
MOST_BYTES = 4 << 30
"""A gathering that would be longer is refused."""


@contextmanager
def gathered(address: str, data_dir: Path) -> Iterator[Path]:
    """A temporary data folder with the recordings of all machines of a running cluster. Raises Unavailable, Invalid."""
    with (
        tempfile.TemporaryDirectory(prefix="sluice-gathered-") as folder,
        connect(address, data_dir=data_dir) as client,
    ):
        client.run(gather, Path(folder), logging.getLogger(__name__).warning)
        yield Path(folder)


async def gather(client: AsyncClient, into: Path, warn: Callable[[str], object]) -> None:
    """Fetch the recordings of each machine once. warn: called for each process that does not give them.

    Processes of one machine share a folder, also with what ended processes left there. Raises Unavailable, Invalid.
    """
    places: set[str] = set()
    whole = 0
    for host in sorted({str(row["address"]).partition("/")[0] for row in (await client.status())["actors"]}):
        try:
            found = await _part(client, host, "", 0)
            if found.place in places:
                continue
            places.add(found.place)
            for name in found.files:
                process, _, file = name.partition("/")
                folder = into / FOLDER / f"{len(places)}-{process}"
                folder.mkdir(parents=True, exist_ok=True)
                whole += await _copy(client, host, name, folder / file, MOST_BYTES - whole)
        except Invalid:
            raise
        except (SluiceError, OSError) as error:
            warn(f"the recordings of {host} are missing: {error}")


async def _copy(client: AsyncClient, host: str, name: str, target: Path, most: int) -> int:
    """Fetch one file, which may grow meanwhile; return its bytes."""
    offset = 0
    with target.open("wb") as stream, suppress(NotFound):  # the ring went on
        while data := (await _part(client, host, name, offset)).data.data:
            stream.write(data)
            offset += len(data)
            if offset > most:
                raise Invalid(f"all recordings together are longer than {MOST_BYTES} bytes; ask on each machine")
    return offset


async def _part(client: AsyncClient, host: str, file: str, offset: int) -> RecordingPart:
    answer = await client.net.call(f"{host}/{ACTOR}", ReadRecording(file=file, offset=offset), ASK_MS)
    if isinstance(answer, Unknown):
        raise Unavailable(answer.reason)
    return answer
