"""Mutants of ordered negative acknowledgement: what is given back keeps its place."""

from __future__ import annotations

from tools.mutants import Mutant

NACK_ORDER = "nack_order"
_UNITS = "tests/actors/key_shared/state/test_revocation.py"

KEEPING_ORDER: list[Mutant] = [
    Mutant(
        name="what a consumer is to give back is not told",
        module="sluice.actors.key_shared.state.members",
        old="        self.revoked = np.union1d(self.revoked, positions)\n        self.heard[self.number] = None\n",
        new="        self.revoked = np.union1d(self.revoked, positions)\n",
        world=NACK_ORDER,
        test=f"{_UNITS}::test_consumer_asked_to_give_back_is_listed_as_untold",
    ),
    Mutant(
        name="what consumers hold behind a message that came back is not asked back",
        module="sluice.actors.key_shared.state.nacks",
        old="    revoke(core)\n",
        new="",
        world=NACK_ORDER,
        seed=0,
    ),
    Mutant(
        name="a key does not wait for what was asked back",
        module="sluice.actors.key_shared.state.dispatch_pass",
        old="    if core.tables.revoked_messages:\n",
        new="    if False:\n",
        world=NACK_ORDER,
        seed=20,
    ),
    Mutant(
        name="what comes back waits without its place",
        module="sluice.actors.key_shared.state.nacks",
        old="UNORDERED if counted and not core.nack_ordered else REPLAY",
        new="UNORDERED if counted else REPLAY",
        world=NACK_ORDER,
        seed=5,
    ),
    Mutant(
        name="a key does not wait out the delay of what came back",
        module="sluice.actors.key_shared.state.dispatch_state",
        old="(HELD, WAITING) if self.nack_ordered else (HELD,)",
        new="(HELD,)",
        world=NACK_ORDER,
        seed=0,
    ),
    Mutant(
        name="what came back to an earlier owner overtakes what is read again",
        module="sluice.actors.key_shared.state.nacks",
        old="        core.move_waiting(fresh, FRESH, REPLAY)\n",
        new="",
        world=NACK_ORDER,
        seed=23,
    ),
    Mutant(
        name="what comes back overtakes what was not read yet",
        module="sluice.actors.key_shared.state.window",
        old="self.position[rows] > max(self.last_read, self.reached)",
        new="self.position[rows] < 0",
        world=NACK_ORDER,
        test=f"{_UNITS}::test_returned_message_waits_for_earlier_unread_ones",
    ),
    Mutant(
        name="what a dead owner would have asked back is shown",
        module="sluice.actors.consumer.revocations",
        old="backs = [*chain.from_iterable(self._awaited.values()), *self._hand_backs.unconfirmed()]",
        new="backs = self._hand_backs.unconfirmed()",
        world=NACK_ORDER,
        test="tests/actors/consumer/test_revocations.py::test_a_revocation_that_never_came_is_made_up_for",
    ),
    Mutant(
        name="a consumer keeps what it was asked for",
        module="sluice.actors.consumer.revocations",
        old="        if not len(positions):\n            return None, 0\n",
        new="        if True:\n            return None, 0\n",
        world=NACK_ORDER,
        seed=0,
    ),
    Mutant(
        name="what was asked back is shown all the same",
        module="sluice.actors.consumer.payload_fetcher",
        old="            self._parts = [\n",
        new="            _ = [\n",
        world=NACK_ORDER,
        seed=20,
    ),
    Mutant(
        name="the mark of what was seen too early is in no record",
        module="sluice.actors.key_shared.state.nacks",
        old="        wanted |= ((window.flags[part] & OVERTOOK) != 0) & (state != DONE)\n",
        new="",
        world=NACK_ORDER,
        test=f"{_UNITS}::test_the_next_owner_keeps_the_place_and_the_mark",
    ),
]
