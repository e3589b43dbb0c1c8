"""All that an actor sees of the world.

Three worlds implement these protocols: a cluster on Ray, one process without Ray (both in `cluster`, with files, S3 and
the real clock), and the simulator (`tests/sim`, one seeded event loop with a virtual clock).
An actor class takes one `Ports` and never imports ray, time, random, os, or touches a file or a socket.

Rules that every actor keeps (facts: Ray's async actors reorder calls, a timed-out call may still run, a frozen
process comes back):

* check the epoch and mutate with no `await` in between; after an `await`, check again;
* `Unknown` never means "did not happen"; every mutating request is safe to repeat;
* nothing relies on the order in which calls arrive;
* background work goes through `spawn`, so that a crash of the node cancels exactly its own tasks;
* no iteration over a set, no builtin hash(), no id(), no float time.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sluice.actors.ports.wire import Blob, Reply, Request
from sluice.storage.errors import SluiceError
from sluice.storage.format.frame import Buffer

if TYPE_CHECKING:
    from sluice.storage.history.part import PayloadColumns

R = TypeVar("R", bound=Reply)
T = TypeVar("T")

Address = str
"""The address of an actor: `host/name`. Opaque to actors; a new incarnation has a new address."""
SHARED_FROM = 64 * 1024
"""The usual `Ports.shared_from`."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A call brought no answer: it may have happened, may happen later, or may never happen.

    gone is a hint (not a promise) that the peer's process ended, so the caller need not wait for a time-out again.
    """

    reason: str
    gone: bool = False


class Timer(Protocol):
    """A call that a clock makes later, unless it is cancelled."""

    def cancel(self) -> object:
        """Let it not happen; fine if it has."""


class Clock(Protocol):
    """Time in integer milliseconds."""

    def now(self) -> int:
        """Wall clock, milliseconds since 1970; for deliver_at, publish_time and stories. May jump."""

    def monotonic(self) -> int:
        """Milliseconds that never jump; for leases and back-off."""

    async def sleep(self, milliseconds: int) -> None:
        """Wait; 0 yields once."""

    def timer(self, milliseconds: int, call: Callable[[], object]) -> Timer:
        """Run `call` after so long, unless it is cancelled first. It must not await and belongs to no actor: all that
        it may do is wake a waiting task. A wait that usually ends before its time costs a task less than with `sleep`.
        """


class Net(Protocol):
    """How an actor reaches others, and hands large payloads to them."""

    async def call(self, to: Address, request: Request[R], timeout: int) -> R | Unknown:
        """Ask a peer and wait at most `timeout` ms: a reply or `Unknown`, nothing else.

        An explicit refusal by the peer (Fenced, NotFound, ...) is raised as that SluiceError: it *is* an answer.
        """

    def ask(
        self, to: Address, request: Request[R], timeout: int, on_answer: Callable[[R | Unknown | SluiceError], None]
    ) -> None:
        """Ask a peer as `call` does, without a task of the caller. Actors use it through actors.runtime.waiting.

        `on_answer` is called once, with the reply, `Unknown` or the refusal, and never before this has returned.
        """

    async def share(self, *parts: Buffer) -> Blob:
        """Make a large payload fetchable by others without copying it into each call; its parts become one.

        The sharer keeps the returned blob as long as it wants the payload to stay fetchable. Small payloads come
        back as inline blobs. A shared blob is never the only copy: `fetch` may find it gone.
        """

    async def fetch(self, blob: Blob) -> memoryview | None:
        """The payload of a blob, without a copy where possible; None if its sharer is gone."""

    def rows_from(self, to: Address) -> int:
        """Bytes from which on a run that this peer sends should be cut down to the rows that are wanted, because it
        would travel whole; 0 where it is shared, or that is not known.
        """


class Disk(Protocol):
    """Append-only files of one node. Names are flat. Raises DiskFailed when the device fails; that is final."""

    async def append(
        self, name: str, parts: Sequence[Buffer], *, sync: bool, witness: tuple[str, Buffer] | None = None
    ) -> int:
        """Write the parts behind one another at the end; returns the offset of the first.

        With sync, returns only when everything written to this file so far is durable (fdatasync). Without, a
        crash may lose any suffix, and tear the last write. Raises DiskFull when nothing was written for want of
        space.

        witness: the name of another file, and bytes that are appended to it, unsynced, behind the sync and before the
        return; they are left out where there is no space for them. It saves a call where each append has one.
        """

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes; shorter only at the end of the file. Raises NotFound."""

    async def size(self, name: str) -> int:
        """Bytes in the file; 0 if it does not exist."""

    async def names(self) -> list[str]:
        """All files, sorted."""

    async def truncate(self, name: str, size: int) -> None:
        """Cut the file, durably."""

    async def rewrite(self, name: str, offset: int, data: Buffer) -> None:
        """Write bytes once more in their place, durably. Takes no space. Raises NotFound.

        For bytes that can be read and whose sync may have failed: such bytes count as written in the page cache, so
        that another sync by itself would not write them.
        """

    async def replace(self, name: str, data: Buffer) -> None:
        """Write a whole small file atomically and durably (temporary name, sync, rename, sync of the folder)."""

    async def delete(self, name: str) -> None:
        """Remove the file; fine if it does not exist."""

    async def free(self) -> int:
        """Bytes that can still be written."""


