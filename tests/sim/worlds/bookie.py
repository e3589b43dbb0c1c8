"""One bookie, several writers and readers of two ledgers: does it ever claim more than it knows?

The writers of a ledger have epochs. They add runs, fence, and read with and without fencing, all at once and against
a disk and a network that misbehave, over crashes of the bookie. What was promised is written down as it is promised:

* an add that was answered, and a run that was once read, is readable ever after, byte for byte, or is reported damaged
  or unknown - never absent; that still holds when at last the power of the machine is lost in peace;
* after a fence of epoch e was answered, no add of a lower epoch is ever answered that was not stored before;
* after a fencing read of epoch e answered "no such run", no add of a lower epoch for that run is ever answered.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence

import pyarrow as pa

from sluice.actors.bookie import Bookie, BookieSettings
from sluice.actors.messages import AddRun, FenceLedger, ReadRun
from sluice.actors.ports import Ports, Unknown
from sluice.actors.ports.wire import Blob
from sluice.storage.errors import Corrupt, SluiceError, Unavailable
from sluice.storage.format.batch import make_batch
from sluice.storage.format.frame import Header, Run, encode_head, make_run
from tests.sim.faults import Fault
from tests.sim.world import World
from tests.sim.worlds.course import Course, CourseWorld

LEDGERS = (1, 2)
RUNS = 6
TIMEOUT = 400

SETTINGS = BookieSettings(
    segment_bytes=4_000,
    group_bytes=2_000,
    queue_bytes=20_000,
    checkpoint_runs=8,
    checkpoint_bytes=6_000,
    min_free_bytes=500,
    reserve_bytes=400,
)


class _Course(Course):
    """One run: what was promised so far."""

    counted = ("adds", "fences", "reads", "absent", "damaged")

    def __init__(self, world: World, faults: list[Fault]) -> None:
        super().__init__(world, faults)
        self.stored: dict[tuple[int, int], int] = {}
        """(ledger, run) of each answered add, with its checksum."""
        self.fenced: dict[int, int] = {}
        """The highest epoch of an answered fence, by ledger."""
        self.absent: dict[tuple[int, int], int] = {}
        """The epoch of a fencing read that was answered "no such run"."""
        self.flipped = False

    async def run(self) -> None:
        """Trouble, then rest, then look at everything again."""
        world = self.world
        await world.start("bookie-1", lambda ports: Bookie(ports, bookie_id="b1", settings=SETTINGS), disk="bookie-1")
        self.nemesis.roles["bookie"] = lambda: ["bookie-1"]
        self.nemesis.special["bit_flip"] = self.flip
        self.nemesis.begin()
        if any(fault.kind == "bit_flip" for fault in self.nemesis.faults):
            # One fault at a time: when power goes, the witnesses of the last group may go with it, and then damage
            # to that group cannot be told from a torn tail (storage.format.journal says so).
            world.power_loss = 0.0
            world.disk_faults.fail_sync_chance = 0.0
        clients = [world.client(f"writer-{number}") for number in range(4)]
        left = len(clients)
        done = world.loop.create_future()

        async def one(ports: Ports, epoch: int) -> None:
            nonlocal left
            await self.converse(ports, epoch)
            left -= 1
            if left == 0:
                done.set_result(None)

        for number, ports in enumerate(clients):
            ports.spawn(one(ports, number + 1), "writer")
        await done
        await self.nemesis.heal()
        for _ in range(2):  # The second time after a loss of power: what was served from memory alone is gone by then.
            if not await self.look():
                return
            world.power_loss = 0.0 if self.flipped else 1.0  # again one fault at a time
            world.crash("bookie-1")

    async def look(self) -> bool:
        """Read every run in peace; False if the bookie refuses to serve from a disk that was damaged."""
        world = self.world
        if not world.is_up("bookie-1"):
            try:
                await self.start()
            except Corrupt:
                assert self.flipped, "S18: the disk is damaged, and nobody damaged it"
                return False  # it cannot be sure of itself: nothing that it promised is denied
        reader = world.client("reader")
        for ledger in LEDGERS:
            for run in range(RUNS):
                with contextlib.suppress(SluiceError):
                    await self.read(reader, ledger, run, None, 5_000)
        return True

    async def start(self) -> None:
        """Start the bookie, as its controller does: a damaged index fails one start, and the next one rebuilds it."""
        try:
            await self.world.restart("bookie-1")
        except Unavailable:
            assert self.flipped, "S18: the disk is damaged, and nobody damaged it"
            await self.world.restart("bookie-1")

    async def flip(self, fault: Fault, rng: random.Random) -> None:
        """Damage the disk: from now on a run may be reported damaged or unknown, but never absent or altered."""
        where = self.world.disk("bookie-1").flip()
        self.world.record("nemesis", "bit flip", where=where)
        self.flipped = True

    async def converse(self, ports: Ports, epoch: int) -> None:
        """One writer with its epoch: random requests, one after another."""
        rng = self.rng
        for _ in range(25):
            await ports.clock.sleep(rng.randrange(60))
            ledger, run = LEDGERS[rng.randrange(len(LEDGERS))], rng.randrange(RUNS)
            kind = rng.random()
            try:
                if kind < 0.5:
                    await self.add(ports, ledger, run, epoch)
                elif kind < 0.6:
                    await self.fence(ports, ledger, epoch)
                else:
                    await self.read(ports, ledger, run, epoch if rng.random() < 0.5 else None, TIMEOUT)
            except SluiceError as error:
                ports.log("refused", error=type(error).__name__, reason=str(error))

    async def add(self, ports: Ports, ledger: int, run: int, epoch: int) -> None:
        """Add a run; the same number always has the same contents, as a recovery's write-back has."""
        made = _make(ledger, run)
        header = Header(
            ledger, run, run * 2, made.count, epoch, -1, "writer", run * 2, made.delayed, made.shape, made.crc
        )
        head = encode_head(header, len(made.payload))
        # What was promised before the add was sent; a promise made while it is on its way proves nothing.
        fenced, absent = self.fenced.get(ledger, 0), self.absent.get((ledger, run), 0)
        had = (ledger, run) in self.stored
        blob = await ports.net.share(made.payload)
        request = AddRun(ledger=ledger, epoch=epoch, head=head, payload=blob)
        reply = await ports.net.call(self.address, request, TIMEOUT)
        if isinstance(reply, Unknown):
            return
        assert epoch >= fenced or had, f"S15: an add of epoch {epoch} was answered after a fence of {fenced}"
        assert epoch >= absent, f"S15: run {run} of epoch {epoch} was stored after epoch {absent} was told it is absent"
        self.counters["adds"] += 1
        self.stored[ledger, run] = made.crc

    async def fence(self, ports: Ports, ledger: int, epoch: int) -> None:
        """Fence a ledger."""
        reply = await ports.net.call(self.address, FenceLedger(ledger=ledger, epoch=epoch), TIMEOUT)
        if not isinstance(reply, Unknown):
            self.counters["fences"] += 1
            self.fenced[ledger] = max(self.fenced.get(ledger, 0), epoch)

    async def read(self, ports: Ports, ledger: int, run: int, epoch: int | None, timeout: int) -> None:
        """Read a run, perhaps fencing."""
        promised = self.stored.get((ledger, run))
        try:
            reply = await ports.net.call(self.address, ReadRun(ledger=ledger, run=run, fence_epoch=epoch), timeout)
        except Corrupt:
            self.counters["damaged"] += 1
            assert self.flipped, f"S18: run {run} of ledger {ledger} is damaged, and nobody damaged it"
            return
        except SluiceError:
            assert self.flipped or self.nemesis.active, f"L1: run {run} of ledger {ledger} cannot be read in peace"
            raise
        if isinstance(reply, Unknown):
            return
        self.counters["reads"] += 1
        if epoch is not None:
            self.fenced[ledger] = max(self.fenced.get(ledger, 0), epoch)
        if reply.head is None:
            assert promised is None, f"S1: run {run} of ledger {ledger} was stored and is absent"
            self.counters["absent"] += 1
            if epoch is not None:
                self.absent[ledger, run] = max(self.absent.get((ledger, run), 0), epoch)
            return
        payload = await ports.net.fetch(reply.payload or Blob(b""))
        if payload is not None:
            assert bytes(payload) == bytes(_make(ledger, run).payload), f"S3: run {run} has other bytes"
        self.stored[ledger, run] = _make(ledger, run).crc

    @property
    def address(self) -> str:
        """The present address of the bookie."""
        return self.world.process("bookie-1").address


def _make(ledger: int, run: int) -> Run:
    rows = pa.table({"key": [b"k", b"k"], "payload": [bytes([ledger, run] * 40)] * 2})
    return make_run(make_batch(rows, now=1, producer="writer", first_sequence=run * 2))


class BookieWorld(CourseWorld):
    """See the module."""

    name = "bookie"
    kinds = [
        "loss", "delay", "repeat", "late", "blob_loss", "no_hint", "pause", "crash", "torn", "slow_disk",
        "failed_sync", "full_disk", "bit_flip", "meta_503", "meta_lost_answer", "meta_slow",
    ]  # fmt: skip
    favourites: Sequence[str] = ("crash", "slow_disk")
    course = _Course
