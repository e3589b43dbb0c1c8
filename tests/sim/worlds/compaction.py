"""The world `history` with a log that is compacted again and again.

Followers know the last message of each key. They begin at the beginning and elsewhere, are slow, and go on in newer
tables and in the log. Messages without payload delete their keys. All checks of that world hold, and these:

C1   once all is well, who reads the compacted log from its beginning knows what the log says of each key
C2   so does who has followed it from the beginning, whatever tables it has read
C3   what a follower is given comes in order of position, each message once, with the bytes that the log has there
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from unittest.mock import patch

import pyarrow as pa

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import Compact, IndexRead, ReadIndex, ReadPayload, RunIndex
from sluice.actors.ports import Ports, Unknown
from sluice.actors.topic.background import compaction
from sluice.storage.errors import SluiceError
from sluice.storage.format.batch import decode_body
from sluice.storage.format.checked_payload import payload_crc
from sluice.storage.format.position import position, run_positions, show
from tests.sim.faults import Fault
from tests.sim.world import World
from tests.sim.worlds.history import HistoryCourse, HistoryWorld, index_bytes
from tests.sim.worlds.ledger import HEALED_MS, TOPIC

FOLLOWERS = 3
EMPTIES = 0.3
GROUP_BYTES, PART_BYTES = (200, 2_000), (600, 10_000)
KEYS_BYTES = (40, 1 << 20)
"""So that keys are found in several passes."""

Message = tuple[bytes, bytes]
"""Key and payload."""


class CompactionWorld(HistoryWorld):
    """See the module."""

    name = "compaction"

    @staticmethod
    def course(world: World, faults: list[Fault]) -> HistoryCourse:
        return _Course(world, faults)


@dataclass
class _Follower:
    """A reader of the compacted log, and what it knows."""

    at: int = 0
    table: int = -1
    since: int = -1
    values: dict[bytes, bytes] = field(default_factory=dict)
    seen: dict[int, Message] = field(default_factory=dict)

    def take(self, place: int, message: Message) -> None:
        """Take one more message, which must be new."""
        fresh = place >= self.at and place not in self.seen
        assert fresh, f"C3: {show(place)} comes after {show(self.at)}"
        self.seen[place] = message
        key, payload = message
        self.values.pop(key, None)
        if payload:
            self.values[key] = payload


class _Course(HistoryCourse):
    """One run."""

    def rows(self, producer: int, first: int, count: int, filler: bytes) -> pa.Table:
        """Some of them without payload: what they are stands in a property."""
        rng = random.Random(f"empty/{self.world.seed}/{producer}/{first}")
        names = [b"%d %d " % (producer, first + row) for row in range(count)]
        return pa.table(
            {
                "key": [b"%d-%d" % (producer, rng.randrange(6)) for _ in range(count)],
                "payload": [b"" if rng.random() < EMPTIES else name + filler for name in names],
                "properties": pa.array([[("is", name.decode())] for name in names], pa.map_(pa.string(), pa.string())),
            }
        )

    def names_of(self, rows: pa.RecordBatch) -> list[bytes]:
        return [dict(properties)["is"].encode() for properties in rows.column("properties").to_pylist()]

    async def run(self) -> None:
        rng = random.Random(f"compaction/{self.world.seed}")
        keys, group, part = rng.choice(KEYS_BYTES), rng.choice(GROUP_BYTES), rng.choice(PART_BYTES)
        self.followers = [_Follower() for _ in range(FOLLOWERS)]
        with patch.multiple(compaction, KEYS_BYTES=keys, GROUP_BYTES=group, PART_BYTES=part, RETRY_MS=500):
            await super().run()
            await self.world.within(HEALED_MS, self._judge(), "C1: the log cannot be compacted, or read")

    async def _build(self) -> None:
        await super()._build()
        asker = self.world.client("compacter")
        asker.spawn(self._ask(asker, random.Random(f"asks/{self.world.seed}")), "asks")
        for number, follower in enumerate(self.followers):
            ports = self.world.client(f"follower-{number}")
            pace = random.Random(f"follows/{self.world.seed}/{number}")
            ports.spawn(self._keep_up(ports, follower, pace), "keeps up")

    async def _ask(self, ports: Ports, rng: random.Random) -> None:
        """Want a compaction now and then."""
        directory = Directory(ports, self.registry.ports.me)
        while True:
            await ports.clock.sleep(rng.randrange(50, 1_500))
            try:
                await self._asked(ports, directory, Compact(ask=True))
            except SluiceError as error:
                ports.log("nobody compacts", error=str(error))

    async def _asked(self, ports: Ports, directory: Directory, request: Compact) -> int:
        """Ask for the horizon, and count the compactions; -2 without an answer."""
        address = await directory.topic(TOPIC, 0)
        reply = await ports.net.call(address, request, 3_000)
        if isinstance(reply, Unknown):
            await directory.suspect(address)
            return -2
        self.counters["compacted"] = max(self.counters.get("compacted", 0), reply.horizon >> 32)
        return reply.horizon

    async def _keep_up(self, ports: Ports, follower: _Follower, rng: random.Random) -> None:
        directory = Directory(ports, self.registry.ports.me)
        while True:
            try:
                await self._step(ports, directory, follower, rng.choice((1, 3, 50)))
            except SluiceError as error:
                ports.log("following waits", error=str(error))
            await ports.clock.sleep(rng.choice((0, 10, 400)))

    async def _step(self, ports: Ports, directory: Directory, follower: _Follower, limit: int) -> IndexRead | None:
        """Ask once; None without an answer that could be used."""
        address = await directory.topic(TOPIC, 0)
        request = ReadIndex(
            start=follower.at, limit=limit, wait=100, compacted=True, table=follower.table, since=follower.since
        )
        reply = await ports.net.call(address, request, 3_000)
        if isinstance(reply, Unknown):
            await directory.suspect(address)
            return None
        messages: list[tuple[int, Message]] = []
        for run in reply.runs:
            if (found := await self._messages(ports, directory, run)) is None:
                return None
            messages += found
        for place, message in messages:
            if place >= follower.at:
                follower.take(place, message)
        follower.at, follower.table, follower.since = max(follower.at, reply.resume), reply.table, reply.since
        return reply

    async def _messages(self, ports: Ports, directory: Directory, run: RunIndex) -> list[tuple[int, Message]] | None:
        """The messages of a run that an answer names; None if they are out of reach for now."""
        if len(run.cut):
            assert run.blob is not None
            payload = await ports.net.fetch(run.blob)
            if payload is None:
                return None
            assert payload_crc(payload) == run.crc, "S18: a compacted run does not fit"
            rows = decode_body(payload[run.rows * (12 if run.delayed else 4) :], run.shape, run.rows)
            places = (position(run.ledger, run.first_entry) + run.cut.astype("int64")).tolist()
            return list(zip(places, _messages_in(rows), strict=True))
        request = ReadPayload(ledger=run.ledger, entry=run.first_entry)
        reply = await ports.net.call(await directory.topic(TOPIC, 0), request, 3_000)
        if isinstance(reply, Unknown) or (payload := await ports.net.fetch(reply.payload)) is None:
            return None
        rows = decode_body(payload[index_bytes(reply) :], reply.shape, reply.count)
        places = run_positions(run.ledger, reply.first_entry, reply.count).tolist()
        return list(zip(places, _messages_in(rows), strict=True))

    async def _judge(self) -> None:
        """C1, C2, C3."""
        ports = self.world.client("judge")
        directory = Directory(ports, self.registry.ports.me)
        whole, fresh = _Follower(), _Follower()
        await self._to_the_end(ports, directory, whole, compacted=False)
        end = max(whole.seen, default=-1)
        while await self._tried(self._asked(ports, directory, Compact(ask=True))) != end:
            await ports.clock.sleep(100)
        await self._to_the_end(ports, directory, fresh)
        assert fresh.values == whole.values, f"C1: {_differ(fresh, whole)}"
        for number, follower in enumerate(self.followers):
            while follower.at <= end:
                await ports.clock.sleep(50)
            assert follower.values == whole.values, f"C2: follower {number}: {_differ(follower, whole)}"
        for reader in [fresh, *self.followers]:
            for place, message in reader.seen.items():
                assert whole.seen.get(place) == message, f"C3: {show(place)} is {message}, not {whole.seen.get(place)}"
        self.counters["followed"] = sum(len(follower.seen) for follower in self.followers)

    async def _tried(self, work: object) -> object:
        try:
            return await work  # type: ignore[misc]
        except SluiceError:
            return -2

    async def _to_the_end(
        self, ports: Ports, directory: Directory, follower: _Follower, *, compacted: bool = True
    ) -> None:
        """Read until there is nothing more; not compacted: the log itself."""
        while True:
            try:
                if compacted:
                    reply = await self._step(ports, directory, follower, 50)
                else:
                    reply = await self._index(ports, directory, follower.at)
                    for run in reply.runs:
                        for place, message in await self._messages(ports, directory, run) or ():
                            if place not in follower.seen:
                                follower.take(place, message)
                    if all(position(run.ledger, run.first_entry) in follower.seen for run in reply.runs):
                        follower.at = max(follower.at, reply.resume)
            except SluiceError as error:
                ports.log("judging waits", error=str(error))
                reply = None
            if reply is not None and reply.last_confirmed >= 0 and follower.at > reply.last_confirmed:
                return
            await ports.clock.sleep(20)


def _messages_in(rows: pa.RecordBatch) -> list[Message]:
    return list(zip(rows.column("key").to_pylist(), rows.column("payload").to_pylist(), strict=True))


def _differ(one: _Follower, other: _Follower) -> str:
    keys = [key for key in {**one.values, **other.values} if one.values.get(key) != other.values.get(key)]
    return ", ".join(f"{key!r} is {one.values.get(key)!r}, not {other.values.get(key)!r}" for key in keys)
