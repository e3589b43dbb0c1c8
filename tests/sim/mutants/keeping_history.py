"""Mutants of ledgers that leave for the object store, and are read from there."""

from __future__ import annotations

from tests.sim.mutants import Mutant

HISTORY = "history"
OFFLOADING = "tests/actors/topic/test_offloading.py"
FOLLOWING = "tests/actors/topic/test_table_following.py"
FORMAT = "tests/storage/test_history.py"
COMPACTION = "compaction"
COMPACTING = "tests/actors/topic/test_compaction.py"

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
        module="actors.topic.stored_objects",
        old="            if name not in named and epoch_of(name)",
        new="            if epoch_of(name)",
        world=HISTORY,
        seed=2,
    ),
    Mutant(
        name="what is not ours is collected",
        module="actors.topic.stored_objects",
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
        module="storage.checked_parquet",
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
    Mutant(
        name="a commit that failed is taken for done",
        module="actors.topic.table_following",
        old="            self._not_before = self._ports.clock.monotonic() + RETRY_MS\n",
        new="            self._followed = named\n",
        world=HISTORY,
        test=FOLLOWING,
    ),
    Mutant(
        name="a new owner takes the table for what it should be",
        module="actors.topic.table_following",
        old="            return bool(named or self._log.record.trimmed_before)",
        new="            return False",
        world=HISTORY,
        seed=2,
    ),
    Mutant(
        name="compaction forgets that a key is gone",
        module="actors.topic.compaction",
        old="    mask &= ~(is_empty(rows) & (times < old) & (positions <= passed))",
        new="    mask &= ~is_empty(rows)",
        world=COMPACTION,
        test=COMPACTING,
    ),
    Mutant(
        name="a message that says that its key is gone is no message",
        module="storage.compacted",
        old="        keyed = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))",
        new="        keyed = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False) & ~is_empty(rows))",
        world=COMPACTION,
        test=COMPACTING,
    ),
    Mutant(
        name="whoever knew a key is not told that it is gone",
        module="actors.topic.compacted_reads",
        old="empty=since > table.base",
        new="empty=False",
        world=COMPACTION,
        test=COMPACTING,
    ),
    Mutant(
        name="a newer table is taken for the one that was begun",
        module="actors.topic.compacted_reads",
        old="request.since if request.table == table.horizon else start",
        new="request.since if request.table >= 0 else start",
        world=COMPACTION,
        test=COMPACTING,
    ),
    Mutant(
        name="keys that did not fit are left out",
        module="storage.compacted",
        old="        self._low, self._high = self._high, MASK + 1",
        new="        self._low, self._high = MASK, MASK + 1",
        world=COMPACTION,
        test="tests/storage/test_compacted.py",
    ),
    Mutant(
        name="a table is named before it was compared",
        module="actors.topic.compaction",
        old="        footer = await self.reader.footer(part)\n        for number, wanted in enumerate(sealed.rows):",
        new="        for number, wanted in ():",
        world=COMPACTION,
        test=COMPACTING,
    ),
    Mutant(
        name="what was not compacted is trimmed",
        module="actors.topic.upkeep",
        old="        return trims_up_to(self.marks, self.compaction.holds)",
        new="        return trims_up_to(self.marks, None)",
        world=COMPACTION,
        test=COMPACTING,
    ),
    Mutant(
        name="what was compacted away stays in the backlog",
        module="actors.dispatcher.reader",
        old="            self._pass_over(reply, start)\n",
        new="            self._table, self._since = reply.table, reply.since\n",
        world=COMPACTION,
        test="tests/cluster/pulsar/test_compaction.py",
    ),
]
