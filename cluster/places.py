"""Where actors run: host processes in the Ray cluster, made and ended for the controller.

A bookie has a process of its own. Topics and dispatchers share a pool of broker processes; a partition's topic and
its dispatchers are put into the same one, so that they talk without Ray. Each new process goes to the node that runs
the fewest of its sort, so bookies are spread as far as the nodes go, and brokers too.

A bookie belongs to its disk. Nothing remembers which machine that disk is in: the bookie is tried on one machine after
another, and its cookie says whether the disk is its own. A machine that is refused has lost nothing by it. Its process
ends with it, so that the next one finds the disk unlocked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from actors.fleet import key_of
from actors.ports import Address
from cluster.attach import answers
from cluster.environment import NAMESPACE
from cluster.real import StructuredLog
from cluster.standby import AGAIN_S, FIRST_S, STANDBY, HostProcess, Standby
from storage.errors import Corrupt, SluiceError, Unavailable

log = StructuredLog("places")

BROKER = "broker-"
"""How the slots of the shared processes begin; each other slot is a bookie's."""
START_TIMEOUT = 120.0
STOP_TIMEOUT = 2.0
PROMPT, INVENTORY_TIMEOUT = 1.5, 5.0
"""Seconds that a new controller waits for the processes that another one made to introduce themselves before it begins
to work; and after which one that has not is taken for frozen, and ended.
"""
CONNECT_TIMEOUT = 0.5
"""Seconds in which the port of a node that lives takes a connection."""

Placed = tuple[str, Address, dict[str, Any]]
"""Something that runs: kind, address, settings."""


@dataclass(frozen=True, slots=True)
class Node:
    """A live Ray node. address: of its machine; several nodes of one machine share its disks."""

    id: str
    address: str


