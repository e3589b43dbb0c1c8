"""Finds ledgers that bookies hold although their partition has released them, and lets the bookies forget them.

Deleting a ledger changes the chain first and tells the bookies afterwards; a crash in between, a bookie that was away,
or a late write of a replaced owner leaves copies behind. A ledger is collected only if this metadata itself named it
and let it go: a chain that loses a ledger puts its id among `released` in the same version of its record, and the
garbage collection collects these in the record `ids/released`, from which nothing is ever taken. A ledger that no chain
names and that was never released stays, whatever the reason: it may be data that a restored, a damaged or a wrong
metadata store does not know. Such ledgers are told, for an alarm. Bookies are asked before the records are read, and a
ledger is named before anything is written to it, so one that is new or just released is not among them.

Ids are never used twice, so a garbage collection that froze in the middle and goes on an hour later does no harm: what
was released is released still. Two controllers may collect at once. A record that cannot be read ends the garbage
collection. Copies that a bookie has beside the ensemble, because it was given up and came back, are not leftovers:
their ledger is named, and a copy that is being made looks just like them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyroaring import BitMap

from sluice.actors.ledger.history_objects import COMPACTED, FOLDER, compacted_prefix, delete_history, history_prefix
from sluice.actors.ledger.record import unpack_record
from sluice.actors.messages import BookieList, DeleteLedgers, ListLedgers
from sluice.actors.ownership.record_scan import scan, value_in
from sluice.actors.ports import Ports, Unknown
from sluice.actors.runtime.store_attempts import REFUSALS
from sluice.storage.errors import Corrupt, SluiceError, Unavailable

TIMEOUT = 30_000
RELEASED = "ids/released"
"""A roaring bitmap of every ledger that was ever released."""


@dataclass(slots=True)
class Collected:
    """The result of a garbage collection, as ids of ledgers by bookie.

    deleted: what the bookies have forgotten. unknown: what they hold and no record names or has released. objects: what
    topics that are deleted had left in the object store.
    """

    deleted: dict[str, list[int]] = field(default_factory=dict)
    unknown: dict[str, list[int]] = field(default_factory=dict)
    objects: list[str] = field(default_factory=list)


async def collect_garbage(ports: Ports, bookies: BookieList) -> Collected:
    """Delete leftovers at these bookies. Raises Unavailable, Corrupt."""
    held: list[tuple[str, str, list[int]]] = []
    for name, address in zip(bookies.ids, bookies.addresses, strict=True):
        try:
            reply = await ports.net.call(address, ListLedgers(), TIMEOUT)
        except SluiceError:
            continue
        if not isinstance(reply, Unknown):
            held.append((name, address, reply.ledgers))
    named, released, deleted = await _chains(ports)
    released = await _note(ports, released)
    collected = Collected(objects=await _forget_objects(ports, deleted))
    for name, address, ledgers in held:
        leftovers = [ledger for ledger in ledgers if ledger in released and ledger not in named]
        if leftovers and await _forget(ports, address, leftovers):
            collected.deleted[name] = leftovers
        if unknown := [ledger for ledger in ledgers if ledger not in released and ledger not in named]:
            collected.unknown[name] = unknown
    return collected


async def _forget(ports: Ports, address: str, ledgers: list[int]) -> bool:
    """Whether the bookie confirmed it; otherwise the next collection asks again."""
    try:
        return not isinstance(await ports.net.call(address, DeleteLedgers(ledgers=ledgers), TIMEOUT), Unknown)
    except SluiceError:
        return False


async def noted_released(ports: Ports) -> BitMap:
    """Every ledger that a garbage collection has written down as released. Raises Unavailable, Corrupt."""
    newest = await ports.meta.read(RELEASED)
    return BitMap() if newest is None else released_in(newest.value)


def released_in(value: bytes) -> BitMap:
    """The ledgers in a version's bytes. Raises Corrupt."""
    try:
        return BitMap.deserialize(value)
    except (ValueError, LookupError) as error:
        raise Corrupt(f"the record {RELEASED} cannot be read: {error}") from error


async def _note(ports: Ports, released: BitMap) -> BitMap:
    """Write down what chains have released; returns all that ever was. Raises Unavailable, Corrupt."""
    while True:
        newest = await ports.meta.read(RELEASED)
        noted = BitMap() if newest is None else released_in(newest.value)
        if released <= noted:
            return noted
        noted |= released
        noted.run_optimize()
        if await ports.meta.create(RELEASED, (newest.number if newest else 0) + 1, noted.serialize()):
            return noted


async def _forget_objects(ports: Ports, deleted: dict[str, int]) -> list[str]:
    """Delete what deleted partitions have left in the object store. deleted: their last epochs, by prefix."""
    try:
        names = [name for folder in (FOLDER, COMPACTED) for name in await ports.objects.names(folder)]
        folders = {name.rpartition("/")[0] + "/": None for name in names}
        return [
            name for prefix in folders if prefix in deleted
            for name in await delete_history(ports, prefix, deleted[prefix])
        ]  # fmt: skip
    except REFUSALS as error:
        ports.log("history_left", error=str(error))
        return []


async def _chains(ports: Ports) -> tuple[BitMap, BitMap, dict[str, int]]:
    """The ledgers that some chain has on bookies, those that some chain has released, and the partitions that were
    deleted, also if there are others of their names now: their last epochs, by the prefix of their objects. Raises
    Unavailable, Corrupt.
    """
    named, released = BitMap(), BitMap()
    deleted: dict[str, int] = {}
    async for group in scan(ports.meta, await ports.meta.keys("partition/")):
        for key, found in group:
            value = value_in(found)
            if value is None:
                raise Unavailable(f"the record {key} went away while it was being read")
            record = unpack_record(value)
            named.update(ledger.id for ledger in record.ledgers if ledger.fragments)
            released.update(record.released)
            if record.deleted or record.first_epoch:
                for prefix in (history_prefix, compacted_prefix):
                    last = record.epoch if record.deleted else record.first_epoch - 1
                    deleted[prefix(record.topic, record.partition)] = last
    return named, released, deleted
