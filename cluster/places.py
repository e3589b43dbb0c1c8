"""Where actors run: host processes in the Ray cluster, made and ended for the controller.

A bookie has a process of its own. Topics and dispatchers share a pool of broker processes; a partition's topic and
its dispatchers are put into the same one, so that they talk without Ray. When the cluster has several nodes, bookies
and brokers are dealt out over them in turn.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import zlib
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayError, RayTaskError

from actors.ports import Address
from cluster.environment import NAMESPACE
from storage.errors import SluiceError, Unavailable

START_TIMEOUT = 60.0


class RayPlaces:
    """Starts hosts, and actors in them."""

    def __init__(self, settings: dict[str, Any], make_host: Callable[..., Any]) -> None:
        self._settings = settings
        self._make_host = make_host
        self._brokers = int(settings.get("brokers", 1))
        self._hosts: dict[str, tuple[str, Any]] = {}
        self._making: dict[str, asyncio.Lock] = {}

    async def start(self, kind: str, name: str, settings: dict[str, Any]) -> Address:
        """See actors.ports.Places."""
        slot = self._slot(kind, settings)
        async with self._making.setdefault(slot, asyncio.Lock()):
            if slot not in self._hosts:
                self._hosts[slot] = await self._make(slot)
        _, handle = self._hosts[slot]
        try:
            return str(await asyncio.wait_for(_answer(handle.start.remote(kind, name, settings)), START_TIMEOUT))
        except RayTaskError as error:
            if isinstance(error.cause, SluiceError):
                raise error.cause from None
            raise Unavailable(f"{kind} failed to start: {error.cause!r}") from error
        except (RayError, TimeoutError) as error:
            if self._hosts.get(slot, (None, None))[1] is handle:
                del self._hosts[slot]
            if not isinstance(error, ActorDiedError):
                ray.kill(handle)
            raise Unavailable(f"the process for {kind} ended: {type(error).__name__}") from error

    async def stop(self, address: Address, *, frozen: bool = False) -> None:
        """See actors.ports.Places."""
        host, _, actor = address.partition("/")
        for slot, (name, handle) in list(self._hosts.items()):
            if name == host:
                try:
                    if frozen:
                        raise TimeoutError
                    await asyncio.wait_for(_answer(handle.stop.remote(actor)), 2)
                except (RayError, TimeoutError):
                    self._hosts.pop(slot, None)
                    ray.kill(handle)

    async def inventory(self) -> list[tuple[str, Address, dict[str, Any]]]:
        """See actors.ports.Places; also finds the hosts that an earlier controller made."""
        found: list[tuple[str, Address, dict[str, Any]]] = []
        for name in await asyncio.to_thread(_host_names):
            try:
                handle = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
                rows = await asyncio.wait_for(_answer(handle.inventory.remote()), 3)
            except (ValueError, RayActorError, GetTimeoutError, RayError, TimeoutError):
                continue
            self._hosts[name.rsplit("-", 1)[0]] = (name, handle)
            found += [(kind, address, json.loads(settings)) for kind, address, settings in rows]
        return found

    def _slot(self, kind: str, settings: dict[str, Any]) -> str:
        if kind == "bookie":
            return str(settings["bookie"])
        home = zlib.crc32(str(settings["topic"]).encode()) + int(settings["partition"])
        return f"broker-{home % self._brokers}"

    async def _make(self, slot: str) -> tuple[str, Any]:
        name = f"{slot}-{secrets.token_hex(4)}"
        nodes = await asyncio.to_thread(_nodes)
        node = nodes[zlib.crc32(slot.encode()) % len(nodes)] if len(nodes) > 1 else None
        handle = self._make_host(name, self._settings, node=node)
        try:
            await asyncio.wait_for(_answer(handle.ready.remote()), START_TIMEOUT)
        except (RayError, TimeoutError) as error:
            raise Unavailable(f"no process could be started for {slot}: {type(error).__name__}") from error
        return name, handle


def _host_names() -> list[str]:
    listed = ray.util.list_named_actors(all_namespaces=True)
    return sorted(row["name"] for row in listed if row["namespace"] == NAMESPACE and row["name"] != "controller")


def _nodes() -> list[str]:
    return sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])


async def _answer(ref: Any) -> Any:
    return await ref
