"""A metadata record with one owner at a time, and the proof that no owner of a process has been replaced.

The record is a series of numbered versions made with put-if-absent. A process that writes version n+1 knows that no
other changed the record since version n. An owner that loses that race is no longer the owner and stops at once. There
is no lock, no lease and no clock in this: the version number is the proof of the epoch (S15).

A write whose outcome is unknown is looked up: the value carries the writer's address, so "mine or not" has an answer.

A record that is removed, and made again, counts its versions from 1 again: then a number proves nothing to an owner of
before, which was frozen meanwhile. So the epoch and the owner in the newest version have to be the known ones as well.
A write cannot depend on that, so an owner that has not looked for a while looks before it writes.

**An owner that has nothing to write** would never learn that it was replaced. `FencedRecord.proven` says since when it
may not know it: each write moves it, and so does a look, at the record (`verify`) or at what proves all owners of the
process (`OwnershipProof`). That is one record for all of them, `process/<process>`. A new owner that takes a record
from one of its actors writes a version there: a *notice*. A process that finds the notice it knows knows that all its
owners own what they owned.

**Why that is enough.** A new owner writes its version of the record, then the notice to the process of the owner before
it, and only then has it taken over; whatever it waits for, it waits for from then on. Let an owner find its record its
own at a moment a, asked after its process had read notice n, and let the process find n again at a later moment b. An
owner that took the record before a would have been found there. An owner that took it since has, at b, not yet written
a notice: it would be another one than n. So its waiting begins after b, as if the owner had looked at b at the record
itself.

A new owner that dies before its notice leaves the duty to the next: a version of the record names the processes that
may not have been told. A notice costs the process one look at each record of its own, and concerns nobody else; what
was proved before it stays proved, so these looks may be spread over the time of trust. Notices are versions of one
small record, which is never removed: a process that found none could not tell that one had come and gone. Their numbers
alone tell one from another, so a damaged one is a notice like any other.
"""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec

from sluice.actors.ports import Address, Meta, Ports, Version
from sluice.actors.runtime.waiting import Backoff, Signal
from sluice.storage.errors import Corrupt, Fenced, Unavailable

NOTICES = "process/"
REMEMBERED = 64
"""The number of past notices for which a process knows until when owners that looked before them were proved."""
SOON_MS = 100
"""The time within which a woken owner looks, if it still lives."""
PATIENCE_MS = 2_000
"""The time after which an owner that waits for another one's look looks by itself: the other one may have ended."""


def process_of(address: Address) -> str:
    """The name of the process that has the actor at an address."""
    return address.partition("/")[0]


class OwnershipProof:
    """The shared proof of ownership of all owners of one process; see `Ports.process`.

    notice: counts the notices that were found, 0 before the first look. proven: monotonic ms at which the last look
    was asked.
    """

    def __init__(self) -> None:
        self.notice = self.proven = 0
        self._before: dict[int, int] = {}
        """When the last look was asked that found an earlier notice."""
        self._found: Version | None = None
        self._looking: Signal | None = None
        self._looks = self._expected = 0

    def until(self, notice: int) -> int:
        """Monotonic ms: up to here an owner is proved that found its record its own when this was the notice."""
        return self.proven if notice == self.notice else self._before.get(notice, 0)

    def expect(self, now: int) -> None:
        """Note that an owner is woken to look soon."""
        self._expected = now + SOON_MS

    def comes(self, now: int) -> bool:
        """Whether somebody looks just now, or is about to."""
        return self._looking is not None or now < self._expected

    async def prove(self, ports: Ports, age: int = 0) -> None:
        """Look for a notice, together with all who look just now, unless somebody did less than `age` ms ago. Raises
        what the store refuses with.
        """
        if self.notice and ports.clock.monotonic() - self.proven < age:
            return
        while (looking := self._looking) is not None:
            looks = self._looks
            if await looking.wait(ports, PATIENCE_MS):
                if self._looks == looks:
                    raise Unavailable("whoever looked for a notice found nothing out")
                return
            if self._looking is looking:
                break
        await self._look(ports)

    async def _look(self, ports: Ports) -> None:
        looking = self._looking = Signal()
        try:
            asked = ports.clock.monotonic()
            found = await newest_version(ports.meta, NOTICES + process_of(ports.me))
            if found != self._found:
                self._found = found
                self._before[self.notice] = self.proven
                self._before.pop(self.notice - REMEMBERED, None)
                self.notice, self.proven = self.notice + 1, asked
            self.proven = max(self.proven, asked)
            self._looks += 1
        finally:
            self._expected = 0
            looking.set()
            if self._looking is looking:
                self._looking = None