class DiskFailed(Exception):
    """A write or sync failed. What is durable is unknown: the bookie on this disk must end."""


class DiskFull(Exception):
    """There is no space; nothing of this append was written. The bookie becomes read-only."""


class Objects(Protocol):
    """Immutable objects by name (a local folder, S3 or MinIO, memory). Names use [A-Za-z0-9._/-].

    Invalid is said of a name or a range alone. A store that refuses is Unavailable.
    """

    async def put(self, name: str, data: Buffer) -> bool:
        """Create if absent. False: the name is taken. Raises Unavailable: the outcome is unknown."""

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """The object or a byte range of it. Raises NotFound, Unavailable."""

    async def names(self, prefix: str) -> list[str]:
        """Every name with the prefix, sorted. Raises Unavailable."""

    async def delete(self, name: str) -> None:
        """Remove; fine if it does not exist. Raises Unavailable."""


@dataclass(frozen=True, slots=True)
class Version:
    """One numbered version of a metadata record. Numbers start at 1 and have no gaps."""

    number: int
    value: bytes


class Records(Protocol):
    """The part of Meta that readers need."""

    async def read(self, key: str) -> Version | None:
        """The newest version, or None. Raises Unavailable, Corrupt."""


class Meta(Records, Protocol):
    """Versioned records. Losing `create` *is* the fencing signal: the process that loses it is no longer the owner.

    Invalid is said of a key or a value alone. A store that refuses is Unavailable; one that is damaged raises Corrupt.
    """

    async def create(self, key: str, number: int, value: bytes) -> bool:
        """Put version `number` if it is absent and follows the newest; durable when True is returned.

        False: that number exists (another writer was first) or does not follow the newest. Raises Unavailable: the
        outcome is unknown; read again and compare.
        """

    async def keys(self, prefix: str) -> list[str]:
        """Every live key with the prefix, sorted. Raises Unavailable."""

    async def remove(self, key: str, number: int | None = None) -> bool:
        """Forget the record and all its versions. With a `number`: unless its newest version is another one, False."""


class Tables(Protocol):
    """Tables of a catalog that others read, one a topic (cluster.history.tables). There are none where no catalog was
    named."""

    async def follow(self, topic: str) -> None:
        """Commit to a topic's table what its partitions' records name and the table has not, and the other way round.

        Fine to repeat. Raises Unavailable, Conflict, Corrupt; the outcome is unknown.
        """

    async def columns(self, topic: str) -> PayloadColumns | None:
        """Return what makes columns of the payloads of a topic that has, or has had, schemas. Raises Unavailable."""


class Rng(Protocol):
    """Randomness for jitter and choice of ensembles; seeded in the simulator."""

    def random(self) -> float:
        """0 <= x < 1."""

    def randrange(self, stop: int, /) -> int:
        """0 <= n < stop."""


class Task(Protocol):
    """A background task of an actor."""

    def cancel(self) -> object:
        """Ask it to stop."""


class Spawn(Protocol):
    """Starts background work that belongs to one actor and ends with it."""

    def __call__(self, work: Coroutine[Any, Any, None], name: str) -> Task:
        """Run concurrently. An exception in it is logged, and ends the actor (see actors.runtime.host)."""


class Places(Protocol):
    """The means to start actors; used by the controller alone."""

    async def machines(self) -> list[str]:
        """The addresses of the machines that actors can be started on, in order. Raises Unavailable."""

    async def start(self, kind: str, name: str, settings: dict[str, Any]) -> Address:
        """Start an actor of a kind (`bookie`, `topic`, `dispatcher`, `gateway`) and return its address.

        Raises Unavailable if no place can be had now.
        """

    async def stop(self, address: Address, *, frozen: bool = False) -> None:
        """End an actor; fine if it is gone. frozen: its process does not answer and is to be ended with it."""

    async def acts(self) -> bool:
        """Whether this controller may start and end others on suspicion; False if it is the one that is cut off."""

    async def is_away(self, address: Address) -> bool:
        """Whether the machine of an actor belongs to the cluster and cannot be reached: it may come back as it is."""

    async def inventory(self) -> list[tuple[str, Address, dict[str, Any]]]:
        """Return (kind, address, settings) of everything that runs, for a controller that starts again."""

    async def nodes(self) -> list[Node]:
        """The nodes that can be reached. Raises Unavailable."""

    async def node_of(self, address: Address) -> str:
        """The id of the node that an actor runs on; empty if that is not known."""

    def cordon(self, nodes: Sequence[str]) -> None:
        """Let these nodes, by id, and no others be spared: no process is made there but that of a bookie whose disk is
        on that machine.
        """

    async def vacate(self, node: str) -> list[str]:
        """Have everything that owners need on this node somewhere else; nothing is moved yet. Raises Unavailable.

        Returns the names of the processes there that serve nothing any more. What runs in them still is to be stopped
        by who knows it, and is started elsewhere from now on.
        """

    async def dismiss(self, name: str) -> bool:
        """End a vacated process; False while something runs in it."""


