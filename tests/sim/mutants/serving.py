"""Mutants of the gateway: ids, acknowledgements, permits, deduplication, redelivery, connections that end."""

from __future__ import annotations

from tests.sim.mutants import Mutant

GATEWAY = "gateway"
ACCESS = "tests/actors/pulsar/test_access_modes.py"

NOT_DURABLE = "tests/actors/pulsar/test_not_durable.py"
WHOLE = "tests/actors/pulsar/test_whole_batches.py"

SERVING: list[Mutant] = [
    Mutant(
        name="a part of a subscription goes while the rest is in use",
        module="actors.unused_subscriptions",
        old="            if isinstance(reply, Unknown) or not reply.unused:",
        new="            if False:",
        world=GATEWAY,
        test=f"{NOT_DURABLE}::test_stays_while_one_partition_is_in_use",
    ),
    Mutant(
        name="a durable subscription becomes one that is not",
        module="actors.dispatcher.configuration",
        old="        if not settings.durable and (self._state.next_settings or now).durable:",
        new="        if False:",
        world=GATEWAY,
        test=f"{NOT_DURABLE}::test_a_durable_one_stays_durable",
    ),
    Mutant(
        name="a batch for which there is no room is sent in parts",
        module="actors.pulsar.whole",
        old="        if not (self._working or self._begun or part.follows):",
        new="        if True:",
        world=GATEWAY,
        test=f"{WHOLE}::test_a_batch_for_which_there_is_no_room_goes_whole",
    ),
    Mutant(
        name="what is kept back of a batch is asked for once more",
        module="actors.pulsar.consuming",
        old="        self._want(min(self.permits, MOST_GRANTED) - here)",
        new="        self._want(min(self.permits, MOST_GRANTED))",
        world=GATEWAY,
        test=f"{WHOLE}::test_a_batch_for_which_there_is_no_room_goes_whole",
    ),
    Mutant(
        name="an id stands for all of a batch that was sent in parts",
        module="actors.pulsar.consuming",
        old="            if sure or pieces.begins(self._key, at) or self._apart or ",
        new="            if sure or pieces.begins(self._key, at) or ",
        world=GATEWAY,
        test=f"{WHOLE}::test_a_part_whose_rest_waits_stands_for_nothing_else",
    ),
    Mutant(
        name="that batches were sent in parts dies with the owner",
        module="actors.dispatcher.state",
        old='            "apart": self.apart,\n',
        new="",
        world=GATEWAY,
        test=f"{WHOLE}::test_a_part_whose_rest_waits_stands_for_nothing_else",
    ),
    Mutant(
        name="what is done of a batch is waited for",
        module="actors.dispatcher.client_batches",
        old="positions=positions[~self._state.cursor.is_acknowledged(positions)]",
        new="positions=positions",
        world=GATEWAY,
        test=f"{WHOLE}::test_what_is_done_of_a_batch_is_not_waited_for",
    ),
    Mutant(
        name="a batch is cut where its counts differ",
        module="actors.pulsar.deliveries",
        old="    starts = first_rows(part, counted=not whole)",
        new="    starts = first_rows(part)",
        world=GATEWAY,
        test=f"{WHOLE}::test_a_batch_of_two_counts_is_one",
    ),
    Mutant(
        name="all sends of a run have the first one's id",
        module="actors.pulsar.producing",
        old="                    first += send.rows\n",
        new="",
        world=GATEWAY,
        seed=2,
    ),
    Mutant(
        name="a part of a batch acknowledges all of it",
        module="actors.pulsar.pieces",
        old="    return np.flatnonzero(~open_)",
        new="    return np.arange(count)",
        world=GATEWAY,
        seed=1,
    ),
    Mutant(
        name="an id that is over stands for whatever follows",
        module="actors.pulsar.pieces",
        old="(max(len(open_rows(ack_set)), 1), False)",
        new="(8, False)",
        world=GATEWAY,
        test="tests/actors/pulsar/test_pieces.py",
    ),
    Mutant(
        name="a receipt for what is not known to be acknowledged",
        module="actors.pulsar.connection",
        old="                if not await consumer.stand_alone(unsure):",
        new="                if False:",
        world=GATEWAY,
        test="tests/actors/pulsar/test_several_gateways.py::test_no_receipt_for_a_batch_that_was_sent_elsewhere",
    ),
    Mutant(
        name="a permit more than was given",
        module="actors.pulsar.consuming",
        old="            self._part.grant(more)",
        new="            self._part.grant(more + 1)",
        world=GATEWAY,
        seed=0,
    ),
    Mutant(
        name="the next number counts as stored before",
        module="actors.pulsar.producing",
        old="        send.settled = number <= self._last\n",
        new="        send.settled = number <= self._last + 1\n",
        world=GATEWAY,
        seed=0,
    ),
    Mutant(
        name="a receipt before the message is stored",
        module="actors.pulsar.producing",
        old="        while self._waiting and self._waiting[0].settled:",
        new="        while self._waiting:",
        world=GATEWAY,
        seed=3,
    ),
    Mutant(
        name="a client that went keeps what it held",
        module="actors.pulsar.session",
        old='            self.remove_consumer(consumer)\n            self.begin(self.leave(consumer), "close")\n',
        new="            self.remove_consumer(consumer)\n",
        world=GATEWAY,
        seed=6,
    ),
    Mutant(
        name="the epoch of a topic dies with its owner",
        module="actors.topic.admission",
        old="        return msgspec.structs.replace(record, exclusivity=self._access.durable)",
        new="        return record",
        world=GATEWAY,
        test=ACCESS,
    ),
    Mutant(
        name="who comes back after somebody else has the topic to itself again",
        module="actors.topic.access",
        old="request.topic_epoch < self.epoch:",
        new="False:",
        world=GATEWAY,
        test=ACCESS,
    ),
    Mutant(
        name="a producer that gave way writes on",
        module="actors.topic.admission",
        old="        self._producers.end_others(request.producer)\n",
        new="",
        world=GATEWAY,
        test=ACCESS,
    ),
    Mutant(
        name="what TLS reads is a copy of the buffer",
        module="cluster.pulsar.listener",
        old="        return self._buffer\n",
        new="        return memoryview(bytearray(self._buffer))\n",
        world=GATEWAY,
        test="tests/cluster/pulsar/test_tls.py::test_what_is_read_in_slices_lies_in_one_buffer",
    ),
]
