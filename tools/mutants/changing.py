"""Mutants of what changes a topic for good: more partitions, and the end of it."""

from __future__ import annotations

from tools.mutants import Mutant

GATEWAY = "gateway"
DELETING = "tests/actors/dispatcher/operator/test_deletion.py"
ENDING, GROWING = "tests/actors/topic/partition/test_termination.py", "tests/actors/test_growing.py"
CLIENTS = "tests/cluster/admin/test_changes.py"

CHANGING: list[Mutant] = [
    Mutant(
        name="settings that nobody names are set back",
        module="sluice.actors.dispatcher.operator.configuration",
        old="__struct_fields__ if asked.said is None else asked.said",
        new="__struct_fields__",
        world="restless",
        test="tests/actors/dispatcher/operator/test_configuration.py::test_settings_that_are_not_said_stay",
    ),
    Mutant(
        name="what is on its way when a topic is terminated is not waited for",
        module="sluice.actors.topic.partition.termination",
        old="            await self._settle()\n",
        new="",
        world=GATEWAY,
        test=ENDING,
    ),
    Mutant(
        name="messages are taken while what is on its way is waited for",
        module="sluice.actors.topic.partition.termination",
        old="        if self.under_way:\n",
        new="        if False:\n",
        world=GATEWAY,
        test=ENDING,
    ),
    Mutant(
        name="a topic is terminated for its present owner alone",
        module="sluice.actors.topic.partition.termination",
        old="await self._log.metadata.update(lambda record: msgspec.structs.replace(record, terminated=True))",
        new="self._log.metadata.record = msgspec.structs.replace(self._log.record, terminated=True)",
        world=GATEWAY,
        test=ENDING,
    ),
    Mutant(
        name="who comes after a topic was terminated waits for its end",
        module="sluice.actors.topic.topic",
        old="(reply.ends and not knows_end)",
        new="(reply.ends and told)",
        world=GATEWAY,
        test=ENDING,
    ),
    Mutant(
        name="a producer does not learn what it stored before the end",
        module="sluice.actors.topic.topic",
        old="        if not request.resumes:\n            self._termination.check()\n",
        new="        self._termination.check()\n",
        world=GATEWAY,
        test=ENDING,
    ),
    Mutant(
        name="the end of a topic is told before everything is done",
        module="sluice.actors.dispatcher.delivery.dispatch_loop",
        old="        if self._reader.over and not self._ack_handler.count(self._reader.end):\n",
        new="        if self._reader.over:\n",
        world=GATEWAY,
        test=f"{CLIENTS}::test_consumers_are_told_when_everything_is_done",
    ),
    Mutant(
        name="partitions are told before the subscriptions have them",
        module="sluice.actors.controller.controller",
        old="            await self._spread(topic, settings.partitions, wanted)\n            if wanted",
        new="            if wanted",
        world=GATEWAY,
        test=GROWING,
    ),
    Mutant(
        name="who subscribes while a topic grows misses the new partitions",
        module="sluice.actors.controller.controller",
        old="        if request.settings is not None:\n            self._check_not_growing(request.topic)\n",
        new="",
        world=GATEWAY,
        test=GROWING,
    ),
    Mutant(
        name="an owner deletes a subscription without a look whether it was replaced",
        module="sluice.actors.dispatcher.operator.deletion",
        old="        await context.store.barrier()\n",
        new="",
        world=GATEWAY,
        test=f"{DELETING}::test_an_owner_that_was_replaced_unknowingly_deletes_nothing",
    ),
    Mutant(
        name="an owner that deletes a subscription removes the record of a newer one",
        module="sluice.actors.ownership.fenced_record",
        old="self._ports.meta.remove(self._key, self._number)",
        new="self._ports.meta.remove(self._key)",
        world=GATEWAY,
        test=f"{DELETING}::test_owner_replaced_during_a_deletion_leaves_the_record",
    ),
    Mutant(
        name="a subscription that is half deleted goes on",
        module="sluice.actors.dispatcher.takeover",
        old='    if value is not None and value.get("deleted"):\n',
        new="    if False:\n",
        world=GATEWAY,
        test=f"{DELETING}::test_half_deleted_subscription_starts_over",
    ),
    Mutant(
        name="of several partitions one is deleted before the others agree",
        module="sluice.actors.controller.controller",
        old="            await self._ask_all(owners.values(), PrepareDeletion(deletion=request))\n",
        new="            pass\n",
        world=GATEWAY,
        test=f"{DELETING}::test_a_consumer_on_one_partition_keeps_all_of_them",
    ),
    Mutant(
        name="consumers attach to what is being deleted",
        module="sluice.actors.dispatcher.operator.deletion",
        old="        if self._context.ports.clock.monotonic() < self._held_until:\n",
        new="        if False:\n",
        world=GATEWAY,
        test=f"{DELETING}::test_attach_during_a_deletion_keeps_no_partition",
    ),
]
