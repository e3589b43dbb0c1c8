"""Where actors run: host processes in the Ray cluster, made and ended for the controller.

A bookie has a process of its own. Topics and dispatchers share a pool of broker processes; a partition's topic and
its dispatchers are put into the same one, so that they talk without Ray. Each new process goes to the node that runs
the fewest of its sort, so bookies are spread as far as the nodes go, and brokers too.

Who waits for a partition does not wait for a process. What a broker process ran that has ended goes to one that was
kept ready, else to another broker process, and gets one of its own again when nothing was lost for a while.

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
CALM_S = 20.0
"""Nothing was lost for so long: what took refuge in another slot's process gets one of its own again."""
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
        """By slot; several slots of brokers may have the same one."""
        self._making: dict[str, asyncio.Lock] = {}
        self._replacing = asyncio.Lock()
        self._going: dict[str, str] = {}
        """Node that a slot's process is being started on."""
        self._lost: dict[str, None] = {}
        """Slots that had a process before: the next one replaces it."""
        self._meeting: dict[str, asyncio.Task[None]] = {}
        """By name, the introductions of the processes that another controller made."""
        self._found: list[Placed] = []
        """What runs in those that introduced themselves, as far as nobody was told of it yet."""
        self._standby = Standby(self._make_standby, lambda host: _kill(host.handle), self._missing)
        self._keep_standby = bool(settings.get("standby", True))
        self._lost_at = 0.0
        """When a process was lost last, on the loop's clock; or when this controller began."""
        self._parting: asyncio.Task[None] | None = None

    async def start(self, kind: str, name: str, settings: dict[str, Any]) -> Address:
        """See actors.ports.Places."""
        slot = self._slot(kind, settings)
        if (known := await self._found_late(slot, key_of(kind, settings))) is not None:
            return known
        if kind != "bookie":
            return await self._start_in(await self._host(slot, None), kind, name, settings)
        tried: list[str] = []
        while True:
            machine = await self._machine(slot, tried)
            host = await self._host(slot, machine)
            try:
                return await self._start_in(host, kind, name, settings, alone=True)
            except Corrupt:
                tried.append(machine)
                if not await self._others(tried):
                    raise

    async def stop(self, address: Address, *, frozen: bool = False) -> None:
        """See actors.ports.Places."""
        name, _, actor = address.partition("/")
        host = next((host for host in self._hosts.values() if host.name == name), None)
        if host is None:
            return
        try:
            if frozen or not host.slot.startswith(BROKER):
                raise TimeoutError
            await asyncio.wait_for(host.handle.stop.remote(actor), STOP_TIMEOUT)
        except (RayError, TimeoutError):
            self._forget(host)

    async def inventory(self) -> list[Placed]:
        """See actors.ports.Places; also finds the hosts that an earlier controller made, and ends those that hang.

        One that is slow to answer keeps waiting those only who want something of its slot.
        """
        for name in await asyncio.to_thread(_host_names):
            self._meeting[name] = asyncio.create_task(self._meet(name), name=f"meet {name}")
        self._lost_at = asyncio.get_running_loop().time()
        if self._meeting:
            await asyncio.wait(self._meeting.values(), timeout=PROMPT)
        found, self._found = sorted(self._found, key=lambda placed: placed[1]), []
        if self._hosts:  # it ran before: which broker's process is missing was lost
            self._lost |= {f"{BROKER}{number}": None for number in range(self._brokers)}
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
        host = HostProcess(name, handle, node, slot or slot_of(name))
        if host.slot == STANDBY:
            self._standby.found(host)
        elif (other := self._hosts.get(host.slot)) is not None and other.slot == host.slot:
            _kill(handle)  # what it serves has been given to another one meanwhile
            return
        else:
            self._hosts[host.slot] = host
        for kind, address, packed in rows:
            settings = json.loads(packed)
            self._found.append((kind, address, settings))
            self._shelter(self._slot(kind, settings), host)

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
        self, host: HostProcess, kind: str, name: str, settings: dict[str, Any], *, alone: bool = False
    ) -> Address:
        """alone: an actor that cannot start leaves nothing behind in its process, such as the lock of its disk."""
        try:
            return str(await asyncio.wait_for(host.handle.start.remote(kind, name, settings), START_TIMEOUT))
        except RayTaskError as error:
            if alone:
                self._forget(host)
            if isinstance(error.cause, SluiceError):
                raise error.cause from None
            raise Unavailable(f"{kind} failed to start: {error.cause!r}") from error
        except (RayError, TimeoutError) as error:
            self._forget(host)
            raise Unavailable(f"the process for {kind} ended: {type(error).__name__}") from error

    async def _host(self, slot: str, machine: str | None) -> HostProcess:
        """The process of a slot, made if need be (on that machine, if one is given)."""
        async with self._making.setdefault(slot, asyncio.Lock()):
            if slot not in self._hosts:
                nodes = await asyncio.to_thread(_nodes)
                here = [node for node in nodes if node.address == machine] or nodes
                await self._get_host(slot, least_loaded(here, slot, self._placed()), nodes)
            return self._hosts[slot]

    async def _get_host(self, slot: str, node: Node, nodes: list[Node], *, alone: bool = False) -> None:
        """Give a slot a process: the waiting one, else what is left of the others, else a new one on that node.

        alone: none that runs something already. What several brokers' slots lost at the same time is replaced one
        after the other: the first one's process can take the others in, and is not slowed down by theirs.
        """
        self._going[slot] = node.id
        replaced = not alone and slot in self._lost and slot.startswith(BROKER)
        try:
            async with self._replacing if replaced else contextlib.nullcontext():
                known = await self._stand_in(slot, node, nodes)
                if known is None and replaced:
                    if self._shelter(slot, self._refuge(nodes)):
                        return
                    known = await self._soonest(slot, node, nodes)
                self._hosts[slot] = known or await self._make(slot, node if len(nodes) > 1 else None)
        finally:
            del self._going[slot]
            if slot.startswith(BROKER):
                self._refill(AGAIN_S if replaced else FIRST_S)

    async def _soonest(self, slot: str, node: Node, nodes: list[Node]) -> HostProcess | None:
        """The waiting process, for which one is made if there is none: it may be half-way already."""
        if not self._keep_standby:
            return None
        await self._standby.soon()
        return await self._stand_in(slot, node, nodes)

    def _refuge(self, nodes: list[Node]) -> HostProcess | None:
        """The broker process on these nodes that serves the fewest slots, if there is one."""
        alive = {node.id for node in nodes}
        served = [host.name for host in self._hosts.values()]
        brokers = [host for host in self._hosts.values() if host.slot.startswith(BROKER) and host.node in alive]
        return min(brokers, key=lambda host: (served.count(host.name), host.name), default=None)

    def _shelter(self, slot: str, host: HostProcess | None) -> bool:
        """Let a slot that has no process be served by another one's, until it gets its own; False if that is None."""
        if host is not None and self._hosts.setdefault(slot, host) is host and host.slot != slot:
            log("process_shelters", slot=slot, host=host.name)
            if self._parting is None or self._parting.done():
                self._parting = asyncio.create_task(self._part(), name="part")
        return host is not None

    async def _part(self) -> None:
        """When all is calm, give each slot that took refuge a process of its own, one after the other."""
        now = asyncio.get_running_loop().time
        while guests := [slot for slot, host in self._hosts.items() if host.slot != slot]:
            if (left := self._lost_at + CALM_S - now()) > 0:
                await asyncio.sleep(left)
                continue
            try:
                await self._move(guests[0])
            except (RayError, TimeoutError, Unavailable) as error:
                log("process_stays", slot=guests[0], error=str(error))
                await asyncio.sleep(CALM_S)

    async def _move(self, slot: str) -> None:
        """Give a slot a process of its own. What it ran in another one is ended there, and started by who misses it.

        Raises RayError, TimeoutError, Unavailable.
        """
        async with self._making.setdefault(slot, asyncio.Lock()):
            host = self._hosts.get(slot)
            if host is None or host.slot == slot:
                return
            nodes = await asyncio.to_thread(_nodes)
            await self._get_host(slot, least_loaded(nodes, slot, self._placed()), nodes, alone=True)
            _, _, rows = await asyncio.wait_for(host.handle.introduce.remote(), INVENTORY_TIMEOUT)
            for kind, address, settings in rows:
                if self._slot(kind, json.loads(settings)) == slot:
                    await asyncio.wait_for(host.handle.stop.remote(address.partition("/")[2]), STOP_TIMEOUT)

    def _refill(self, after: float) -> None:
        if self._keep_standby:
            self._standby.refill(after)

    async def _stand_in(self, slot: str, node: Node, nodes: list[Node]) -> HostProcess | None:
        """A waiting process that is as well placed for this slot as one on `node` would be, if there is one."""
        if not slot.startswith(BROKER):
            return None
        brokers = [host.node for other, host in self._hosts.items() if other.startswith(BROKER)]
        self._standby.keep({each.id for each in nodes})
        for host in sorted(self._standby.waiting, key=lambda host: (brokers.count(host.node), host.name)):
            if brokers.count(host.node) <= brokers.count(node.id) and await self._standby.take(host, slot):
                log("process_stands_in", slot=slot, host=host.name)
                return host
        return None

    def _missing(self) -> int:
        """How many processes shall wait: one, and one for each slot that has none of its own."""
        return 1 + sum(host.slot != slot for slot, host in self._hosts.items())

    async def _make_standby(self) -> HostProcess:
        nodes = await asyncio.to_thread(_nodes)
        placed = self._placed() | {f"{STANDBY}{n}": host.node for n, host in enumerate(self._standby.waiting)}
        return await self._make(STANDBY, least_loaded(nodes, STANDBY, placed) if len(nodes) > 1 else None)

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
            return HostProcess(name, handle, await asyncio.wait_for(handle.node.remote(), START_TIMEOUT), slot)
        except (RayError, TimeoutError) as error:
            _kill(handle)
            told = (str(error).strip() or type(error).__name__).splitlines()[-1]
            log("process_failed", host=name, error=told)
            raise Unavailable(f"no process could be started for {slot}: {told}") from error

    def _forget(self, host: HostProcess) -> None:
        """End a process that does not answer, or is of no use."""
        slots = [slot for slot, known in self._hosts.items() if known is host]
        if not slots:
            return  # each of its actors was asked to stop, and the first that failed has ended it
        log("process_ended", slots=slots, host=host.name)
        self._lost_at = asyncio.get_running_loop().time()
        for slot in slots:
            self._lost[slot] = None
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
