"""Starts, asks and ends host processes in the Ray cluster, as placement decides (`actors/placement`).

Ray makes and ends processes, and says which nodes and processes there are. While its head does not answer, what it said
last holds. Everything else is said to the processes themselves (`process_requests.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray.exceptions import RayError

from sluice.actors.ports import Address, Introduction, Net, Node, Unknown
from sluice.cluster.base.printable import first_line
from sluice.cluster.launch.attach import answers
from sluice.cluster.launch.process_requests import ACTOR, Introduce, ServeSlot, StartActor, StopActor
from sluice.cluster.node.environment import NAMESPACE, is_controller_host
from sluice.storage.errors import SluiceError, Unavailable

LOST_NODES_S = 1.0
"""Seconds between two looks for lost nodes."""
CONNECT_TIMEOUT = 0.5
"""Seconds in which the port of a node that lives takes a connection; it is tried twice."""
LOOK_S = 1.0
"""Between two looks whether the node of a process that starts is still there."""
HEAD_S = 1.0
"""So long Ray's head is waited for, before what it said last is taken."""
WARM_S, WARM_MS = 5.0, 1_000


class Listed:
    """The last answer of Ray's head, for all callers in this process.

    A head that is away is asked by one thread at a time, which may wait for minutes.
    """

    def __init__(self) -> None:
        self.asking = ThreadPoolExecutor(3, "ray")
        self.making = ThreadPoolExecutor(8, "make")
        self.ending = ThreadPoolExecutor(4, "end")
        self._probing = ThreadPoolExecutor(8, "probe")
        self._rows: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._pending: dict[str, asyncio.Future[Any]] = {}
        self._overdue: dict[str, asyncio.Future[Any]] = {}
        """Of the pending questions those that the head has not answered within HEAD_S."""
        self._probes: dict[str, asyncio.Future[bool | None]] = {}
        """By node, the probe that began last."""
        self._silent: dict[str, bool] = {}
        """By node, whether the probe before that one heard nothing."""
        self.away: list[Node] = []
        """Nodes that belong to the cluster, and that could not be reached at the last look."""
        self.places: dict[str, str] = {}
        """The node of each process that said so to this one, while it was no controller."""

    async def nodes(self) -> list[Node]:
        """The nodes that can be reached, in order of id. Raises Unavailable."""
        self._rows = await self._asked("nodes", ray.nodes, self._rows)
        rows = [row for row in self._rows if row["Alive"]]
        reached = [row for row in rows if len(rows) == 1]
        if len(rows) > 1:
            outcome = await asyncio.gather(*map(self._reached, rows))
            reached = [row for row, told in zip(rows, outcome, strict=True) if told is True]
            self.away = _sorted([row for row, told in zip(rows, outcome, strict=True) if told is None])
        return _sorted(reached)

    async def _reached(self, row: dict[str, Any]) -> bool | None:
        """See _probe. A node that was silent is asked beside, and said to be silent meanwhile: a controller that takes
        over while a machine is away looks a dozen times where it may start something, and keys wait for that.
        """
        node = row["NodeID"]
        probe = self._probes.get(node)
        if probe is None or probe.done():
            if probe is not None:
                self._silent[node] = probe.result() is None
            probe = self._probes[node] = asyncio.get_running_loop().run_in_executor(self._probing, _probe, row)
        return None if self._silent.get(node) else await asyncio.shield(probe)

    async def head_answers(self) -> bool:
        """Whether Ray's head answers now. Raises Unavailable."""
        return await self._asked("nodes", ray.nodes, None) is not None

    async def names(self) -> list[str]:
        """All host processes and candidates, in order. Raises Unavailable."""
        # Asked only of a head that answers: of one that is away the thread would wait for minutes.
        listed = None
        if await self.head_answers():
            listed = await self._asked("names", lambda: ray.util.list_named_actors(True), None)
        if listed is not None:
            self._names = sorted(row["name"] for row in listed if row["namespace"] == NAMESPACE)
        return self._names

    async def _asked(self, what: str, ask: Callable[[], Any], last: Any) -> Any:
        """The answer of Ray's head, or `last`. A question that it has not answered in time is not waited for again."""
        pending = self._pending.get(what)
        if pending is None or pending.done():
            pending = self._pending[what] = asyncio.get_running_loop().run_in_executor(self.asking, ask)
            pending.add_done_callback(lambda done: done.cancelled() or done.exception())
        elif self._overdue.get(what) is pending:
            return last
        try:
            return await asyncio.wait_for(asyncio.shield(pending), HEAD_S)
        except TimeoutError:
            self._overdue[what] = pending
            return last
        except (RayError, ConnectionError, RuntimeError) as error:
            raise Unavailable(f"Ray does not say which {what} it has: {first_line(error)}") from error


