"""Mutants of requests that are made once: what is asked for outlives the process that heard it."""

from __future__ import annotations

from tools.mutants import Mutant

WORKERS, POOLS = "workers", "tests/actors/controller/test_pools.py"
HISTORY, OFFLOADING = "history", "tests/actors/topic/background/test_offloading.py"
COMPACTION, COMPACTING = "compaction", "tests/actors/topic/background/test_compaction.py"

PLACEMENT, BOOKIES, CATALOG = (
    "placement",
    "tests/actors/test_known_bookies.py",
    "tests/actors/controller/test_catalog.py",
)
OPEN_POSITIONS = "tests/actors/dispatcher/delivery/test_open_positions.py"
GATEWAY, NAMESPACES = "gateway", "tests/cluster/admin/test_namespaces.py"

REMEMBERING: list[Mutant] = [
    Mutant(
        name="a look at the end of the log does not see what was trimmed",
        module="sluice.actors.dispatcher.delivery.reader",
        old="            self._begins_at(ledger_of(max(ends.first, 0)), self._next())\n",
        new="",
        world="delays",
        test="tests/actors/dispatcher/operator/test_inspection.py::test_a_new_owners_backlog_begins_behind_what_was_trimmed",
    ),
    Mutant(
        name="a message that no table knows is not read again",
        module="sluice.actors.dispatcher.delivery.open_positions",
        old="        self._reader.read_again(lost)\n",
        new="",
        world="delays",
        test=f"{OPEN_POSITIONS}::test_a_message_that_the_window_lost_comes_once",
    ),
    Mutant(
        name="a controller looks once which bookies have served",
        module="sluice.actors.controller.controller",
        old='            self.ports.spawn(self._want_served(), "cookies")\n',
        new="",
        world=PLACEMENT,
        test=f"{BOOKIES}::test_bookies_that_are_unknown_at_first_are_started_later",
    ),
    Mutant(
        name="a controller that knows no drains yet answers",
        module="sluice.actors.controller.draining",
        old="            if not self._known:\n                await self._load()\n            nodes = await",
        new="            nodes = await",
        world=PLACEMENT,
        test="tests/actors/controller/test_draining.py::test_a_controller_looks_which_drains_there_are",
    ),
    Mutant(
        name="a bookie that is down for a moment keeps its ledgers on a drained node",
        module="sluice.actors.controller.draining",
        old="        if missing := [bookie for bookie in unknown if bookie not in lost]:\n",
        new="        if missing := list[str]():\n",
        world=PLACEMENT,
        test="tests/actors/controller/test_draining.py::test_no_bookie_is_left_behind_because_it_was_down",
    ),
    Mutant(
        name="a topic that is half removed leaves its permissions to the next one",
        module="sluice.actors.controller.catalog",
        old="        await forget_topic(self._meta, topic)\n        with self._changing(topic):\n",
        new="        with self._changing(topic):\n",
        world=PLACEMENT,
        test=f"{CATALOG}::test_a_topic_that_is_half_removed_can_be_removed_again",
    ),
    Mutant(
        name="a namespace that is half removed leaves its policies to the next one",
        module="sluice.cluster.admin.namespaces",
        old="            await self._forget(space)\n        await self._namespaces.remove(space)\n",
        new="            await self._namespaces.remove(space)\n            await self._forget(space)\n",
        world=GATEWAY,
        test=f"{NAMESPACES}::test_a_namespace_that_is_half_removed_can_be_removed_again",
    ),
    Mutant(
        name="the first namespace loses its policies to who cannot remove it",
        module="sluice.cluster.admin.namespaces",
        old="        if space != TENANT_NAMESPACE:  # which is always there, with what is said of it\n",
        new="        if True:\n",
        world=GATEWAY,
        test=f"{NAMESPACES}::test_the_first_namespace_keeps_what_is_said_of_it",
    ),
    Mutant(
        name="what is written while a topic is removed stays",
        module="sluice.actors.controller.catalog",
        old="            await self._meta.remove(_TOPICS + topic)\n        await forget_topic(self._meta, topic)\n",
        new="            await self._meta.remove(_TOPICS + topic)\n",
        world=PLACEMENT,
        test=f"{CATALOG}::test_record_made_during_a_removal_is_removed_as_well",
    ),
    Mutant(
        name="a keeper that is started again forgets what operators want",
        module="sluice.actors.controller.pools",
        old="            if known is not None and known.start and known.start == request.start:\n",
        new="            if False:\n",
        world=WORKERS,
        test=f"{POOLS}::test_a_keeper_that_is_started_again_keeps_what_is_wanted",
    ),
    Mutant(
        name="who starts a pool anew gets what operators wanted of the one before",
        module="sluice.actors.controller.pools",
        old="            if known is not None and known.start and known.start == request.start:\n",
        new="            if known is not None:\n",
        world=WORKERS,
        test=f"{POOLS}::test_a_keeper_that_is_started_again_keeps_what_is_wanted",
    ),
    Mutant(
        name="a new controller takes the pools that it has not heard of for abandoned",
        module="sluice.actors.controller.pools",
        old="(self._begun if report is None else report.heard)\n",
        new="(-(1 << 40) if report is None else report.heard)\n",
        world=WORKERS,
        test=f"{POOLS}::test_a_new_controller_takes_no_pool_for_abandoned",
    ),
    Mutant(
        name="why a pool has stopped goes with its keeper",
        module="sluice.actors.controller.pools",
        old="            if stopped and record.kind != PROGRAM and not record.draining:\n",
        new="            if False:\n",
        world=WORKERS,
        test=f"{POOLS}::test_a_pool_that_gave_up_says_why_until_somebody_acts",
    ),
    Mutant(
        name="a keeper that comes again starts what gave up",
        module="sluice.actors.controller.pools",
        old="            draining=record.draining or bool(record.stopped),\n",
        new="            draining=record.draining,\n",
        world=WORKERS,
        test=f"{POOLS}::test_a_keeper_that_comes_again_does_not_start_what_gave_up",
    ),
    Mutant(
        name="a keeper begins with the numbers that it was made with",
        module="sluice.cluster.workers.registry",
        old="        self._tell(wanted)\n        return self._epoch\n",
        new="        return self._epoch\n",
        world=WORKERS,
        test="tests/cluster/workers/test_registry.py::test_a_keeper_hears_with_its_claim_what_is_wanted",
    ),
    Mutant(
        name="a new owner forgets what operators asked of the one before",
        module="sluice.actors.ledger.partition_metadata",
        old="        return msgspec.structs.replace(base, settings=settings, ledgers=ledgers)\n",
        new="        asked = type(base.asked)()\n"
        "        return msgspec.structs.replace(base, settings=settings, ledgers=ledgers, asked=asked)\n",
        world=HISTORY,
        test=f"{OFFLOADING}::test_requested_offload_outlives_the_owner",
    ),
    Mutant(
        name="what operators asked for wakes no owner",
        module="sluice.actors.topic.background.closed",
        old="record.asked.offload or record.asked.compact or offloadable",
        new="offloadable",
        world=HISTORY,
        test="tests/actors/test_asked_work.py",
    ),
    Mutant(
        name="a new owner compacts nothing that the one before was asked for",
        module="sluice.actors.topic.background.compaction",
        old="        self._asked = int(context.log.record.asked.compact)\n",
        new="        self._asked = 0\n",
        world=COMPACTION,
        test=f"{COMPACTING}::test_requested_compaction_outlives_the_owner",
    ),
    Mutant(
        name="ledgers that are asked for meanwhile count as gone",
        module="sluice.actors.topic.background.offloading",
        old="    if (asked.keep_bytes, asked.before) != (done.keep_bytes, done.before):\n",
        new="    if False:\n",
        world=HISTORY,
        test=f"{OFFLOADING}::test_offload_asked_for_during_one_is_done_as_well",
    ),
    Mutant(
        name="an owner closes with a compaction that was asked for",
        module="sluice.actors.topic.background.compaction",
        old="        return self.wanted or self.due(settings)\n",
        new="        return self.due(settings)\n",
        world=COMPACTION,
        test=f"{COMPACTING}::test_requested_compaction_outlives_the_owner",
    ),
    Mutant(
        name="an owner closes with ledgers that are to leave",
        module="sluice.actors.topic.background.offloading",
        old="            or self.wanted\n            or offloadable(",
        new="            or offloadable(",
        world=HISTORY,
        test=f"{OFFLOADING}::test_requested_offload_outlives_the_owner",
    ),
]