async def newest_version(meta: Meta, key: str) -> Version:
    """The newest version of a record: number 0 if there is none. One that is damaged has no value, and another can
    follow it, which mends the record. Raises Unavailable, and Corrupt if not even the number is known.
    """
    try:
        return await meta.read(key) or Version(0, b"")
    except Corrupt as error:
        if not error.version:
            raise
        return Version(error.version, b"")


async def give_notice(ports: Ports, process: str, taken: str) -> None:
    """Tell a process that something was taken from an owner in it. taken: what, and under which epoch, which no
    other notice of this taker says together. Retries while the store is away.
    """
    key, notice = NOTICES + process, f"{ports.me} {taken}".encode()
    wait = Backoff(ports, RETRY_FIRST, RETRY_MOST)
    while True:
        try:
            newest = await newest_version(ports.meta, key)
            if newest.value == notice:
                return  # an earlier try, whose reply was lost
            if await ports.meta.create(key, newest.number + 1, notice):
                return
            after = await newest_version(ports.meta, key)
            if 0 < newest.number < after.number:
                return  # somebody gave notice after the record was taken, which says the same
        except Unavailable as error:
            ports.log("notice_waits", process=process, error=str(error))
        await wait.pause()


RETRY_FIRST, RETRY_MOST = 10, 1_000
LOOK_FIRST_MS = 5_000
"""No owner is replaced because of a shorter silence, and an owner that has consumers looks more often."""


class _Head(msgspec.Struct):
    """The part of a version that this module keeps: see FencedRecord."""

    epoch: int
    owner: str
    untold: list[str] = []


def record_in(key: str, value: bytes) -> dict[str, Any]:
    """The map in a version's bytes, in which what this module keeps has its types. Raises Corrupt."""
    try:
        found = msgpack.unpackb(value)
        msgspec.convert(found, _Head)
    except (ValueError, msgpack.UnpackException) as error:
        raise Corrupt(f"the record {key} cannot be read: {error}") from error
    plain: dict[str, Any] = found
    return plain


