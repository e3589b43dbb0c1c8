"""Mutants of what several threads and tasks of a program share of the client, and several clients of a gateway."""

from __future__ import annotations

from tools.mutants import Mutant

THREADS = "tests/cluster/test_threads.py"
PARTITION = "tests/actors/consumer/test_partition.py"
GIVEN_UP = "tests/cluster/test_given_up.py::test_a_subscribe_in_vain_leaves_no_consumer"
BROKER = "broker"
GATEWAY = "gateway"

SHARING_CLIENTS: list[Mutant] = [
    Mutant(
        name="whoever floods is read without end",
        module="sluice.actors.pulsar.conversation.limits.intake",
        old="busy = self._requests >= MOST_REQUESTS or self._bytes >= REQUEST_BYTES or ",
        new="busy = ",
        world=GATEWAY,
        seed=1,
    ),
    Mutant(
        name="two threads may receive at once",
        module="sluice.cluster.client.receiver_queue",
        old="            message = self._next_message()\n        if message is None:\n"
        "            message = self._wait_for(",
        new="            pass\n        message = self._next_message()\n        if message is None:\n"
        "            message = self._wait_for(",
        world=BROKER,
        test=THREADS,
    ),
    Mutant(
        name="one thread is woken for many messages",
        module="sluice.cluster.client.receiver_queue",
        old="        self._arrived.notify(count)\n",
        new="        self._arrived.notify()\n",
        world=BROKER,
        test=THREADS,
    ),
    Mutant(
        name="a wait that is cancelled takes the wake-up with it",
        module="sluice.cluster.client.receiver_queue",
        old="                        self._wake(1)\n",
        new="                        pass\n",
        world=BROKER,
        test=f"{THREADS}::test_task_cancelled_when_woken_wakes_another",
    ),
    Mutant(
        name="who subscribes in vain stays",
        module="sluice.actors.consumer.partition",
        old="            self._ports.spawn(self._close(self._closed",
        new="            0 and self._ports.spawn(self._close(self._closed",
        world=BROKER,
        test=GIVEN_UP,
    ),
    Mutant(
        name="who has left goes on saying what nobody confirms",
        module="sluice.actors.consumer.partition",
        old="        self.session, lost = 0, self.acknowledgements.void()\n",
        new="        lost = self.acknowledgements.void()\n",
        world="grace",
        test=f"{PARTITION}::test_closing_twice_leaves_once_and_does_not_wait",
    ),
    Mutant(
        name="an acknowledgement of nothing takes a turn",
        module="sluice.actors.consumer.partition",
        old="        if not len(positions):\n            return  # a turn",
        new="        if positions is None:\n            return  # a turn",
        world="relay",
        seed=24,
    ),
    Mutant(
        name="what is closed before it is open is opened all the same",
        module="sluice.actors.pulsar.conversation.gateway.openings",
        old="        if not any(one is asked for",
        new="        if asked is None and not any(one is asked for",
        world=GATEWAY,
        test="tests/actors/pulsar/test_at_once.py",
    ),
    Mutant(
        name="who is being closed counts as there",
        module="sluice.actors.pulsar.conversation.gateway.openings",
        old="in self._closing:\n            raise",
        new="in self._wanted:\n            raise",
        world=GATEWAY,
        seed=64000227,
    ),
    Mutant(
        name="who gives up opening leaves a session behind",
        module="sluice.actors.consumer.partition",
        old='        await carry_through(self._ports, partial(self._attach, first=True), f"attach-{self.partition}")\n',
        new="        await self._attach(first=True)\n",
        world=BROKER,
        test="tests/actors/consumer/test_giving_up.py::test_opening_given_up_leaves_its_session",
    ),
    Mutant(
        name="a refused message refuses what was gathered with it",
        module="sluice.actors.producer.producer",
        old="                if refused and (parts := halves(group)):\n",
        new="                if not refused and (parts := halves(group)):\n",
        world=BROKER,
        test="tests/actors/producer/test_refused.py",
    ),
    Mutant(
        name="a batch is cut by its messages only",
        module="sluice.actors.producer.batches",
        old="        elif count > 1 and piece.rows.nbytes + count * COLUMN_BYTES > BODY_BYTES:\n",
        new="        elif count > MAX_RUN_MESSAGES:\n",
        world=BROKER,
        test="tests/actors/producer/test_refused.py",
    ),
]
