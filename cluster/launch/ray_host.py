"""A host: one process in the Ray cluster that runs several Sluice actors.

A process costs 66 MB, and a call between two of them a wake-up on each side, so a broker host runs a partition's topic
and its dispatchers side by side. A bookie has a host to itself, because its disk and its death are its own. Hosts are
detached, never restarted and never retried by Ray: a new incarnation has a new name, and epochs keep the old one out.

actors.runtime.host has what every host does for an actor, and cluster.host.process what every process does for its
actors; this module adds Ray's part. Ray starts, names and watches the process; requests to its actors come over
connections of its own (cluster.wire).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import psutil
import ray
from ray.exceptions import RayError

from sluice.actors.controller.candidate import NAME as CANDIDATE
from sluice.actors.controller.candidate import ControllerCandidate
from sluice.actors.messages import Stats, Text
from sluice.actors.ports import Address, InCommon, Meta, Objects, Ports, Unknown
from sluice.actors.ports.wire import pack_error
from sluice.actors.runtime.host import Actor, Message, OnAnswer
from sluice.cluster.base.arrow import without_pandas
from sluice.cluster.base.collector import collect_seldom
from sluice.cluster.base.descriptors import raise_limit
from sluice.cluster.base.real import Tasks, log_to_stderr, real_ports
from sluice.cluster.host.metrics import EVERY_S, Exporter
from sluice.cluster.host.process import Asked, ProcessActors
from sluice.cluster.launch import naming, process_requests
from sluice.cluster.launch.processes import keep_warm
from sluice.cluster.node.environment import CONTROLLER_HOST, LOOPBACK, NAMESPACE, is_controller_host, own_address
from sluice.cluster.node.own_node import own_node, watch_own_node
from sluice.cluster.node.process_watch import ProcessWatch, this_process
from sluice.cluster.wire.endpoint import Endpoint
from sluice.cluster.wire.listener import Listener
from sluice.cluster.wire.net import NAMING, DirectNet, open_endpoint, session_folder
from sluice.cluster.wire.tls import files_of
from sluice.storage.errors import SluiceError, Unavailable

logger = logging.getLogger("sluice.process")

BOOT_RETRY_S = 1.0
OFFICE = ("controller", "admin")
"""Kinds and names of the actors of the candidate that is the controller."""
QUIET_TURNS, AGAIN_TURNS = 60, 2
"""Turns in which the statistics of an actor that stays as it is are asked for, and their gauges set again, once."""
EXPORT_TIMEOUT = 5_000
"""Milliseconds that an actor has to tell its statistics."""
WAKE_S = 0.1
"""Seconds between attempts of a restarted host to call itself."""


class ActorFactory(Protocol):
    """Makes the actors of a host; the composition root is cluster.launch.build."""

    def stores(self, settings: dict[str, Any]) -> tuple[Meta, Objects]:
        """The metadata and object stores that the settings name."""

    def actor(self, kind: str, ports: Ports, settings: dict[str, Any]) -> Actor:
        """An actor of a kind, not yet started."""


class Requests:
    """The requests of other processes to this one, which wait until it has booted.

    The class stands beside the host because Ray wraps every method of an actor's class, also for direct calls.
    """

    def __init__(self, actors: ProcessActors, ready: Callable[[], Awaitable[object]]) -> None:
        self._actors, self._ready = actors, ready
        self._booted = False
        self._waiting: dict[asyncio.Task[None], None] = {}

    def accept(self, actor: str, kind: str, message: Message, on_answer: OnAnswer) -> None:
        if self._booted:
            self._actors.accept(actor, kind, message, on_answer)
            return
        task = asyncio.get_running_loop().create_task(self._when_booted(actor, kind, message, on_answer))
        self._waiting[task] = None
        task.add_done_callback(self._waiting.pop)

    async def _when_booted(self, actor: str, kind: str, message: Message, on_answer: OnAnswer) -> None:
        try:
            await self._ready()
        except SluiceError as error:
            on_answer(pack_error(error))
        except Exception as error:
            on_answer(Unknown(f"{self._actors.name} does not start: {error!r}"))
        else:
            self._booted = True
            self._actors.accept(actor, kind, message, on_answer)


class Host:
    """Runs actors. Only `remote_host` makes a Ray actor of it.

    Its methods are those of every version. Ray names each of them when it makes a process, and during an upgrade
    one that is unknown on a machine keeps the process from starting there. What else is asked of a process is a request
    (`process_requests`), which an older one refuses.
    """

    def __init__(
        self, name: str, parts: ActorFactory, settings: dict[str, Any], boot: list[tuple[str, str, dict[str, Any]]]
    ) -> None:
        log_to_stderr(str(settings.get("log_level", "warning")))
        without_pandas()
        collect_seldom()
        raise_limit()
        self.name = name
        self._slot = ""
        self._parts = parts
        self._settings = settings
        self._boot = boot
        itself: dict[str, Asked] = {
            NAMING: lambda _, packed: naming.answer(packed, self.net.find_for_others),
            process_requests.ACTOR: lambda kind, packed: process_requests.answer(
                self, kind, packed, Path(settings.get("data_dir", "."))
            ),
        }
        self.actors = ProcessActors(name, self._make, self._dropped, itself)
        self._tls = files_of(settings)
        self._requests = Requests(self.actors, self.ready)
        self.net = DirectNet(self.actors, tls=self._tls)
        self._watch, self._in_process = ProcessWatch(), InCommon()
        self._stores = parts.stores(settings)
        self._exporter = Exporter(str(settings.get("cluster", "sluice")))
        self._ready: asyncio.Task[None] | None = None
        self._exporting: asyncio.Task[None] | None = None
        self._warm: asyncio.Task[None] | None = None
        self._endpoint: Endpoint | None = None
        self._listener: Listener | None = None
        if boot:
            # Nobody may call for a long time after Ray has restarted this process: it wakes itself.
            handle = ray.get_runtime_context().current_actor
            threading.Thread(target=wake_host, args=(handle,), name="wake_host", daemon=True).start()

    async def ready(self) -> int:
        """Start the actors that this host boots with; returns the process id. Raises what their start raises."""
        if self._ready is None or (self._ready.done() and self._ready.exception() is not None):
            self._ready = asyncio.get_running_loop().create_task(self._start_boot())
        await asyncio.shield(self._ready)
        return os.getpid()

    async def wake(self) -> None:
        """Boot, and go on trying while a store is away; callers that wait for `ready` hear of each failure."""
        while True:
            try:
                await self.ready()
                return
            except Exception as error:
                logger.warning("%s does not start: %r", self.name, error)
                await asyncio.sleep(BOOT_RETRY_S)

    def serve(self, slot: str) -> None:
        """Serve this slot from now on. Raises Unavailable if this process serves another one."""
        if self._slot not in ("", slot):
            raise Unavailable(f"{self.name} serves {self._slot} already")
        self._slot = slot

    def node(self) -> str:
        """The id of the Ray node that this process runs on."""
        return own_node()

    async def _export(self) -> None:
        """Keep the metrics up to date while this host lives. Who stays as it is is asked every few minutes."""
        shown: dict[Address, object] = {}
        turn = 0
        while True:
            await asyncio.sleep(EVERY_S)
            turn = (turn + 1) % QUIET_TURNS
            before, shown = shown if turn else {}, {}
            for number, (kind, address, _) in enumerate(self.actors.inventory()):
                if kind not in ("dispatcher", "topic"):
                    continue
                figures = self.actors.figures(address)
                if figures is not None and before.get(address) == figures:
                    shown[address] = figures
                    if (number + turn) % AGAIN_TURNS == 0:
                        self._exporter.show_again(address)
                        await asyncio.sleep(0)  # thousands of them take a while
                    continue
                shown[address] = None
                try:
                    reply = await self.net.call(address, Stats(), EXPORT_TIMEOUT)
                    if isinstance(reply, Text):
                        self._exporter.show(address, kind, reply.json)
                        shown[address] = figures
                except SluiceError:
                    continue
                except Exception:  # a defect in one's statistics: those of the others are shown all the same
                    logger.exception("the statistics of %s cannot be shown", address)
            self._exporter.keep(shown)

    async def _start_boot(self) -> None:
        if self._exporting is None:
            watch_own_node()
            self._exporting = asyncio.get_running_loop().create_task(self._export())
        for kind, actor, settings in self._boot:
            if kind == CANDIDATE and self._warm is None:
                self._warm = asyncio.get_running_loop().create_task(keep_warm(self.net))
            await self.start(kind, actor, settings)
        for candidate in self.actors.serving(ControllerCandidate):
            await candidate.campaign()
        if is_controller_host(self.name):
            await self.endpoint()

    async def start(self, kind: str, actor: str, settings: dict[str, Any]) -> Address:
        """Start an actor here and return its address. Raises the errors of its start."""
        return await self.actors.start(kind, actor, settings)

    async def stop(self, actor: str) -> None:
        """End an actor of this host; fine if it is not here."""
        await self.actors.stop(actor)

    def _make(self, kind: str, address: Address, tasks: Tasks, settings: dict[str, Any]) -> Actor:
        ports = real_ports(address, self.net, self._stores, tasks, self._watch, self._in_process)
        if kind == CANDIDATE:
            first = self.name == CONTROLLER_HOST
            return ControllerCandidate(
                ports,
                take_office=self._take_office,
                leave_office=self._leave_office,
                machine=own_address(),
                first=first,
            )
        return self._parts.actor(kind, ports, {**self._settings, **settings})

    async def _take_office(self) -> None:
        """Run the controller here, and keep the door. Raises what its start raises."""
        for kind in OFFICE:
            await self.start(kind, kind, {})
        await self.endpoint()
        assert self._endpoint is not None
        try:
            address = str(ray.get_runtime_context().gcs_address)
            naming.open_door(Path(self._settings["data_dir"]), address, self._endpoint)
        except OSError as error:  # clients attach to Ray then
            logger.warning("%s cannot say in the data folder where it listens: %s", self.name, error)

    def _leave_office(self, reason: str) -> None:
        """End the process at once, with all work that is left: its actors run elsewhere."""
        logger.error("%s ends: %s", self.name, reason)
        os._exit(1)

    def _dropped(self, actor: str, reason: str) -> None:
        if actor in OFFICE or any(actor == name for _, name, _ in self._boot):
            # Nobody else starts what a host boots with: Ray starts the whole process again.
            logger.error("%s ends with its %s: %s", self.name, actor, reason)
            os._exit(1)

    async def endpoint(self) -> tuple[object, ...]:
        """Return the address where this process listens, as the fields of an Endpoint. The first call makes it
        listen.
        """
        if self._endpoint is None:
            bind_address = str(self._settings.get("bind_address", LOOPBACK))
            self._endpoint, self._listener = open_endpoint(
                self.name, self._requests, session_folder(), bind_address, tls=self._tls
            )
        return msgspec.structs.astuple(self._endpoint)

    async def introduce(self) -> tuple[str, str, list[tuple[str, str, str]]]:
        """Tell a controller that has just started: slot, node, and the actors of this process.

        The slot is the one that this process stands in for; empty if its name says it, or if it waits. Of every actor:
        kind, address, settings as JSON.
        """
        await self.ready()
        known = self.actors.inventory(starting=True)
        actors = [(kind, address, json.dumps(settings)) for kind, address, settings in known]
        return self._slot, self.node(), actors

    def process(self) -> str:
        """Which process this is: machine, process id and start, apart by slashes; see process_watch.this_process."""
        return this_process() or f"/{os.getpid()}/"

    def usage(self) -> dict[str, float]:
        """Process id, resident bytes (and those of them that are shared), CPU seconds and threads of this host.

        calls, lookups: requests that it sent to other processes, and how often it asked Ray where one is.
        """
        process = psutil.Process()
        times, memory = process.cpu_times(), process.memory_info()
        return {
            "pid": os.getpid(),
            "rss": memory.rss,
            "shared": getattr(memory, "shared", 0),  # Linux tells it
            "cpu_seconds": times.user + times.system,
            "threads": threading.active_count(),
            "calls": self.net.calls,
            "lookups": self.net.lookups,
        }


def wake_host(handle: Any, pause_s: float = WAKE_S) -> None:
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
            time.sleep(pause_s)


def remote_host(name: str, *, restarts: int = 0, node: str | None = None) -> Any:
    """The Ray options of a host: named, detached, no CPU reserved, no retries.

    node: there or nowhere; one that Ray starts again may come elsewhere when that node is lost.
    """
    options: dict[str, Any] = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "max_restarts": restarts,
        "max_task_retries": 0,
        "max_concurrency": 4096,
        "num_cpus": 0,
    }
    if node is not None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id=node, soft=restarts != 0)
    return ray.remote(Host).options(**options)
