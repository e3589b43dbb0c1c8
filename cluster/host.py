"""A host: one process in the Ray cluster that runs several Sluice actors.

Ray pays for processes (66 MB each) and for calls between them (about a millisecond), so a broker host runs a
partition's topic and its dispatchers side by side and they talk without Ray. A bookie has a host to itself, because
its disk and its death are its own. Hosts are detached, never restarted and never retried by Ray: a new incarnation
has a new name, and epochs keep the old one out.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import psutil
import ray
from ray.exceptions import RayError

from actors.actor import REQUESTS, Actor
from actors.messages import Stats, Text
from actors.ports import Address, Meta, Objects, Ports, Unknown
from actors.wire import Reply, Request, pack, pack_error, unpack
from cluster.deaths import ProcessWatch
from cluster.metrics import EVERY_S, Exporter
from cluster.net import Envelope, RayNet
from cluster.real import RealClock, StructuredLog, Tasks, log_to_stderr, make_rng
from storage.errors import InvariantViolation, SluiceError, Unavailable

logger = logging.getLogger("sluice")

BOOT_RETRY_S = 1.0
KNOCK_S = 0.1
"""Seconds between attempts of a restarted host to call itself."""


class Parts(Protocol):
    """What a host is given to build actors from; the composition root is cluster.build."""

    def stores(self, settings: dict[str, Any]) -> tuple[Meta, Objects]:
        """The metadata and object stores that the settings name."""

    def actor(self, kind: str, ports: Ports, settings: dict[str, Any]) -> Actor:
        """An actor of a kind, not yet started."""


@dataclass(eq=False, slots=True)
class _Running:
    """One actor here. calls: the tasks in which it is answering somebody. over: it answers no more."""

    kind: str
    actor: Actor
    tasks: Tasks
    settings: dict[str, Any]
    calls: dict[asyncio.Task[Any], None] = field(default_factory=dict)
    over: bool = False

    def end(self) -> None:
        """End what it does by itself and for others: who waits for it learns at once that it is gone."""
        self.over = True
        self.tasks.cancel_all()
        for call in list(self.calls):
            call.cancel()

    async def answer(self, request: Request[Any]) -> Reply | None:
        """What the actor says; None if it ended first. Raises what the actor raises."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.calls[task] = None
        try:
            return await self.actor.handle(request)
        except asyncio.CancelledError:
            if not self.over:
                raise
            task.uncancel()
            return None
        finally:
            self.calls.pop(task, None)


