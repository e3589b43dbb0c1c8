"""Mutants of ledgers that leave for the object store, and are read from there."""

from __future__ import annotations

from tests.sim.mutants import Mutant

HISTORY = "history"
OFFLOADING = "tests/actors/topic/test_offloading.py"
FORMAT = "tests/storage/test_history.py"

KEEPING_HISTORY: list[Mutant] = [
    Mutant(
        name="an object is named before it was compared",
        module="actors.topic.offloading",
        old="            await self._compare(ledger, part, sealed)\n",
        new="",
        world=HISTORY,
        test=OFFLOADING,
    ),
    Mutant(
        name="bookies forget what the record does not name",
        module="actors.topic.offloading",
        old="        if ledger.offloaded is not None and ledger.fragments and",
        new="        if ledger.last_run >= 0 and ledger.fragments and ledger.closed_at and 0 <=",
        world=HISTORY,
        test=OFFLOADING,
    ),
    Mutant(
        name="a row group is given for its neighbour",
        module="storage.history",
        old='[group.stop_run for group in self.groups], run, side="right"',
        new='[group.first_run for group in self.groups], run, side="right"',
        world=HISTORY,
        seed=2,
    ),
    Mutant(
        name="what the record names is collected",
        module="actors.topic.offloading",
        old="            if name not in named and epoch_of(name)",
        new="            if epoch_of(name)",
        world=HISTORY,
        seed=2,
    ),
    Mutant(
        name="what is not ours is collected",
        module="actors.topic.offloading",
        old="            if name not in named and epoch_of(name) <= self._log.epoch:",
        new="            if name not in named:",
        world=HISTORY,
        test=OFFLOADING,
    ),
    Mutant(
        name="a topic that was made again loses its objects",
        module="actors.ledger.history_objects",
        old="if epoch_of(name) <= epoch]",
        new="if epoch_of(name)]",
        world=HISTORY,
        test=OFFLOADING,
    ),
    Mutant(
        name="a row group is believed unseen",
        module="storage.history",
        old="    if len(data) != group.length or google_crc32c.value(data) != group.crc:",
        new="    if len(data) != group.length:",
        world=HISTORY,
        test=FORMAT,
    ),
    Mutant(
        name="other rows are taken for the same",
        module="storage.history",
        old="            if header.crc != wanted.crc:",
        new="            if False:",
        world=HISTORY,
        test=FORMAT,
    ),
]