def _probe(row: dict[str, Any]) -> bool | None:
    """Whether a node takes connections: False if it refuses them, None if nothing is heard of it.

    Ray takes a second or two to notice that one has died; its port refuses at once.
    """
    for _ in range(2):
        began = time.monotonic()
        if answers(f"{row['NodeManagerAddress']}:{row['NodeManagerPort']}", CONNECT_TIMEOUT):
            return True
        if time.monotonic() - began < CONNECT_TIMEOUT / 2:
            return False
    return None


def _sorted(rows: list[dict[str, Any]]) -> list[Node]:
    return sorted((Node(row["NodeID"], row["NodeManagerAddress"]) for row in rows), key=lambda node: node.id)


LISTED = Listed()


async def keep_warm(net: Net) -> None:
    """Know every process and be connected to it, for when this one is to be the controller; for ever."""

    async def know(name: str) -> None:
        with contextlib.suppress(SluiceError):
            told = await net.call(f"{name}/{ACTOR}", Introduce(), WARM_MS)
            if not isinstance(told, Unknown):
                LISTED.places[name] = told.node

    while True:
        with contextlib.suppress(Unavailable):
            await LISTED.nodes()
            names = await LISTED.names()
            LISTED.places = {name: LISTED.places[name] for name in names if name in LISTED.places}
            await asyncio.gather(*map(know, names))
        await asyncio.sleep(WARM_S)


