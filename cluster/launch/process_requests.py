"""Requests to a host process itself, and not to an actor in it.

The controller says: who are you, serve this, start, stop. A chaos run says: make yourself worse for a while.

It travels over the same connections as everything else (cluster.wire): Ray makes processes and ends them, and while its
head cannot be reached the others go on.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, ClassVar, Protocol

from sluice.actors.messages import Done
from sluice.actors.ports import Address
from sluice.actors.ports.wire import Blob, Packed, Reply, Request, pack, pack_error, unpack
from sluice.actors.runtime.host import Answer
from sluice.cluster.base.impairments import IMPAIRMENTS
from sluice.cluster.host.recordings import recording_part
from sluice.cluster.wire.net import ask_from_thread
from sluice.storage.errors import SluiceError, Unavailable

ACTOR = "process"
"""What is asked in each host process; it is no actor, but the process itself."""
ASK_MS = 5_000
"""How long a chaos run waits for an answer."""


class Introduced(Reply, kw_only=True):
    """Slot (empty if its name says it, or if it waits), node, and of every actor: kind, address, settings as JSON."""

    slot: str
    node: str
    running: list[tuple[str, str, str]]


class Introduce(Request[Introduced]):
    """A request for the slot, the node and the actors of a process."""

    reply: ClassVar[type[Reply]] = Introduced


class ServeSlot(Request[Done], kw_only=True):
    """Serve this slot from now on; Unavailable if it serves another one."""

    reply: ClassVar[type[Reply]] = Done
    slot: str


class Started(Reply, kw_only=True):
    """An actor runs at this address."""

    address: str


class StartActor(Request[Started], kw_only=True):
    """Start an actor; a repeated request waits for the first one. settings: JSON."""

    reply: ClassVar[type[Reply]] = Started
    kind: str
    actor: str
    settings: str


class StopActor(Request[Done], kw_only=True):
    """End an actor; fine if it is not here."""

    reply: ClassVar[type[Reply]] = Done
    actor: str


class Impair(Request[Done], kw_only=True):
    """Make this process worse for so long, see cluster.base.impairments; Invalid for another kind."""

    reply: ClassVar[type[Reply]] = Done
    kind: str
    amount: int
    seconds: float


class Felt(Reply, kw_only=True):
    """How often something was felt since it last began."""

    times: int


class Relieve(Request[Felt], kw_only=True):
    """Take that back if it is not over."""

    reply: ClassVar[type[Reply]] = Felt
    kind: str


class RecordingPart(Reply, kw_only=True):
    """A part of a file of recordings, and which folder this is with the names of its files (with no file asked for)."""

    place: str
    files: list[str]
    data: Blob


class ReadRecording(Request[RecordingPart], kw_only=True):
    """A request for a part of what the processes of this machine recorded, see cluster.host.recordings."""

    reply: ClassVar[type[Reply]] = RecordingPart
    file: str
    offset: int


class HostProcessItself(Protocol):
    """The process that is asked."""

    async def introduce(self) -> tuple[str, str, list[tuple[str, str, str]]]:
        """See Introduced."""

    def serve(self, slot: str) -> None:
        """See ServeSlot."""

    async def start(self, kind: str, actor: str, settings: dict[str, Any]) -> Address:
        """See StartActor."""

    async def stop(self, actor: str) -> None:
        """See StopActor."""


_KINDS: dict[str, type[Request[Any]]] = {
    kind.__name__: kind for kind in (Introduce, ServeSlot, StartActor, StopActor, Impair, Relieve, ReadRecording)
}


async def answer(host: HostProcessItself, kind: str, packed: Packed, data_dir: Path = Path()) -> Answer:
    """Carry out a request to this process and return its packed reply or error. data_dir: of this process."""
    try:
        wanted = _KINDS.get(kind)
        if wanted is None:
            raise Unavailable(f"a process does not know {kind}; is it an older version?")
        request = unpack(wanted, packed.head, packed.attachments, packed.handles)
        if isinstance(request, ReadRecording):
            found = await asyncio.to_thread(recording_part, data_dir, request.file, request.offset)
            return pack(RecordingPart(place=found[0], files=found[1], data=Blob(found[2])))
        return pack(await _do(host, request))
    except SluiceError as error:
        return pack_error(error)
    except Exception as error:
        return pack_error(Unavailable(f"failed: {error!r}"))


async def _do(host: HostProcessItself, request: Request[Any]) -> Reply:
    if isinstance(request, Introduce):
        slot, node, running = await host.introduce()
        return Introduced(slot=slot, node=node, running=running)
    if isinstance(request, ServeSlot):
        host.serve(request.slot)
        return Done()
    if isinstance(request, StartActor):
        return Started(address=await host.start(request.kind, request.actor, json.loads(request.settings)))
    if isinstance(request, Impair):
        IMPAIRMENTS.start(request.kind, request.amount, request.seconds)
        return Done()
    if isinstance(request, Relieve):
        IMPAIRMENTS.end(request.kind)
        return Felt(times=IMPAIRMENTS.felt.get(request.kind, 0))
    assert isinstance(request, StopActor)
    await host.stop(request.actor)
    return Done()


def impair(host: str, kind: str, amount: int, seconds: float) -> None:
    """Ask for it from a thread without an event loop. Raises SluiceErrors."""
    ask_from_thread(f"{host}/{ACTOR}", Impair(kind=kind, amount=amount, seconds=seconds), ASK_MS, host)


def relieve(host: str, kind: str) -> int:
    """The same; returns how often it was felt."""
    return ask_from_thread(f"{host}/{ACTOR}", Relieve(kind=kind), ASK_MS, host).times
