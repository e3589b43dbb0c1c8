"""Starts, asks and ends host processes in the Ray cluster, as placement decides (`actors/placement`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from actors.ports import Address, Introduction, Node, Unknown
from cluster.bootstrap.attach import answers, first_line
from cluster.bootstrap.environment import CONTROLLER_HOST, NAMESPACE
from storage.errors import SluiceError, Unavailable

LOST_NODES_S = 1.0
"""Seconds between two looks for lost nodes."""
CONNECT_TIMEOUT = 0.5
"""Seconds in which the port of a node that lives takes a connection."""


class RayProcesses:
    """Implements actors.ports.Processes. make_host: starts a host and returns its Ray handle at once."""

    def __init__(self, settings: dict[str, Any], make_host: Callable[..., Any]) -> None:
        self._settings = settings
        self._make_host = make_host
        self._handles: dict[str, Any] = {}
        self._nodes: dict[str, str] = {}
        """The node of each process, as far as it is known."""

    async def part_from_lost_nodes(self, part: Callable[[str], None]) -> None:
        """Ask anew where the processes of lost nodes are, again and again. part: forgets how a process is reached.

        A node whose raylet hangs is lost to Ray, and with it what ran there: nobody finds these processes any more. But
        they live, and would go on answering on connections that they have.
        """
        while True:
            await asyncio.sleep(LOST_NODES_S)
            with contextlib.suppress(Unavailable):
                live = [node.id for node in await self.nodes()]
                for name, node in list(self._nodes.items()):
                    if node not in live:
                        part(name)

    async def nodes(self) -> list[Node]:
        try:
            return await asyncio.to_thread(live_nodes)
        except (RayError, ConnectionError, RuntimeError) as error:
            raise Unavailable(f"Ray does not say which nodes it has: {first_line(error)}") from error

    async def names(self) -> list[str]:
        listed = await asyncio.to_thread(ray.util.list_named_actors, True)
        return sorted(row["name"] for row in listed if row["namespace"] == NAMESPACE and row["name"] != CONTROLLER_HOST)

    async def make(self, name: str, node: str | None, timeout: int) -> str:
        try:
            handle = self._handles[name] = self._make_host(name, self._settings, node=node)
            await asyncio.wait_for(handle.ready.remote(), timeout / 1000)
            where = self._nodes[name] = str(await asyncio.wait_for(handle.node.remote(), timeout / 1000))
            return where
        except (RayError, ValueError, TimeoutError) as error:
            self.kill(name)
            raise Unavailable((str(error).strip() or type(error).__name__).splitlines()[-1]) from error

    async def introduce(self, name: str, timeout: int) -> Introduction | Unknown:
        if name not in self._handles:
            try:
                self._handles[name] = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
            except (ValueError, RayError):
                return Unknown(f"there is no process {name}", gone=True)
        try:
            said = await self._ask(name, timeout, lambda host: host.introduce.remote())
        except SluiceError as error:
            return Unknown(f"{name} does not start: {error}")
        if isinstance(said, Unknown):
            return said
        slot, node, running = said
        self._nodes[name] = node
        return Introduction(slot, node, [(kind, address, json.loads(packed)) for kind, address, packed in running])

    async def serve(self, name: str, slot: str, timeout: int) -> Unknown | None:
        said = await self._ask(name, timeout, lambda host: host.serve.remote(slot))
        return said if isinstance(said, Unknown) else None

    async def start(
        self, name: str, kind: str, actor: str, settings: dict[str, Any], timeout: int
    ) -> Address | Unknown:
        said = await self._ask(name, timeout, lambda host: host.start.remote(kind, actor, settings))
        return said if isinstance(said, Unknown) else str(said)

    async def stop(self, name: str, actor: str, timeout: int) -> Unknown | None:
        try:
            said = await self._ask(name, timeout, lambda host: host.stop.remote(actor))
        except SluiceError as error:
            return Unknown(f"{actor} does not stop: {error}")
        return said if isinstance(said, Unknown) else None

    def kill(self, name: str) -> None:
        self._nodes.pop(name, None)
        handle = self._handles.pop(name, None)
        if handle is not None:
            end(handle)

    async def _ask(self, name: str, timeout: int, call: Callable[[Any], Awaitable[Any]]) -> Any:
        """The result of a call to a host, or Unknown. Raises its error as a SluiceError."""
        handle = self._handles.get(name)
        if handle is None:
            return Unknown(f"{name} was ended", gone=True)
        try:
            return await asyncio.wait_for(call(handle), timeout / 1000)
        except TimeoutError:
            return Unknown(f"no answer of {name} within {timeout / 1000:g} s")
        except RayTaskError as error:
            if isinstance(error.cause, SluiceError):
                raise error.cause from None
            raise Unavailable(f"failed in {name}: {error.cause!r}") from error
        except RayActorError as error:
            gone = not isinstance(error, ray.exceptions.ActorUnavailableError)
            return Unknown(f"{name}: {first_line(error)}", gone=gone)
        except RayError as error:
            return Unknown(f"{name}: {first_line(error)}")


def end(handle: Any) -> None:
    """End a process; fine if it is gone."""
    with contextlib.suppress(RayError, ValueError):
        ray.kill(handle)


def live_nodes() -> list[Node]:
    """The live nodes. Ray takes a second or two to notice that one has died; its port refuses at once."""
    rows = [node for node in ray.nodes() if node["Alive"]]
    if len(rows) > 1:
        with ThreadPoolExecutor(len(rows)) as pool:
            rows = [node for node, listens in zip(rows, pool.map(_listens, rows), strict=True) if listens]
    return sorted((Node(node["NodeID"], node["NodeManagerAddress"]) for node in rows), key=lambda node: node.id)


def _listens(node: dict[str, Any]) -> bool:
    return answers(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}", CONNECT_TIMEOUT)
