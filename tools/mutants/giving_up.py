"""Mutants of what is cancelled, interrupted or abandoned: waits, handlers, and what is being opened or closed."""

from __future__ import annotations

from tools.mutants import Mutant

QUEUE = "tests/cluster/on_ray/test_keyed_queue.py"
LOOP = "tests/cluster/base/test_loop.py"
BROKER = "broker"

GIVING_UP: list[Mutant] = [
    Mutant(
        name="what is cancelled in a handler ends its worker",
        module="sluice.cluster.workers.handler_worker",
        old="        if task is None or task.cancelling():\n",
        new="        if task is not None:\n",
        world="workers",
        test="tests/cluster/workers/test_pool.py::test_cancellation_in_a_handler_fails_its_message",
    ),
    Mutant(
        name="a queue whose flush fails keeps its reader",
        module="sluice.cluster.on_ray.keyed_queue",
        old="        with contextlib.ExitStack() as closing:\n            if self.owned:\n",
        new="        if self.producer is not None:\n"
        "            self.producer.close()\n"
        "        with contextlib.ExitStack() as closing:\n"
        "            if self.owned:\n",
        world=BROKER,
        test=f"{QUEUE}::test_a_reader_leaves_though_a_flush_fails",
    ),
    Mutant(
        name="a reader is opened behind the close of its queue",
        module="sluice.cluster.on_ray.keyed_queue",
        old="            self._check_open()\n            if connection.consumer is None:\n",
        new="            if connection.consumer is None:\n",
        world=BROKER,
        test=f"{QUEUE}::test_a_reader_that_comes_after_the_close_is_refused",
    ),
    Mutant(
        name="a client whose end was interrupted counts as closed",
        module="sluice.cluster.client.client",
        old="            self._closed = False\n            raise\n",
        new="            raise\n",
        world=BROKER,
        test="tests/cluster/test_given_up.py::test_interrupted_end_of_a_client_can_be_repeated",
    ),
    Mutant(
        name="who has closed asks for payloads that nobody can read",
        module="sluice.actors.consumer.payload_fetcher",
        old="        self._fetching.end()\n",
        new="",
        world=BROKER,
        test="tests/actors/consumer/test_partition.py::test_closed_consumer_asks_for_no_payload_any_more",
    ),
    Mutant(
        name="a reader that has closed reads on what nobody can read",
        module="sluice.actors.pulsar.conversation.consuming.wire_reader",
        old="            reading.end()\n",
        new="            pass\n",
        world="gateway",
        test="tests/actors/pulsar/conversation/consuming/test_readers.py::test_a_reader_that_closed_asks_for_nothing",
    ),
    Mutant(
        name="who unsubscribes in vain waits for messages for ever",
        module="sluice.actors.pulsar.conversation.commands",
        old='                self._session.spawn(self._come_back(consumer), "unsubscribe")\n',
        new="",
        world="gateway",
        test="tests/actors/pulsar/test_sent_away.py::test_failed_unsubscribe_tells_client_to_come_back",
    ),
    Mutant(
        name="who waits while the client is closed is not told so",
        module="sluice.cluster.base.loop",
        old="        except CancelledError:\n            raise Fenced(CLOSED) from None\n",
        new="",
        world=BROKER,
        test=f"{LOOP}::test_a_waiting_caller_learns_that_the_loop_ends",
    ),
    Mutant(
        name="an ending loop takes work that nobody carries out",
        module="sluice.cluster.base.loop",
        old="                if self._ended:\n",
        new="                if self._ended and self.loop.is_closed():\n",
        world=BROKER,
        test=f"{LOOP}::test_a_question_to_an_ending_loop_does_not_wait_for_ever",
    ),
]
