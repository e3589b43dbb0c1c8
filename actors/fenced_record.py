"""A metadata record with one owner at a time.

The record is a series of numbered versions made with put-if-absent. Whoever writes version n+1 knows that nobody else
changed the record since version n. An owner that loses that race is no longer the owner and stops at once. There is no
lock, no lease and no clock in this: the version number is the proof of the epoch (S15).

A write whose outcome is unknown is looked up: the value carries the writer's address, so "mine or not" has an answer.

A record that was removed and made again counts its versions from 1 again. An owner that slept through that may find its
own number there, under somebody else's name. So whoever has not known for DOUBT_MS that the record is his looks whose
the newest version is before he writes the next one.

An owner that has nothing to write would never learn that it was replaced. `proven` says since when it may not know it:
each write moves it, and so does a look, at the record (`verify`) or at what proves all owners of the process
(`ownership_proof`). So that the latter holds, a new owner gives notice to the process of the one before it, and has
taken the record only with that. A version names the processes that may not have been told, for whoever comes next if
its writer ends before it has told them.
"""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec

from actors.backoff import Backoff
from actors.ownership_proof import OwnershipProof, give_notice, process_of
from actors.ports import Ports
from storage.errors import Corrupt, Fenced, Unavailable

RETRY_FIRST, RETRY_MOST = 10, 1_000
DOUBT_MS = 10_000
"""Who removes a record and makes it again has waited until the owner before was given up."""


class _Head(msgspec.Struct):
    """What this module keeps in a version: see FencedRecord."""

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

    def __init__(self, ports: Ports, key: str, *, notices: bool = True) -> None:
        """notices: whether the process of the owner before learns of it by a notice; one that looks at the record
        itself needs none, and may not `prove` that it owns it.
        """
        self._ports = ports
        self._key = key
        self._notices = notices
        self._number = 0
        self._writing = self._owns = False
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

    async def take(self) -> dict[str, Any] | None:
        """Become the owner under a new epoch; returns the value as the last owner left it, None if it is new.

        The caller must follow with `save` before it acts as the owner: taking is complete only with that.
        """
        newest = await self._read()
        if newest is None:
            self._number, self.epoch = 0, 1
            return None
        number, value = newest
        self._number, self.epoch = number, int(value["epoch"]) + 1
        if not self._notices:
            return value
        untold = [process_of(str(value.get("owner", ""))), *value.get("untold", ())]
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
                if await self._ports.meta.remove(self._key, self._number):
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
        await self._look()

    async def _look(self) -> None:
        asked, notice = self._ports.clock.monotonic(), self._proof.notice
        newest = None if self.lost else await self._ports.meta.read(self._key)
        if newest is None or newest.number != self._number or not self._is_mine(newest.value):
            self.lost = True
            raise Fenced(f"{self._key} has a newer owner")
        self._proven, self._notice = asked, notice

    def _is_mine(self, value: bytes) -> bool:
        """Whether this owner has written a version; one that has not written any yet goes on from another one's."""
        head = record_in(self._key, value)
        return not self._owns or (head["epoch"], head.get("owner")) == (self.epoch, self._ports.me)

    async def prove(self) -> None:
        """The same, with one look for all owners of this process unless somebody gave it notice."""
        if not self._notices:
            raise AssertionError("nobody gives notice of this record")
        await self._proof.look(self._ports)
        if self.lost or self._notice != self._proof.notice:
            await self.verify()

    async def _write(self, value: dict[str, Any]) -> None:
        packed = msgspec.msgpack.encode(value)  # the same bytes as msgpack's, in a quarter of the time
        wait, tried = Backoff(self._ports, RETRY_FIRST, RETRY_MOST), False
        while not self.lost:
            try:
                asked, notice = self._ports.clock.monotonic(), self._proof.notice
                if self._owns and not tried and asked - self.proven > DOUBT_MS:
                    await self._look()
                tried = True
                if await self._ports.meta.create(self._key, self._number + 1, packed):
                    self._number, self._proven, self._notice, self._owns = self._number + 1, asked, notice, True
                    return
                newest = await self._ports.meta.read(self._key)
                if newest is not None and newest.number == self._number + 1 and newest.value == packed:
                    # An earlier try of this very write, whose reply was lost.
                    self._number, self._proven, self._notice, self._owns = self._number + 1, asked, notice, True
                    return
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