class RayProcesses:
    """Implements actors.ports.Processes. make_host: starts a host and returns its Ray handle at once."""

    def __init__(self, settings: dict[str, Any], make_host: Callable[..., Any], net: Net) -> None:
        self._settings = settings
        self._make_host = make_host
        self._net = net
        self._handles: dict[str, Any] = {}
        self._nodes: dict[str, str] = {}
        """The node of each process, as far as it is known."""
        self._ending: dict[str, None] = {}
        """Processes that are to be ended as soon as Ray's head answers."""

    async def part_from_lost_nodes(self, part: Callable[[str], None]) -> None:
        """Ask again and again where the processes of lost nodes are. part: forgets how a process is reached.

        A node whose raylet hangs is lost to Ray, and with it what ran there: nobody finds these processes any more. But
        they live, and would go on answering on connections that they have.
        """
        while True:
            await asyncio.sleep(LOST_NODES_S)
            with contextlib.suppress(Unavailable):
                known = [node.id for node in [*await self.nodes(), *self.away()]]
                for name, node in list(self._nodes.items()):
                    if node not in known:
                        part(name)

    async def nodes(self) -> list[Node]:
        return await LISTED.nodes()

    def away(self) -> list[Node]:
        return LISTED.away

    async def names(self) -> list[str]:
        return [name for name in await LISTED.names() if not is_controller_host(name)]

    async def candidates(self) -> list[str]:
        return [name for name in await LISTED.names() if is_controller_host(name)]

    async def make(self, name: str, node: str | None, timeout: int) -> str:
        if not await LISTED.head_answers():
            raise Unavailable("Ray's head does not answer, and makes no process")
        try:
            # Ray registers a name before it returns: whoever waits for that must not be everybody's event loop.
            make = functools.partial(self._make_host, name, self._settings, node=node)
            handle = self._handles[name] = await asyncio.wait_for(_in_thread(make), timeout / 1000)
            ready = asyncio.ensure_future(_result(handle.ready.remote()))
            await asyncio.wait_for(self._unless_lost(ready, node), timeout / 1000)
            where = self._nodes[name] = str(await asyncio.wait_for(handle.node.remote(), timeout / 1000))
            return where
        except (RayError, ConnectionError, RuntimeError, ValueError, TimeoutError, Unavailable) as error:
            self.kill(name)
            raise Unavailable((str(error).strip() or type(error).__name__).splitlines()[-1]) from error

    async def _unless_lost(self, ready: asyncio.Future[Any], node: str | None) -> None:
        """Wait for a process to be ready. Raises Unavailable once its node has ended, a minute or two before Ray says
        so.
        """
        try:
            while not ready.done():
                await asyncio.wait([ready], timeout=LOOK_S)
                if node is not None and not ready.done() and await self._has_ended(node):
                    raise Unavailable("its node has ended")
            ready.result()
        finally:
            ready.cancel()

    async def _has_ended(self, node: str) -> bool:
        """Whether a node is known to have ended; one that is away has not."""
        try:
            return all(each.id != node for each in [*await self.nodes(), *self.away()])
        except Unavailable:
            return False

    async def introduce(self, name: str, timeout: int) -> Introduction | Unknown:
        node = LISTED.places.get(name)
        if any(away.id == node for away in LISTED.away):
            return Unknown(f"the machine of {name} is away")  # nobody has to wait to be told that
        try:
            known = await self._net.call(f"{name}/{ACTOR}", Introduce(), timeout)
        except SluiceError as error:
            return Unknown(f"{name} does not start: {error}")
        if isinstance(known, Unknown):
            return known
        self._nodes[name] = known.node
        self._ending.pop(name, None)  # it is in use again
        rows = [(kind, address, json.loads(packed)) for kind, address, packed in known.running]
        return Introduction(known.slot, known.node, rows)

    async def serve(self, name: str, slot: str, timeout: int) -> Unknown | None:
        done = await self._net.call(f"{name}/{ACTOR}", ServeSlot(slot=slot), timeout)
        return done if isinstance(done, Unknown) else None

    async def start(
        self, name: str, kind: str, actor: str, settings: dict[str, Any], timeout: int
    ) -> Address | Unknown:
        request = StartActor(kind=kind, actor=actor, settings=json.dumps(settings))
        started = await self._net.call(f"{name}/{ACTOR}", request, timeout)
        return started if isinstance(started, Unknown) else started.address

    async def stop(self, name: str, actor: str, timeout: int) -> Unknown | None:
        try:
            done = await self._net.call(f"{name}/{ACTOR}", StopActor(actor=actor), timeout)
        except SluiceError as error:
            return Unknown(f"{actor} does not stop: {error}")
        return done if isinstance(done, Unknown) else None

    def kill(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._ending[name] = None
        handle = self._handles.pop(name, None)
        asyncio.get_running_loop().run_in_executor(LISTED.ending, self._end_process, name, handle)

    def _end_process(self, name: str, handle: Any) -> None:
        """End it, unless it was taken into use again before Ray's head answered: an order would wait for that, too."""
        with contextlib.suppress(ValueError, RayError, ConnectionError, RuntimeError):
            ray.nodes()
            if name in self._ending:
                end(ray.get_actor(name, NAMESPACE) if handle is None else handle)
        self._ending.pop(name, None)


async def _result(answer: Any) -> Any:
    return await answer


def _in_thread(work: Callable[[], Any]) -> asyncio.Future[Any]:
    return asyncio.get_running_loop().run_in_executor(LISTED.making, work)


def end(handle: Any) -> None:
    """End a process; fine if it is gone."""
    with contextlib.suppress(RayError, ValueError):
        ray.kill(handle)
