"""Keeps one partition's record: takes possession of it, and changes it one version at a time.

The race for a version is `actors.ownership.fenced_record`; here is what a partition adds to it. Taking possession turns
every open ledger IN_RECOVERY in the very version that raises the epoch. Changes run one after another, each made from
the newest record, and none is believed before its version is durable. An owner that loses one write stops for good:
going on after a lost write is how other brokers trimmed ledgers that were no longer theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from sluice.actors.ledger.record import (
    Exclusivity,
    LedgerState,
    PartitionRecord,
    decode_record,
    encode_record,
    record_key,
    unpack_record,
)
from sluice.actors.messages import TopicSettings
from sluice.actors.ownership.fenced_record import FencedRecord, OwnershipProof
from sluice.actors.ports import Ports
from sluice.storage.errors import Corrupt, Fenced

RECENT_MS = 2_000
"""A proof of the process that is no older is good enough for an owner that only wants to notice its successor."""
UNTOLD_MS = 120_000
"""The interval of looks at the record itself, even if the process has a proof. A successor that died before its notice
has told nobody, and nobody takes its place while this owner answers. It has fenced no ledger either, so this one serves
on until it changes the record.
"""


class PartitionMetadata:
    """The newest version of the record that this owner has made. lost(reason): called when there is a newer owner."""

    def __init__(self, ports: Ports, topic: str, partition: int, lost: Callable[[str], None]) -> None:
        self._ports = ports
        self._topic = topic
        self._partition = partition
        self._key = record_key(topic, partition)
        self._lost = lost
        self._lock = asyncio.Lock()
        self._fenced = FencedRecord(ports, self._key)
        self._proof, self._notice = ports.process.of(OwnershipProof), 0
        self._verified = 0
        self.record = PartitionRecord(topic=topic, partition=partition, settings=TopicSettings(), highest_ledger=0)

    async def acquire(self, settings: TopicSettings) -> PartitionRecord:
        """Become the owner with the next epoch; open ledgers turn IN_RECOVERY in the same version.

        A race lost against the old owner's last write is run again; one lost against another new owner is Fenced.
        """
        epoch = await self._take()
        while True:
            taken = self._taken(settings)
            try:
                await self._save(taken)
            except Fenced:
                newest = await self._take()
                if newest > epoch:
                    raise
                epoch = newest
                continue
            self._ports.log("owner", key=self._key, epoch=self.record.epoch)
            return self.record

    async def _take(self) -> int:
        """Read the newest record; returns the epoch under which it may be taken."""
        self._fenced = FencedRecord(self._ports, self._key)
        value = await self._fenced.acquire()
        if value is not None:
            self.record = decode_record(value)
        return self._fenced.epoch

    def _taken(self, settings: TopicSettings) -> PartitionRecord:
        base = self.record
        if base.deleted:
            # Numbers go on: clients may still know them from the topic that was deleted.
            base = PartitionRecord(
                topic=self._topic,
                partition=self._partition,
                settings=settings,
                released=base.released,
                highest_ledger=base.highest_ledger,
                exclusivity=Exclusivity(base.exclusivity.epoch),
                first_epoch=self._fenced.epoch,
            )
        ledgers = tuple(
            msgspec.structs.replace(ledger, state=LedgerState.IN_RECOVERY)
            if ledger.state is LedgerState.OPEN
            else ledger
            for ledger in base.ledgers
        )
        return msgspec.structs.replace(base, settings=settings, ledgers=ledgers)

    async def update(self, change: Callable[[PartitionRecord], PartitionRecord]) -> PartitionRecord:
        """Make the next version from the present one; returns when it is durable.

        Raises Fenced, after calling `lost`, when the partition has a newer owner, or may have one because its record
        cannot be read.
        """
        async with self._lock:
            changed = change(self.record)
            if changed != self.record:
                try:
                    await self._save(changed)
                except Fenced as error:
                    self._lost(str(error))
                    raise
                except Corrupt as error:
                    raise self._damaged(error) from error
            return self.record

    async def prove(self) -> None:
        """The same as `verify`, with one look for all owners of this process unless somebody gave it notice."""
        await self._proof.prove(self._ports, RECENT_MS)
        if not self.is_told():
            await self.verify()

    def is_proved(self, age: int) -> bool:
        """Whether `prove` would have nothing to look at, if a proof that is `age` ms old is good enough."""
        return self.is_told() and self._ports.clock.monotonic() - self._proof.proven < age

    def is_told(self) -> bool:
        """Whether the proof of the process speaks for this record, which was looked at since its newest notice."""
        return self._notice == self._proof.notice and self._ports.clock.monotonic() - self._verified < UNTOLD_MS

    async def verify(self) -> None:
        """Look whether the partition has a newer owner, as an owner that was frozen must. Raises Fenced, Unavailable.

        An owner that writes nothing would never lose a write; its readers would wait at a dead end for ever.
        """
        notice, asked = self._proof.notice, self._ports.clock.monotonic()
        try:
            newest = await self._ports.meta.read(self._key)
        except Corrupt as error:
            raise self._damaged(error) from error
        if newest is not None and (epoch := unpack_record(newest.value).epoch) > self.record.epoch:
            reason = f"{self._key} was taken under epoch {epoch}"
            self._lost(reason)
            raise Fenced(reason)
        self._notice, self._verified = notice, asked

    def _damaged(self, error: Corrupt) -> Fenced:
        """Whether a change is in the record nobody can say: the next owner begins with what it finds there."""
        reason = f"{self._key} cannot be read: {error}"
        self._lost(reason)
        return Fenced(reason)

    def abandon(self) -> None:
        self._fenced.lost = True

    async def _save(self, record: PartitionRecord) -> None:
        record.check()
        value: dict[str, Any] = encode_record(record)
        notice, asked = self._proof.notice, self._ports.clock.monotonic()
        await self._fenced.save(value)
        self._notice, self._verified = notice, asked  # who wrote a version is its owner then
        self.record = msgspec.structs.replace(record, epoch=self._fenced.epoch, owner=self._ports.me)