class FencedRecord:
    """The newest version of a record, and the right to write the next one.

    value: msgpack map; `epoch` (int), `owner` (the writer's address) and `untold` (processes) are kept in it by this
    class.
    """

    def __init__(self, ports: Ports, key: str, *, notices: bool = True, removable: bool = False) -> None:
        """notices: whether the process of the owner before learns of it by a notice; one that looks at the record
        itself needs none, and may not `prove` that it owns it. removable: whether there are owners that `remove` it.
        """
        self._ports = ports
        self._key = key
        self._notices, self._removable = notices, removable
        self._number = 0
        self._newest = (0, "")
        """Epoch and owner in the version of that number."""
        self._seen = 0
        """Monotonic ms: then it was the newest."""
        self._writing = False
        self._untold: list[str] = []
        self._proof = ports.process.of(OwnershipProof)
        self._notice = self._proven = 0
        self.epoch = 0
        self.lost = False

    @property
    def proven(self) -> int:
        """Monotonic ms: up to here nobody newer owned the record."""
        return max(self._proven, self._proof.until(self._notice)) if self._notices else self._proven

    def is_proved(self, since: int) -> bool:
        """Whether nobody newer owned the record at that moment (monotonic ms), as far as this owner knows."""
        if self.lost:
            return False
        return self._proven >= since or (self._notices and self._proof.until(self._notice) >= since)

    def leaves_proof(self) -> bool:
        """Whether somebody of this process looks just now at what proves this owner as well, or is woken to. If not,
        this owner is to `prove` at once, and the others leave it to this one.
        """
        if self.lost or not self._notices or self._notice != self._proof.notice:
            return False
        now = self._ports.clock.monotonic()
        comes = self._proof.comes(now)
        if not comes:
            self._proof.expect(now)
        return comes

    async def acquire(self) -> dict[str, Any] | None:
        """Become the owner under a new epoch; returns the value as the last owner left it, None if it is new.

        The caller must follow with `save` before it acts as the owner: taking is complete only with that.
        """
        self._seen = self._ports.clock.monotonic()
        newest = await self._read()
        if newest is None:
            self._number, self.epoch = 0, 1
            return None
        number, value = newest
        self._number, self.epoch = number, int(value["epoch"]) + 1
        self._newest = int(value["epoch"]), str(value["owner"])
        if not self._notices:
            return value
        untold = [process_of(str(value["owner"])), *value.get("untold", ())]
        self._untold = [process for process in dict.fromkeys(untold) if process]
        return value

    def begin_after(self, epoch: int) -> None:
        """Another source names an owner with this epoch: take a higher one. To be called before the first save."""
        self.epoch = max(self.epoch, epoch + 1)

    async def save(self, value: dict[str, Any]) -> None:
        """Write the next version, durably; the first one takes the record. Raises Fenced, for ever, once another owner
        wrote one.

        Retries while the store is away: an owner that cannot write does not lose its ownership by that.
        """
        if self._writing:
            raise AssertionError("one write of a record at a time")
        self._writing = True
        try:
            untold = {"untold": self._untold} if self._untold else {}
            await self._write({**value, "epoch": self.epoch, "owner": self._ports.me, **untold})
            for process in self._untold:
                await give_notice(self._ports, process, f"{self._key} {self.epoch}")
            self._untold = []
        finally:
            self._writing = False

    async def remove(self) -> None:
        """Forget the record, which has no owner then. Raises Fenced, for ever, if another owner wrote a version.

        Retries while the store is away, as `save` does.
        """
        if self._writing:
            raise AssertionError("a record is not removed while it is written")
        lost, self.lost = self.lost, True
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while not lost:
            try:
                if not await self._is_another() and await self._ports.meta.remove(self._key, self._number):
                    return
                lost = True
            except Unavailable as error:
                self._ports.log("record_waits", key=self._key, error=str(error))
                await wait.pause()
        raise Fenced(f"{self._key} has a newer owner")

    async def verify(self) -> None:
        """Look whether the record is still ours. Raises Fenced, for ever, if not; Unavailable: nobody knows now."""
        if self._writing:
            raise AssertionError("a record is not looked at while it is written")
        asked, notice = self._ports.clock.monotonic(), self._proof.notice
        newest = None if self.lost else await newest_version(self._ports.meta, self._key)
        if newest is None or not self._knows(newest):
            self.lost = True
            raise Fenced(f"{self._key} has a newer owner")
        self._proven, self._notice = asked, notice

    async def prove(self) -> None:
        """The same, with one look for all owners of this process unless somebody gave it notice."""
        if not self._notices:
            raise AssertionError("nobody gives notice of this record")
        await self._proof.prove(self._ports)
        if self.lost or self._notice != self._proof.notice:
            await self.verify()

    def _knows(self, newest: Version) -> bool:
        """Whether a version is the one that this owner took or wrote last; it may be damaged since."""
        if newest.number != self._number:
            return False
        try:
            head = msgspec.msgpack.decode(newest.value, type=_Head)
        except msgspec.DecodeError:
            return True
        return (head.epoch, head.owner) == self._newest

    async def _is_another(self) -> bool:
        """Whether the record was removed, and made again, since this owner looked at it."""
        since = self._ports.clock.monotonic() - LOOK_FIRST_MS
        if not self._removable or self._seen >= since or self.is_proved(since):
            return False
        try:
            if self._notices:  # who removes it has taken it before, with a notice; this look serves all of the process
                await self._proof.prove(self._ports)
                if self.is_proved(since):
                    return False
            newest = await newest_version(self._ports.meta, self._key)
        except Corrupt:
            return False  # a version that follows it mends it
        return newest.number > 0 and not self._knows(newest)

    def _wrote(self, asked: int, notice: int) -> None:
        """The next version is in place, which was asked for at that moment."""
        self._number, self._newest = self._number + 1, (self.epoch, self._ports.me)
        self._seen = self._proven = asked
        self._notice = notice

    async def _write(self, value: dict[str, Any]) -> None:
        packed = msgspec.msgpack.encode(value)  # the same bytes as msgpack's, in a quarter of the time
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while not self.lost:
            try:
                asked, notice = self._ports.clock.monotonic(), self._proof.notice
                if not await self._is_another() and await self._ports.meta.create(self._key, self._number + 1, packed):
                    return self._wrote(asked, notice)
                newest = await self._ports.meta.read(self._key)
                if newest is not None and newest.number == self._number + 1 and newest.value == packed:
                    return self._wrote(asked, notice)  # an earlier try of this very write, whose reply was lost
                self.lost = True
            except Unavailable as error:
                self._ports.log("record_waits", key=self._key, error=str(error))
                await wait.pause()
        raise Fenced(f"{self._key} has a newer owner")

    async def _read(self) -> tuple[int, dict[str, Any]] | None:
        wait = Backoff(self._ports, RETRY_FIRST, RETRY_MOST)
        while True:
            try:
                newest = await self._ports.meta.read(self._key)
                break
            except Unavailable as error:
                self._ports.log("record_waits", key=self._key, error=str(error))
                await wait.pause()
        if newest is None:
            return None
        return newest.number, record_in(self._key, newest.value)
