"""Finds ledgers that bookies still hold and no partition names any more, and lets the bookies forget them.

Deleting a ledger changes the chain first and tells the bookies afterwards; a crash in between, a bookie that was away,
or a late write of a replaced owner leaves something behind. The order makes the sweep safe: the bookies are asked
*first* and the records read *afterwards*. A ledger is in its record before its first run is sent, so one that a
bookie held a moment ago and no record names now was deleted, and ids are never used again. A record that cannot be
read ends the sweep: what is not known to be deleted stays.

The controller sweeps now and then. A sweep that froze in the middle and goes on an hour later does no harm either: what
was deleted when it looked is deleted still. Copies that a bookie has beside the ensemble, because it was given up and
came back, are not leftovers: their ledger is named, and a copy that is being made looks just like them.
"""

from __future__ import annotations

from actors.ledger.record import unpack_record
from actors.messages import BookieList, DeleteLedgers, ListLedgers
from actors.ports import Ports, Unknown
from storage.errors import SluiceError, Unavailable

TIMEOUT = 30_000


async def sweep(ports: Ports, bookies: BookieList) -> dict[str, list[int]]:
    """Delete leftovers at these bookies; returns what was deleted, by bookie. Raises Unavailable, Corrupt."""
    held: list[tuple[str, str, list[int]]] = []
    for name, address in zip(bookies.ids, bookies.addresses, strict=True):
        try:
            reply = await ports.net.call(address, ListLedgers(), TIMEOUT)
        except SluiceError:
            continue
        if not isinstance(reply, Unknown):
            held.append((name, address, reply.ledgers))
    named = await named_ledgers(ports)
    deleted: dict[str, list[int]] = {}
    for name, address, ledgers in held:
        leftovers = [ledger for ledger in ledgers if ledger not in named]
        if leftovers and await _forget(ports, address, leftovers):
            deleted[name] = leftovers
    return deleted


async def _forget(ports: Ports, address: str, ledgers: list[int]) -> bool:
    """Whether the bookie said that it has; one that does not is asked again in the next sweep."""
    try:
        return not isinstance(await ports.net.call(address, DeleteLedgers(ledgers=ledgers), TIMEOUT), Unknown)
    except SluiceError:
        return False


async def named_ledgers(ports: Ports) -> dict[int, str]:
    """Every ledger that some partition's chain names, with the record's key. Raises Unavailable, Corrupt."""
    named: dict[int, str] = {}
    for key in await ports.meta.keys("partition/"):
        version = await ports.meta.read(key)
        if version is None:
            raise Unavailable(f"the record {key} went away while it was being read")
        for ledger in unpack_record(version.value).ledgers:
            named[ledger.id] = key
    return named
