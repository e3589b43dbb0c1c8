"""Mutants of what consumers hold while owners, settings and sessions change."""

from __future__ import annotations

from tools.mutants import Mutant

BROKER = "broker"

_FINISHED = "tests/actors/dispatcher/delivery/test_dispatch_loop.py::test_message_done_by_another_consumer_is_not_sent"

HOLDING: list[Mutant] = [
    Mutant(
        name="what waits for a poll is sent though another consumer has finished it",
        module="sluice.actors.dispatcher.delivery.dispatch_loop",
        old="            self._leave_out()\n",
        new="            pass\n",
        world=BROKER,
        test=_FINISHED,
    ),
    Mutant(
        name="what was not sent takes room",
        module="sluice.actors.dispatcher.delivery.dispatch_loop",
        old="            self._core.never_arrived(session.number, left)\n",
        new="            assert left >= 0\n",
        world=BROKER,
        test=_FINISHED,
    ),
    Mutant(
        name="what is done comes back with its holder",
        module="sluice.actors.dispatcher.delivery.consumers",
        old="                finished=holding[self._cursor.is_acknowledged(holding)],\n",
        new="",
        world=BROKER,
        test="tests/actors/dispatcher/test_rejoin.py::test_done_message_does_not_return_with_its_holder",
    ),
    Mutant(
        name="a refusal is taken for the hashes of what is held",
        module="sluice.actors.dispatcher.delivery.leases",
        old="            await wait.pause()\n",
        new="            break\n",
        world=BROKER,
        test="tests/actors/dispatcher/test_rejoin.py::test_refusal_by_the_topic_keeps_dispatch_closed",
    ),
    Mutant(
        name="the end of a lease is told when the owner has been found",
        module="sluice.actors.consumer.session",
        old="                on_over()\n",
        new="                self._held = False\n",
        world=BROKER,
        test="tests/actors/consumer/test_session.py::test_the_end_is_told_while_the_owner_is_looked_for",
    ),
    Mutant(
        name="a session of a life that ended stays open",
        module="sluice.actors.consumer.partition",
        old="                    await self._leaving.give_up(self._address, reply.session)\n",
        new="                    pass\n",
        world=BROKER,
        test="tests/actors/consumer/test_session.py::test_a_session_of_a_life_that_ended_is_given_up",
    ),
    Mutant(
        name="what is said ends with whoever waits for it",
        module="sluice.actors.runtime.waiting",
        old="    ports.spawn(carried(), name)\n",
        new="    await carried()\n",
        world=BROKER,
        test="tests/actors/consumer/test_giving_up.py",
    ),
    Mutant(
        name="a refused poll takes what it took along with it",
        module="sluice.actors.consumer.partition",
        old="                reply = Unknown(str(error), gone=True)\n",
        new="                return\n",
        world=BROKER,
        test="tests/actors/consumer/test_partition.py",
    ),
    Mutant(
        name="a consumer leaves only as long as somebody waits for that",
        module="sluice.actors.consumer.partition",
        old="        await self.begin_close(for_good=for_good)\n",
        new="        await self._close(SharedFuture(), for_good=for_good)\n",
        world=BROKER,
        test="tests/actors/consumer/test_giving_up.py::test_closing_consumer_leaves_although_caller_gives_up",
    ),
    Mutant(
        name="what was on its way arrives although it was given back",
        module="sluice.actors.consumer.partition",
        old="                if reply.consumer_epoch >= self._consumer_epoch:",
        new="                if True:",
        world=BROKER,
        test="tests/actors/consumer/test_redelivering.py",
    ),
    Mutant(
        name="what nobody has seen counts as redelivered",
        module="sluice.actors.key_shared.state.nacks",
        old="    rows = rows[np.isin(window.position[rows], seen)]\n",
        new="",
        world=BROKER,
        test="tests/actors/consumer/test_redelivering.py",
    ),
    Mutant(
        name="who does not answer loses its messages with its place",
        module="sluice.actors.dispatcher.delivery.leases",
        old="        self._sessions.close(session)\n        member = ",
        new='        self.end(session, "it does not answer", dismissed=True)\n        member = ',
        world=BROKER,
        test="tests/actors/dispatcher/delivery/test_consumers.py",
    ),
    Mutant(
        name="an owner trusts itself for a lease longer than its record says",
        module="sluice.actors.dispatcher.delivery.membership",
        old="        lease = self.lease_ms + self.trust_ms\n",
        new="        lease = self.lease_ms\n",
        world=BROKER,
        test="tests/actors/dispatcher/delivery/test_membership.py",
    ),
    Mutant(
        name="consumers are numbered anew after a seek",
        module="sluice.actors.key_shared.state.dispatch_state",
        old="first_consumer=self.members.next_number, ",
        new="",
        world=BROKER,
        test="tests/actors/key_shared/test_reset.py",
    ),
    Mutant(
        name="a late copy of a first request is let in",
        module="sluice.actors.dispatcher.delivery.membership",
        old="        if incarnation in self._ended:\n            return True\n",
        new="",
        world=BROKER,
        test="tests/actors/dispatcher/delivery/test_membership.py",
    ),
    Mutant(
        name="what the dead letter topic has frees no keys",
        module="sluice.actors.dispatcher.delivery.ack_handler",
        old="        self._advance()\n        self._wakeups.route.set()\n",
        new="        self._advance()\n",
        world=BROKER,
        test="tests/actors/dispatcher/delivery/test_ack_handler.py",
    ),
    Mutant(
        name="settings that were asked for are in force at once",
        module="sluice.actors.dispatcher.delivery.subscription",
        old="        self.next_settings = settings\n",
        new="        self.settings = self.next_settings = settings\n",
        world=BROKER,
        test="tests/actors/dispatcher/delivery/test_subscription.py",
    ),
]
