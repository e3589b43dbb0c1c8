"""Mutants of limits: rates, how long messages are kept, and what one answer by HTTP costs."""

from __future__ import annotations

from tools.mutants import Mutant

GATEWAY, OWNERS = "gateway", "owners"
LIMITS, RESPONSES = "tests/actors/pulsar/test_limits.py", "tests/cluster/http/test_responses.py"
CONSUMING = "tests/actors/pulsar/conversation/consuming"

LIMITING: list[Mutant] = [
    Mutant(
        name="who waits because of a rate waits although it was raised",
        module="sluice.actors.pulsar.conversation.limits.rates",
        old="        await clock.sleep(min(max(left, 0), CHECK_MS))\n",
        new="        await clock.sleep(max(left, 0))\n",
        world=GATEWAY,
        test=f"{LIMITS}::test_a_raised_dispatch_rate_holds_for_who_waits",
    ),
    Mutant(
        name="who changes a rate forgives what is owed",
        module="sluice.actors.pulsar.conversation.limits.rates",
        old="                bucket.take_over(before)\n",
        new="                pass\n",
        world=GATEWAY,
        test=f"{LIMITS}::test_debt_remains_under_another_rate",
    ),
    Mutant(
        name="an owner rests although what it knows of retention is old",
        module="sluice.actors.topic.background.maintenance",
        old="min(MOST_REST_MS, self._kept.fresh_for(), self._thresholds.fresh_for())",
        new="MOST_REST_MS",
        world=OWNERS,
        test="tests/actors/policies/test_retention.py::test_changed_retention_holds_within_a_minute",
    ),
    Mutant(
        name="a process that knows the size of the metadata never measures again",
        module="sluice.cluster.host.metadata_quota",
        old="if (began := time.monotonic()) >= self._until:",
        new="began = time.monotonic()\n            if not self._size:",
        world=OWNERS,
        test="tests/cluster/host/test_metadata_quota.py::test_a_removed_record_makes_room",
    ),
    Mutant(
        name="a request takes an answer that was begun before it came",
        module="sluice.cluster.http.responses",
        old="        del self._wanted[which]\n",
        new="",
        world=GATEWAY,
        test=f"{RESPONSES}::test_requests_that_wait_for_one_answer_share_it",
    ),
    Mutant(
        name="requests that wait for one answer make it one after the other",
        module="sluice.cluster.http.responses",
        old="                outcome = _like(answer)\n",
        new="",
        world=GATEWAY,
        test=f"{RESPONSES}::test_requests_that_wait_for_one_answer_share_it",
    ),
    Mutant(
        name="one answer asks all owners at once",
        module="sluice.cluster.admin.broker",
        old="asyncio.Semaphore(ASKED)",
        new="asyncio.Semaphore(10 * ASKED)",
        world=GATEWAY,
        test="tests/cluster/admin/test_broker.py::test_an_answer_of_all_owners_asks_few_at_once",
    ),
    Mutant(
        name="a change by HTTP counts until its client leaves",
        module="sluice.cluster.http.server",
        old="            if who is not None and not work.done():",
        new="            if False:",
        world=GATEWAY,
        test="tests/cluster/http/test_connections.py::test_a_change_counts_to_its_end_though_its_client_left",
    ),
    Mutant(
        name="what a reader gets again takes no room",
        module="sluice.actors.pulsar.conversation.consuming.wire_reader",
        old="        self._permits -= len(part)\n        self._callbacks.on_received(part)",
        new="        self._callbacks.on_received(part)",
        world=GATEWAY,
        test=f"{CONSUMING}/test_readers.py::test_messages_that_come_again_take_room_as_well",
    ),
    Mutant(
        name="what is left of a batch waits for an answer under every type",
        module="sluice.actors.pulsar.conversation.consuming.wire_consumer",
        old="        by_index = self._part.by_index and self.asked.settings.type in ONE_HAS_ALL\n",
        new="        by_index = self._part.by_index\n",
        world=GATEWAY,
        test=f"{CONSUMING}/test_subscription_types.py::test_the_rest_of_a_batch_comes_under_another_type",
    ),
]
