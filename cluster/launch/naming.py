"""How a process outside of Ray finds the processes of a cluster: it asks the process of the controller.

Attaching to Ray takes a second of processor time, most of it imports, and Ray is wanted for one question only: where
does the process of this name listen? So the process that takes office as the controller writes into the data folder
where it listens itself (the door), and answers that question for every process that comes in by it.
A process that does not see the folder, or is on another machine, attaches itself to Ray.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from sluice.actors.ports import Unknown
from sluice.actors.ports.wire import Packed, pack, pack_error, unpack
from sluice.actors.runtime.host import Answer
from sluice.cluster.base.ownership import read_own_file
from sluice.cluster.base.tokens import ensure_token
from sluice.cluster.node.environment import TOKEN_PATH
from sluice.cluster.node.folder import DOOR_FILE, replace_file
from sluice.cluster.wire.endpoint import Endpoint
from sluice.cluster.wire.net import NAMING, DirectNet, Listening, Whereabouts, cluster_token
from sluice.cluster.wire.peers import Find
from sluice.storage.errors import Invalid, SluiceError

ASK_TIMEOUT = 10_000


class Door(msgspec.Struct, frozen=True):
    """The door file. address: `host:port` of Ray's head. token_file: the cluster's, empty if it has none."""

    address: str
    endpoint: Endpoint
    token_file: str = ""


async def answer(packed: Packed, find: Find) -> Answer:
    """Answer a Whereabouts, in a process that is attached to Ray."""
    try:
        asked = unpack(Whereabouts, packed.head, packed.attachments, packed.handles)
    except SluiceError as error:
        return pack_error(error)
    found = await find(asked.host)
    if isinstance(found, Unknown):
        return pack(Listening(reason=found.reason, gone=found.gone))
    return pack(Listening(endpoint=found))


def open_door(data_dir: Path, address: str, endpoint: Endpoint) -> None:
    """Write into the data folder where this process listens; only its user can read that.

    Without an effect where the cluster's token lies in no file: then nobody could prove that he knows it.
    """
    token_file = os.environ.get(TOKEN_PATH, "")
    if cluster_token() and not token_file:
        return
    replace_file(data_dir / DOOR_FILE, msgspec.json.encode(Door(address, endpoint, token_file)))


def read_door(data_dir: Path) -> Door | None:
    """The door of the cluster on a folder; None without one that this process can go through.

    Raises Invalid if another user could have written it: he would be given the token, or hand over his own.
    """
    try:
        door = msgspec.json.decode(read_own_file(data_dir / DOOR_FILE), type=Door)
    except (OSError, msgspec.DecodeError):
        return None
    return door if door.endpoint.is_near else None


def through(data_dir: Path, address: str) -> DirectNet | None:
    """A net without Ray to the cluster at this address; None if this folder has no door file of it.

    Raises Invalid if the token cannot be read, or another user could have written the door.
    """
    door = read_door(data_dir)
    if door is None or door.address != address:
        return None
    asking = _Asking(data_dir.resolve(), door)  # which stays the same when the program changes its own folder
    token = ensure_token(Path(door.token_file)).encode() if door.token_file else b""
    asking.net = DirectNet(None, asking, token, controller=door.endpoint.name)
    return asking.net


class _Asking:
    """A finder of processes that asks the one at the door, which each process that takes office writes again."""

    net: DirectNet

    def __init__(self, data_dir: Path, door: Door) -> None:
        self._data_dir, self._door = data_dir, door

    async def __call__(self, host: str) -> Endpoint | Unknown:
        try:
            self._door = read_door(self._data_dir) or self._door
        except Invalid as error:
            return Unknown(f"{error}")
        keeper = self._door.endpoint
        if host == keeper.name:
            return keeper
        listening = await self.net.call(f"{keeper.name}/{NAMING}", Whereabouts(host=host), ASK_TIMEOUT)
        if isinstance(listening, Unknown):
            return Unknown(f"where {host} is cannot be asked: {listening.reason}")
        return listening.endpoint or Unknown(listening.reason, gone=listening.gone)