class RayPlaces:
    """Starts hosts, and actors in them."""

    def __init__(self, settings: dict[str, Any], make_host: Callable[..., Any]) -> None:
        self._settings = settings
        self._make_host = make_host
        self._brokers = int(settings.get("brokers", 1))
        self._hosts: dict[str, HostProcess] = {}
        self._making: dict[str, asyncio.Lock] = {}
        self._going: dict[str, str] = {}
        """Node that a slot's process is being started on."""
        self._lost: dict[str, None] = {}
        """Slots whose process was ended here: the next one replaces it."""
        self._meeting: dict[str, asyncio.Task[None]] = {}
        """By name, the introductions of the processes that another controller made."""
        self._found: list[Placed] = []
        """What runs in those that introduced themselves, as far as nobody was told of it yet."""
        self._standby = Standby(self._make_standby, lambda host: _kill(host.handle))
        self._keep_standby = bool(settings.get("standby", True))

    async def start(self, kind: str, name: str, settings: dict[str, Any]) -> Address:
        """See actors.ports.Places."""
        slot = self._slot(kind, settings)
        if (known := await self._found_late(slot, key_of(kind, settings))) is not None:
            return known
        if kind != "bookie":
            return await self._start_in(await self._host(slot, None), slot, kind, name, settings)
        tried: list[str] = []
        while True:
            machine = await self._machine(slot, tried)
            host = await self._host(slot, machine)
            try:
                return await self._start_in(host, slot, kind, name, settings, alone=True)
            except Corrupt:
                tried.append(machine)
                if not await self._others(tried):
                    raise

    async def stop(self, address: Address, *, frozen: bool = False) -> None:
        """See actors.ports.Places."""
        name, _, actor = address.partition("/")
        for slot, host in list(self._hosts.items()):
            if host.name == name:
                try:
                    if frozen or not slot.startswith(BROKER):
                        raise TimeoutError
                    await asyncio.wait_for(host.handle.stop.remote(actor), STOP_TIMEOUT)
                except (RayError, TimeoutError):
                    self._forget(slot, host)

    async def inventory(self) -> list[Placed]:
        """See actors.ports.Places; also finds the hosts that an earlier controller made, and ends those that hang.

        One that is slow to answer keeps waiting those only who want something of its slot.
        """
        for name in await asyncio.to_thread(_host_names):
            self._meeting[name] = asyncio.create_task(self._meet(name), name=f"meet {name}")
        if self._meeting:
            await asyncio.wait(self._meeting.values(), timeout=PROMPT)
        found, self._found = sorted(self._found, key=lambda placed: placed[1]), []
        if any(slot.startswith(BROKER) for slot in self._hosts):
            self._refill(AGAIN_S)
        return found

    async def _meet(self, name: str) -> None:
        """Get to know a process that another controller made, and what runs in it. Never raises."""
        try:
            handle = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
        except (ValueError, RayError):
            return  # it has ended
        try:
            slot, node, rows = await asyncio.wait_for(handle.introduce.remote(), INVENTORY_TIMEOUT)
        except (RayError, TimeoutError) as error:
            log("process_unknown", host=name, error=type(error).__name__)
            _kill(handle)
            return
        host, slot = HostProcess(name, handle, node), slot or slot_of(name)
        if slot == STANDBY:
            self._standby.found(host)
        elif self._hosts.setdefault(slot, host) is not host:
            _kill(handle)  # what it serves has been given to another one meanwhile
            return
        self._found += [(kind, address, json.loads(settings)) for kind, address, settings in rows]

    async def _found_late(self, slot: str, key: str) -> Address | None:
        """Where an actor of this key runs of which the controller was not told; waits for the processes of its slot."""
        late = [task for name, task in self._meeting.items() if slot_of(name) == slot and not task.done()]
        if late:
            await asyncio.wait(late)
        for placed in self._found:
            if key_of(placed[0], placed[2]) == key:
                self._found.remove(placed)
                return placed[1]
        return None

    def _slot(self, kind: str, settings: dict[str, Any]) -> str:
        if kind == "bookie":
            return str(settings["bookie"])
        home = zlib.crc32(str(settings["topic"]).encode()) + int(settings["partition"])
        return f"{BROKER}{home % self._brokers}"

    async def _start_in(
        self, host: HostProcess, slot: str, kind: str, name: str, settings: dict[str, Any], *, alone: bool = False
    ) -> Address:
        """alone: an actor that cannot start leaves nothing behind in its process, such as the lock of its disk."""
        try:
            return str(await asyncio.wait_for(host.handle.start.remote(kind, name, settings), START_TIMEOUT))
        except RayTaskError as error:
            if alone:
                self._forget(slot, host)
            if isinstance(error.cause, SluiceError):
                raise error.cause from None
            raise Unavailable(f"{kind} failed to start: {error.cause!r}") from error
        except (RayError, TimeoutError) as error:
            self._forget(slot, host)
            raise Unavailable(f"the process for {kind} ended: {type(error).__name__}") from error

    async def _host(self, slot: str, machine: str | None) -> HostProcess:
        """The process of a slot, made if need be (on that machine, if one is given)."""
        async with self._making.setdefault(slot, asyncio.Lock()):
            if slot not in self._hosts:
                nodes = await asyncio.to_thread(_nodes)
                here = [node for node in nodes if node.address == machine] or nodes
                node = least_loaded(here, slot, self._placed())
                self._going[slot] = node.id
                try:
                    known = await self._standby.take(slot) if self._may_stand_in(slot, node, nodes) else None
                    if known is not None:
                        log("process_stands_in", slot=slot, host=known.name)
                    self._hosts[slot] = known or await self._make(slot, node if len(nodes) > 1 else None)
                finally:
                    del self._going[slot]
                if slot.startswith(BROKER):
                    self._refill(AGAIN_S if slot in self._lost else FIRST_S)
            return self._hosts[slot]

    def _refill(self, after: float) -> None:
        if self._keep_standby:
            self._standby.refill(after)

    def _may_stand_in(self, slot: str, node: Node, nodes: list[Node]) -> bool:
        """Whether the waiting process may serve a slot that would else get one on `node`: as well placed as that."""
        where = self._standby.node
        if not slot.startswith(BROKER) or where not in [each.id for each in nodes]:
            return False
        brokers = [host.node for other, host in self._hosts.items() if other.startswith(BROKER)]
        return brokers.count(where) <= brokers.count(node.id)

    async def _make_standby(self) -> HostProcess:
        nodes = await asyncio.to_thread(_nodes)
        return await self._make(STANDBY, least_loaded(nodes, STANDBY, self._placed()) if len(nodes) > 1 else None)

    async def _machine(self, slot: str, tried: list[str]) -> str:
        """The machine to try next for a bookie: where its process is, else the one with the fewest of them."""
        if slot in self._hosts:
            node_id = self._hosts[slot].node
            for node in await asyncio.to_thread(_nodes):
                if node.id == node_id:
                    return node.address
        return least_loaded(await self._others(tried), slot, self._placed()).address

    async def _others(self, tried: list[str]) -> list[Node]:
        return [node for node in await asyncio.to_thread(_nodes) if node.address not in tried]

    def _placed(self) -> dict[str, str]:
        return {slot: host.node for slot, host in self._hosts.items()} | self._going

    async def _make(self, slot: str, node: Node | None) -> HostProcess:
        name = f"{slot}-{secrets.token_hex(4)}"
        log("process_starts", host=name, node=node.id if node else "")
        handle = self._make_host(name, self._settings, node=node.id if node else None)
        try:
            await asyncio.wait_for(handle.ready.remote(), START_TIMEOUT)
            return HostProcess(name, handle, await asyncio.wait_for(handle.node.remote(), START_TIMEOUT))
        except (RayError, TimeoutError) as error:
            _kill(handle)
            told = (str(error).strip() or type(error).__name__).splitlines()[-1]
            log("process_failed", host=name, error=told)
            raise Unavailable(f"no process could be started for {slot}: {told}") from error

    def _forget(self, slot: str, host: HostProcess) -> None:
        """End a process that does not answer, or is of no use."""
        log("process_ended", slot=slot, host=host.name)
        self._lost[slot] = None
        if self._hosts.get(slot) is host:
            del self._hosts[slot]
        self._found = [placed for placed in self._found if not placed[1].startswith(f"{host.name}/")]
        _kill(host.handle)


