"""Mutants of what idle parts share: heartbeats, the proof of a process's ownership, and what is closed."""

from __future__ import annotations

from tests.sim.mutants import Mutant

OWNERS, BROKER = "owners", "broker"
HEARTBEATS, PROOF = "tests/actors/consumer/test_heartbeats.py", "tests/actors/test_ownership_proof.py"
ROSTER = "tests/actors/consumer/test_roster.py"
CLOSED = "tests/actors/test_idle_owners.py"
SHARED = "tests/actors/test_shared_timers.py"

IDLING: list[Mutant] = [
    Mutant(
        name="a heartbeat is believed after the connection was replaced",
        module="actors.consumer.heartbeats",
        old="        if self.owner() == (owner, session):\n",
        new="        if True:\n",
        world=OWNERS,
        test=f"{HEARTBEATS}::test_a_heartbeat_counts_for_the_session_it_was_sent_for",
    ),
    Mutant(
        name="a heartbeat that was sent before a freeze renews the lease",
        module="actors.consumer.heartbeats",
        old="            self.lease.renew(sent)\n",
        new="            self.lease.renew(self._ports.clock.monotonic())\n",
        world=OWNERS,
        test=f"{HEARTBEATS}::test_a_lease_is_renewed_from_when_the_heartbeat_was_sent",
    ),
    Mutant(
        name="a new session trusts in heartbeats that are not answered any more",
        module="actors.consumer.heartbeats",
        old="            self._heard.pop(process, None)\n            group.missed()\n",
        new="            group.missed()\n",
        world=OWNERS,
        test=f"{HEARTBEATS}::test_a_new_session_trusts_in_heartbeats_that_are_answered",
    ),
    Mutant(
        name="an owner that is not certain renews by heartbeat",
        module="actors.dispatcher.leases",
        old="            self._store.look_if_idle()\n            return Beat.REFUSED\n",
        new="            self._store.look_if_idle()\n",
        world=OWNERS,
        test=f"{HEARTBEATS}::test_an_owner_that_is_not_certain_renews_nothing",
    ),
    Mutant(
        name="a refused heartbeat renews",
        module="actors.consumer.heartbeats",
        old="            if place not in not_renewed:\n",
        new="            if True:\n",
        world=OWNERS,
        test=f"{HEARTBEATS}::test_places_that_were_refused_are_not_renewed",
    ),
    Mutant(
        name="a lost answer to a poll is missed when the poll ends",
        module="actors.dispatcher.sessions",
        old="        return turn == self.turn and self.answered is None and self._polls > 0\n",
        new="        return True\n",
        world=OWNERS,
        test=f"{HEARTBEATS}::test_a_lost_answer_is_missed_by_the_next_heartbeat",
    ),
    Mutant(
        name="a roster renews a consumer that has another session by now",
        module="actors.consumer.roster",
        old="            if poll.current == waiting:\n",
        new="            if True:\n",
        world=OWNERS,
        test=f"{ROSTER}::test_an_answer_that_comes_late_renews_no_other_session",
    ),
    Mutant(
        name="a roster keeps a consumer that polls anew",
        module="actors.consumer.roster",
        old="            stays = poll == now > 0 and (keeps is None or keeps(member))\n",
        new="            stays = True\n",
        world=OWNERS,
        test=f"{ROSTER}::test_who_polls_again_is_struck_off_and_the_others_stay",
    ),
    Mutant(
        name="a roster renews who is refused",
        module="actors.consumer.heartbeats",
        old="            member, _ = self._asked(request, place)\n            member.missed()\n",
        new="            pass\n",
        world=OWNERS,
        test=f"{ROSTER}::test_a_session_that_ended_is_refused_in_a_roster",
    ),
    Mutant(
        name="a roster that the owners' process forgot counts as renewed",
        module="actors.consumer.heartbeats",
        old="            if roster.number not in answer.unknown:\n",
        new="            if True:\n",
        world=OWNERS,
        test=f"{ROSTER}::test_a_process_that_forgot_the_roster_is_told_the_names",
    ),
    Mutant(
        name="a new owner gives no notice",
        module="actors.fenced_record",
        old="            for process in self._untold:\n",
        new="            for process in ():\n",
        world=OWNERS,
        test=PROOF,
    ),
    Mutant(
        name="the record does not say whom nobody told",
        module="actors.fenced_record",
        old='            untold = {"untold": self._untold} if self._untold else {}\n',
        new="            untold: dict[str, Any] = {}\n",
        world=OWNERS,
        test=f"{PROOF}::test_the_notice_of_an_owner_that_died_is_given_by_the_next",
    ),
    Mutant(
        name="a proof of the process holds whatever notice it found",
        module="actors.ownership_proof",
        old="return self.proven if notice == self.notice else self._before.get(notice, 0)",
        new="return self.proven if notice else 0",
        world=OWNERS,
        test=f"{PROOF}::test_a_replaced_owner_is_not_proved_by_its_neighbours",
    ),
    Mutant(
        name="a closed topic forgets a delayed message",
        module="actors.idle_owners",
        old="            if reply.closed and reply.wake_at:",
        new="            if False:",
        world=BROKER,
        test=f"{CLOSED}::test_a_due_message_wakes_its_subscription",
    ),
    Mutant(
        name="a new controller forgets what is due in closed topics",
        module="actors.idle_owners",
        old="        if due and self._supervisor.find(",
        new="        if False and self._supervisor.find(",
        world=BROKER,
        test=f"{CLOSED}::test_a_new_controller_learns_from_the_manifests_what_is_due",
    ),
    Mutant(
        name="a deleted subscription is woken and made anew",
        module="actors.idle_owners",
        old="        if there and not self._changes(topic):\n",
        new="        if True:\n",
        world=BROKER,
        test=f"{CLOSED}::test_a_deleted_subscription_is_not_woken",
    ),
    Mutant(
        name="a topic that is used is closed because it was idle once",
        module="actors.topic.topic",
        old="        return self.stopped is not None or self.idle_ms() < idle_ms\n",
        new="        return self.stopped is not None or self.used\n",
        world=BROKER,
        test=f"{CLOSED}::test_an_owner_that_was_used_since_its_ping_refuses_to_close",
    ),
    Mutant(
        name="a timer that others share rings late",
        module="actors.shared_timers",
        old="tick = (now + milliseconds) // TICK_MS\n",
        new="tick = (now + milliseconds) // TICK_MS + 1\n",
        world=OWNERS,
        test=f"{SHARED}::test_they_ring_up_to_a_tick_early_and_never_late",
    ),
    Mutant(
        name="who is asked early how much longer it waits is woken early",
        module="actors.signal",
        old="        elif (early := self._due - self._ports.clock.monotonic()) > 0:\n",
        new="        elif (early := 0) > 0:\n",
        world=OWNERS,
        test="tests/actors/test_signal.py::test_who_has_nothing_to_add_is_not_woken_early",
    ),
    Mutant(
        name="what became durable is confirmed to nobody",
        module="actors.dispatcher.sessions",
        old="            self._behind[self.number] = self\n",
        new="            pass\n",
        world=BROKER,
        test="tests/actors/dispatcher/test_sessions.py::test_who_has_turns_that_are_not_durable_is_known",
    ),
]
