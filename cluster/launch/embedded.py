"""A cluster in one process, without Ray: the same actors, disks, journals and promises on one event loop.

It is meant for a laptop, a notebook, and the tests of users' programs. Every actor runs in the caller's process, each
bookie on a disk folder of its own, and the client on the same loop. Requests pass the codec as between processes, and a
failed actor is replaced by a new incarnation under a new address. So nothing works here that a cluster would refuse.
Payloads go by reference.

The data folder has the same format as a cluster's, so either can open the other's data, one at a time. The process is a
single point of failure, but not of loss: when it is killed, every confirmed message is on the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sluice.actors.dispatcher import Dispatcher
from sluice.actors.dispatcher.takeover import ProcessRecorder
from sluice.actors.ports import Address, InCommon, Node, Unknown
from sluice.actors.ports.wire import Blob
from sluice.actors.runtime.host import Actor
from sluice.cluster.base.forks import Birthplace, ended_at_exit
from sluice.cluster.base.loop import CallersLoop, LoopThread, carried_out
from sluice.cluster.base.real import StructuredLog, Tasks, real_ports
from sluice.cluster.client.async_client import AsyncClient
from sluice.cluster.client.client import Client
from sluice.cluster.gateway.ports import forget_ports, service_url, wanted_ports
from sluice.cluster.host.process import ProcessActors
from sluice.cluster.host.stores import check_stores
from sluice.cluster.launch.build import CONTROLLER, SluiceParts
from sluice.cluster.launch.discovery import refuse_running
from sluice.cluster.launch.preflight import check_safeguards
from sluice.cluster.node.environment import LOOPBACK
from sluice.cluster.node.folder import claimed, prepare_folder
from sluice.cluster.node.process_watch import ProcessWatch
from sluice.cluster.settings.options import ClusterOptions, identified
from sluice.cluster.wire.net import DirectNet
from sluice.storage.errors import SluiceError, Unavailable
from sluice.storage.format.frame import Buffer

log = StructuredLog("embedded")

START_TIMEOUT = 120.0
AGAIN_S = 1.0
"""Between attempts to start a part that nobody else starts: the controller."""
SETTLE_S, STOP_TIMEOUT = 3.0, 15.0

PROCESS, _, _CONTROLLER = CONTROLLER.partition("/")
"""The name of the one process is that of a cluster's first: clients of either ask the same address."""


WITH_ADMIN = (("controller", "controller"), ("admin", "admin"))
"""Kind and name of the parts that nobody else starts, where the cluster answers by HTTP."""


class LocalNet(DirectNet):
    """The Net port of a cluster whose actors are all in this process."""

    async def share(self, *parts: Buffer) -> Blob:
        """See actors.ports.Net. Nobody changes a payload, so a reference is as good as a copy."""
        return Blob(parts[0] if len(parts) == 1 else b"".join(parts))