def least_loaded(nodes: list[Node], slot: str, placed: dict[str, str]) -> Node:
    """The node with the fewest processes of this slot's sort, then with the fewest of all, then the first by id.

    placed: node id by slot. Raises Unavailable if there is no node.
    """
    if not nodes:
        raise Unavailable("the cluster has no live node")
    sort = slot_of(slot)
    same = [node for other, node in sorted(placed.items()) if slot_of(other) == sort and other != slot]
    return min(nodes, key=lambda node: (same.count(node.id), list(placed.values()).count(node.id), node.id))


def slot_of(name: str) -> str:
    """What a host's name begins with: its slot, or that it waits; and of a slot, its sort."""
    return name.rsplit("-", 1)[0]


def _kill(handle: Any) -> None:
    with contextlib.suppress(RayError, ValueError):
        ray.kill(handle)


def _host_names() -> list[str]:
    listed = ray.util.list_named_actors(all_namespaces=True)
    return sorted(row["name"] for row in listed if row["namespace"] == NAMESPACE and row["name"] != "controller")


def _nodes() -> list[Node]:
    """The live nodes. Ray takes a second or two to notice that one has died; its port refuses at once."""
    rows = [node for node in ray.nodes() if node["Alive"]]
    if len(rows) > 1:
        with ThreadPoolExecutor(len(rows)) as pool:
            rows = [node for node, lives in zip(rows, pool.map(_lives, rows), strict=True) if lives]
    return sorted((Node(node["NodeID"], node["NodeManagerAddress"]) for node in rows), key=lambda node: node.id)


def _lives(node: dict[str, Any]) -> bool:
    return answers(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}", CONNECT_TIMEOUT)