class Host:
    """Runs actors. Becomes a Ray actor at one place only, `remote_host`."""

    def __init__(
        self, name: str, parts: Parts, settings: dict[str, Any], boot: list[tuple[str, str, dict[str, Any]]]
    ) -> None:
        log_to_stderr(str(settings.get("log_level", "warning")))
        # What the imports made stays for good, and columns hold no cycles: looking through all of it at every few
        # hundred allocations cost a broker a tenth of its time.
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        self.name = name
        self._slot = ""
        self._parts = parts
        self._settings = settings
        self._boot = boot
        self._net = RayNet(self)
        self._watch = ProcessWatch()
        self._meta, self._objects = parts.stores(settings)
        self._exporter = Exporter(str(settings.get("cluster", "sluice")))
        self._actors: dict[str, _Running] = {}
        self._ready: asyncio.Task[None] | None = None
        self._exporting: asyncio.Task[None] | None = None
        self._booted = False
        if boot:
            # Nobody may call for a long time after Ray has restarted this process: it wakes itself.
            handle = ray.get_runtime_context().current_actor
            threading.Thread(target=knock, args=(handle,), name="knock", daemon=True).start()

    async def ready(self) -> int:
        """Start the actors that this host boots with; returns the process id. Raises what their start raises."""
        if self._ready is None or (self._ready.done() and self._ready.exception() is not None):
            self._ready = asyncio.get_running_loop().create_task(self._start_boot())
        await asyncio.shield(self._ready)
        self._booted = True
        return os.getpid()

    async def wake(self) -> None:
        """Boot, and go on trying while a store is away; whoever waits for `ready` is told of each failure."""
        while True:
            try:
                await self.ready()
                return
            except Exception as error:
                logger.warning("%s does not start: %r", self.name, error)
                await asyncio.sleep(BOOT_RETRY_S)

    def serve(self, slot: str) -> None:
        """Stand in for the process of this slot from now on."""
        self._slot = slot

    def node(self) -> str:
        """The id of the Ray node that this process runs on."""
        return str(ray.get_runtime_context().get_node_id())

    async def _export(self) -> None:
        """Keep the metrics up to date, for as long as this host lives."""
        while True:
            await asyncio.sleep(EVERY_S)
            for actor, running in list(self._actors.items()):
                if running.kind in ("dispatcher", "topic"):
                    with contextlib.suppress(SluiceError):
                        reply = await self.deliver(actor, Stats())
                        if isinstance(reply, Text):
                            self._exporter.show(running.kind, reply.json)

    async def _start_boot(self) -> None:
        if self._exporting is None:
            self._exporting = asyncio.get_running_loop().create_task(self._export())
        for kind, actor, settings in self._boot:
            await self.start(kind, actor, settings)

    async def start(self, kind: str, actor: str, settings: dict[str, Any]) -> Address:
        """Start an actor here and return its address. Raises what its start raises."""
        address = f"{self.name}/{actor}"
        if actor in self._actors:
            return address
        tasks = Tasks(address, lambda reason: self._drop(actor, reason))
        ports = Ports(
            me=address,
            clock=RealClock(),
            net=self._net,
            objects=self._objects,
            meta=self._meta,
            rng=make_rng(),
            spawn=tasks,
            log=StructuredLog(address),
            watch=self._watch,
        )
        instance = self._parts.actor(kind, ports, {**self._settings, **settings})
        running = self._actors[actor] = _Running(kind, instance, tasks, settings)
        try:
            await instance.start()
        except BaseException:
            self._actors.pop(actor, None)
            running.end()
            raise
        return address

    async def stop(self, actor: str, reason: str = "stopped") -> None:
        """End an actor of this host; fine if it is not here."""
        running = self._actors.pop(actor, None)
        if running is not None:
            with contextlib.suppress(SluiceError):
                await running.actor.stop(reason)
            running.end()

    def _drop(self, actor: str, reason: str) -> None:
        if any(actor == name for _, name, _ in self._boot):
            # Nobody else starts what a host boots with: Ray starts the whole process again.
            logger.error("%s ends with its %s: %s", self.name, actor, reason)
            os._exit(1)
        running = self._actors.pop(actor, None)
        if running is not None:
            running.actor.stopped = reason
            running.end()

    async def deliver(self, actor: str, request: Request[Any]) -> Reply | Unknown:
        """Hand a request to an actor of this process. Raises SluiceErrors as answers."""
        running = self._actors.get(actor)
        if running is None or running.actor.stopped is not None:
            return Unknown(f"no actor {actor} in {self.name}", gone=True)
        try:
            reply = await running.answer(request)
        except InvariantViolation as broken:
            self._drop(actor, str(broken))
            return Unknown(f"{actor} stopped: {broken}", gone=True)
        return Unknown(f"{actor} ended in {self.name}", gone=True) if reply is None else reply

    async def call(self, envelope: Envelope) -> tuple[str, Any, Any, Any]:
        """The one remote entry: (status, head, attachments, handles); status is ok, unknown, or an error's name."""
        actor, kind, head, attachments, handles = envelope
        try:
            if not self._booted:
                await self.ready()
            wanted = REQUESTS.get(kind)
            if wanted is None:
                raise Unavailable(f"{self.name} does not know {kind}; is it an older version?")
            reply = await self.deliver(actor, unpack(wanted, head, attachments, handles))
        except SluiceError as error:
            name, message = pack_error(error)
            return name, message, [], []
        if isinstance(reply, Unknown):
            return "unknown", reply.reason, reply.gone, []
        packed = pack(reply)
        return "ok", packed.head, packed.attachments, packed.handles

    async def introduce(self) -> tuple[str, str, list[tuple[str, str, str]]]:
        """What a controller that starts anew must know: slot, node, and what runs here.

        The slot is the one that this process stands in for; empty if its name says it, or if it waits. Of every actor:
        kind, address, settings as JSON.
        """
        await self.ready()
        actors = [
            (running.kind, f"{self.name}/{actor}", json.dumps(running.settings))
            for actor, running in self._actors.items()
            if running.actor.stopped is None
        ]
        return self._slot, self.node(), actors

    def usage(self) -> dict[str, float]:
        """Process id, resident bytes (and those of them that are shared), CPU seconds and threads of this host."""
        process = psutil.Process()
        times, memory = process.cpu_times(), process.memory_info()
        return {
            "pid": os.getpid(),
            "rss": memory.rss,
            "shared": getattr(memory, "shared", 0),  # Linux tells it
            "cpu_seconds": times.user + times.system,
            "threads": threading.active_count(),
        }


def knock(handle: Any) -> None:
    """Call a host's `wake` until it has booted. Runs in a thread of that host's own process.

    One call is not enough: while Ray still takes the actor for restarting, it fails every call that may not be retried,
    also one from within (one restart in 40 on a busy machine). Returns when the host is up.
    """
    while True:
        try:
            ray.get(handle.wake.remote())
            return
        except RayError as error:
            logger.warning("a host could not wake itself yet: %s", type(error).__name__)
            time.sleep(KNOCK_S)


def remote_host(name: str, *, restarts: int = 0, node: str | None = None) -> Any:
    """The Ray options of a host: named, detached, no CPU reserved, no retries. node: there or nowhere."""
    options: dict[str, Any] = {
        "name": name,
        "lifetime": "detached",
        "max_restarts": restarts,
        "max_task_retries": 0,
        "max_concurrency": 4096,
        "num_cpus": 0,
    }
    if node is not None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    return ray.remote(Host).options(**options)