class LocalPlaces:
    """Starts actors in this process. Implements actors.ports.Places."""

    def __init__(self, actors: ProcessActors) -> None:
        self._actors = actors

    async def machines(self) -> list[str]:
        return [LOOPBACK]

    async def start(self, kind: str, name: str, settings: dict[str, Any]) -> Address:
        try:
            return await asyncio.wait_for(self._actors.start(kind, name, settings), START_TIMEOUT)
        except (SluiceError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise Unavailable(f"{kind} failed to start: {error!r}") from error

    async def stop(self, address: Address, *, frozen: bool = False) -> None:
        await self._actors.stop(address.partition("/")[2])

    async def acts(self) -> bool:
        return True

    async def is_away(self, address: Address) -> bool:
        return False

    async def inventory(self) -> list[tuple[str, Address, dict[str, Any]]]:
        return self._actors.inventory()

    async def nodes(self) -> list[Node]:
        return [Node(self._actors.name, LOOPBACK)]

    async def node_of(self, address: Address) -> str:
        return self._actors.name

    def cordon(self, nodes: Sequence[str]) -> None:
        """Do nothing: there is one node, which is never drained."""

    async def vacate(self, node: str) -> list[str]:
        return []

    async def dismiss(self, name: str) -> bool:
        return False


class ClusterHere:
    """A cluster in this process, on the event loop that starts it. settings: those of ClusterOptions.

    boot: kind and name of what it starts by itself and starts again when it fails. net: how payloads are shared.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        boot: tuple[tuple[str, str], ...] = WITH_ADMIN[:1],
        net: type[DirectNet] = LocalNet,
    ) -> None:
        self._settings = settings
        if wanted_ports(settings):
            forget_ports(Path(settings["data_dir"]))
            boot = (*boot, ("pulsar", "pulsar"))
        self._boot = {name: kind for kind, name in boot}
        self._parts = SluiceParts()
        self._stores = self._parts.stores(settings)
        self._watch, self._in_process = ProcessWatch(), InCommon()
        self._again: dict[asyncio.Task[None], None] = {}
        self._closing = False
        self._tasks: WeakSet[Tasks] = WeakSet()
        self.actors = ProcessActors(PROCESS, self._make, self._dropped)
        self.net = net(self.actors, _nobody, b"")

    async def start(self) -> None:
        """Start what starts all else. Raises the errors of the bookies' start."""
        for name, kind in self._boot.items():
            await self.actors.start(kind, name, {})

    def release(self) -> None:
        for store in self._stores:
            store.close()

    async def stop(self) -> None:
        """End everything, but first let be durable which consumers have left: nobody is to wait for them next time."""
        self._closing = True
        barriers = [asyncio.ensure_future(one.parts.context.store.barrier()) for one in self.actors.serving(Dispatcher)]
        if barriers:
            await asyncio.wait(barriers, timeout=SETTLE_S)
            for barrier in barriers:
                barrier.cancel()
            await asyncio.gather(*barriers, return_exceptions=True)
        await self.actors.close()
        for tasks in list(self._tasks):
            await tasks.ended()
        if (recorder := self._in_process.of(ProcessRecorder).recorder) is not None:
            await recorder.close()

    def _make(self, kind: str, address: Address, tasks: Tasks, settings: dict[str, Any]) -> Actor:
        self._tasks.add(tasks)
        places = LocalPlaces(self.actors) if kind == "controller" else None
        ports = real_ports(address, self.net, self._stores, tasks, self._watch, self._in_process, places)
        return self._parts.actor(kind, ports, {**self._settings, **settings})

    def _dropped(self, actor: str, _: str) -> None:
        if actor in self._boot and not self._closing:
            task = asyncio.get_running_loop().create_task(self._start_again(actor))
            self._again[task] = None
            task.add_done_callback(self._again.pop)

    async def _start_again(self, actor: str) -> None:
        """Start a part that nobody else starts, for as long as it takes."""
        while not self._closing:
            try:
                await self.actors.start(self._boot[actor], actor, {})
                return
            except Exception as error:
                log("start_waits", actor=actor, error=repr(error))
                await asyncio.sleep(AGAIN_S)


class EmbeddedCluster(ClusterHere):
    """A running cluster in this process, on an event loop in a thread of its own."""

    def __init__(self, settings: dict[str, Any], **more: Any) -> None:
        """more: of ClusterHere. Raises the errors of the bookies' start."""
        super().__init__(settings, **more)
        self.loop = LoopThread("sluice")
        try:
            self.loop.run(self.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End every actor and the loop. Confirmed messages are on the disk. Idempotent; a forked child ends nothing."""
        if self._closing or not self.loop.is_here:
            return
        self._closing = True
        try:
            self.loop.run(self.stop(), STOP_TIMEOUT)
        finally:
            self.loop.stop()
            self.release()


async def _nobody(host: str) -> Unknown:
    return Unknown(f"no process {host}: everybody is in this one", gone=True)


@contextlib.contextmanager
def running(wanted: ClusterOptions, **more: Any) -> Iterator[EmbeddedCluster]:
    """A cluster in this process on a data folder, for the length of a `with` block. more: of EmbeddedCluster.

    Raises Invalid if another process holds the folder, or a cluster runs on it; Unavailable.
    """
    with _held_folder(wanted) as settings:
        embedded = EmbeddedCluster(settings, **more)
        try:
            yield embedded
        finally:
            embedded.close()


@contextlib.contextmanager
def _held_folder(wanted: ClusterOptions) -> Iterator[dict[str, Any]]:
    """Hold a data folder on which a cluster can start; its settings. Raises Invalid, Unavailable."""
    root = prepare_folder(wanted.data_dir)
    with claimed(root):
        refuse_running(root)
        check_safeguards(wanted)
        check_stores((wanted.metadata, wanted.objects), wanted.s3_endpoint_url)
        yield identified(wanted).settings()


def connect(data_dir: Path | None, **options: Any) -> Client:
    """A client of a cluster in this process, which ends with the client, or else with the process.

    data_dir: a folder of its own without, removed at the end. options: fields of ClusterOptions; with `admin_port` it
    answers by HTTP. Raises as `running`, and Unavailable if a port is in use.
    """
    cleanup = contextlib.ExitStack()
    try:
        folder = data_dir or Path(cleanup.enter_context(_temporary_folder()))
        embedded = cleanup.enter_context(running(ClusterOptions(data_dir=folder, **options), boot=_boot(options)))
        cleanup.enter_context(ended_at_exit(cleanup))
        client = Client(cleanup, embedded.net, embedded.loop)
        if options.get("pulsar_port", -1) >= 0:
            client.pulsar_service_url = service_url(folder, options["pulsar_port"])
        return client
    except BaseException:
        cleanup.close()
        raise


def _boot(options: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return what such a cluster starts by itself."""
    return WITH_ADMIN if "admin_port" in options else WITH_ADMIN[:1]


async def connect_async(data_dir: Path | None, **options: Any) -> AsyncClient:
    """The same on the running event loop of the caller, which the cluster shares with the program.

    Files are opened in another thread meanwhile. Disks and stores have threads that write and sync, as everywhere.
    """
    files, cleanup = contextlib.ExitStack(), contextlib.AsyncExitStack()

    def prepare() -> tuple[Path, ClusterHere]:
        folder = data_dir or Path(files.enter_context(_temporary_folder()))
        settings = files.enter_context(_held_folder(ClusterOptions(data_dir=folder, **options)))
        files.enter_context(ended_at_exit(files))
        cluster = ClusterHere(settings, boot=_boot(options))
        files.callback(cluster.release)
        return folder, cluster

    cleanup.callback(files.close)
    try:
        folder, cluster = await carried_out(prepare)
        cleanup.push_async_callback(cluster.stop)
        await cluster.start()
        client = AsyncClient(CallersLoop(), cluster.net, cleanup)
        if options.get("pulsar_port", -1) >= 0:
            client.pulsar_service_url = service_url(folder, options["pulsar_port"])
    except BaseException:
        await cleanup.aclose()
        raise
    return client


@contextlib.contextmanager
def _temporary_folder() -> Iterator[str]:
    """A folder that its own process removes; the standard library's is removed by a forked child as well."""
    made_in = Birthplace()
    folder = tempfile.mkdtemp(prefix="sluice_")
    try:
        yield folder
    finally:
        if made_in.is_here:
            shutil.rmtree(folder, ignore_errors=True)