@dataclass(frozen=True, slots=True)
class Node:
    """A live node of the cluster. address: of its machine; several nodes of one machine share its disks."""

    id: str
    address: str


@dataclass(frozen=True, slots=True)
class Introduction:
    """An introduction of a process: the slot that it was told to serve (empty if none), its node's id, what it runs.
    running: (kind, address, settings) of each of its actors.
    """

    slot: str
    node: str
    running: list[tuple[str, Address, dict[str, Any]]]


class Processes(Protocol):
    """The host processes of a cluster by name; used by placement alone.

    What a process is asked ends with its answer or, after `timeout` ms at most, as Unknown. Here `gone` is no hint:
    the process has ended, or never was.
    """

    async def nodes(self) -> list[Node]:
        """The live nodes, in order of id. Raises Unavailable."""

    def away(self) -> list[Node]:
        """The nodes that belong to the cluster, and that could not be reached when `nodes` looked last."""

    async def names(self) -> list[str]:
        """All host processes, whichever controller made them, in order. Raises Unavailable."""

    async def candidates(self) -> list[str]:
        """The processes that can be the controller, in order. Raises Unavailable."""

    async def make(self, name: str, node: str | None, timeout: int) -> str:
        """Start a process (on that node or nowhere) and return its node's id when it is ready.

        Raises Unavailable if that fails; then nothing is left of it.
        """

    async def introduce(self, name: str, timeout: int) -> Introduction | Unknown:
        """The introduction of a process, as soon as it has started."""

    async def serve(self, name: str, slot: str, timeout: int) -> Unknown | None:
        """Tell a standby process which slot it serves. Raises Unavailable if it serves another one."""

    async def start(
        self, name: str, kind: str, actor: str, settings: dict[str, Any], timeout: int
    ) -> Address | Unknown:
        """Start an actor in a process. Raises the errors of its start."""

    async def stop(self, name: str, actor: str, timeout: int) -> Unknown | None:
        """End an actor of a process; fine if it is not there."""

    def kill(self, name: str) -> None:
        """End a process; fine if it is gone. One that is frozen may linger for seconds."""


class Watch(Protocol):
    """Knows when processes have ended. Only the speed of recovery depends on it, never a promise."""

    def sees(self, process: str) -> bool:
        """Whether `ended` may ever return: not for this very process, nor for one of another machine."""

    async def ended(self, process: str) -> None:
        """Return once that process has ended for certain; wait for ever where that cannot be known.

        process: its name as it gives it itself, opaque to actors. A process that is frozen or cut off has not ended.
        """


class Work(Protocol):
    """Runs what would hold up the actor's loop: encoding and decoding of megabytes."""

    async def __call__(self, call: Callable[[], T]) -> T:
        """Call it beside the loop; one call of a process at a time. It must touch nothing that changes meanwhile."""


async def at_once(call: Callable[[], T]) -> T:
    """`Work` where nothing else waits for the loop."""
    return call()


class Log(Protocol):
    """Structured log lines, and in the simulator the trace that a seed must reproduce."""

    def __call__(self, event: str, **fields: object) -> None:
        """Record an event of this actor."""


class InCommon:
    """The objects that some parts have in common: one of each class, made when it is first asked for. Such an object
    has no ports, because it outlives the part that asked for it first: each part that works with it lends it its own.

    over: whether the actor that has these parts has ended; its host says so.
    """

    def __init__(self) -> None:
        self.over = False
        self._objects: dict[type, Any] = {}

    def of(self, kind: type[T]) -> T:
        """The one object of a class that is made without arguments."""
        found: T | None = self._objects.get(kind)
        if found is None:
            found = self._objects[kind] = kind()
        return found


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything an actor is given. disk is None for actors that have none.

    shared_from: payloads of so many bytes and more are shared and named by handle; smaller ones travel in requests and
    answers. process: what all actors of this process have in common; where each is a process of its own, its own.
    actor: what the parts of this actor, or of this client, have in common.
    """

    me: Address
    clock: Clock
    net: Net
    objects: Objects
    meta: Meta
    rng: Rng
    spawn: Spawn
    log: Log
    disk: Disk | None = None
    places: Places | None = None
    watch: Watch | None = None
    work: Work = at_once
    tables: Tables | None = None
    shared_from: int = SHARED_FROM
    process: InCommon = field(default_factory=InCommon)
    actor: InCommon = field(default_factory=InCommon)
