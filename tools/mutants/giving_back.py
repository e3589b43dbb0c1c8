"""Mutants of redelivery delays and counts, in one owner and from one to the next."""

from __future__ import annotations

from tools.mutants import Mutant

REDELIVERIES = "redeliveries"
_UNITS = "tests/actors/key_shared/state/test_nacks.py"

GIVING_BACK: list[Mutant] = [
    Mutant(
        name="delays and counts are in no record",
        module="sluice.actors.dispatcher.takeover",
        old="        RecordedRedeliveries(ports, core, clock),\n",
        new="",
        world=REDELIVERIES,
        seed=0,
    ),
    Mutant(
        name="a hand-back is answered before it is durable",
        module="sluice.actors.dispatcher.delivery.ack_handler",
        old="        await self._store.barrier()\n        return GivenBack(revocation=revocation)\n",
        new="        return GivenBack(revocation=revocation)\n",
        world=REDELIVERIES,
        seed=0,
    ),
    Mutant(
        name="a hand-back that is said twice counts twice",
        module="sluice.actors.key_shared.state.nacks",
        old="    if seen is None:\n        more =",
        new="    if True:\n        more =",
        world=REDELIVERIES,
        test=f"{_UNITS}::test_said_again_it_counts_once",
    ),
    Mutant(
        name="what is given back before it is read again comes at once",
        module="sluice.actors.key_shared.state.nacks",
        old="    _note(core, unread, counted, until, _of(seen, positions, unread), np.isin(unread, overtook))\n",
        new="",
        world=REDELIVERIES,
        seed=0,
    ),
    Mutant(
        name="an older delay wakes what waits longer",
        module="sluice.actors.key_shared.state.nacks",
        old="        over = window.since[rows] <= now\n",
        new="        over = window.since[rows] >= 0\n",
        world=REDELIVERIES,
        test=f"{_UNITS}::test_an_earlier_delay_does_not_end_a_later_one",
    ),
    Mutant(
        name="what is not read yet keeps a time that is no more",
        module="sluice.actors.key_shared.state.nacks",
        old="    core.carried.shift(by)\n",
        new="",
        world=REDELIVERIES,
        test=f"{_UNITS}::test_remaining_delay_stays_when_the_clock_is_set",
    ),
    Mutant(
        name="a delay goes by a clock that was set",
        module="sluice.actors.dispatcher.delivery.redelivery_clock",
        old="            self._core.clock_was_set(by)\n",
        new="",
        world=REDELIVERIES,
        test="tests/actors/dispatcher/delivery/test_redelivery.py::test_a_delay_is_as_long_though_the_clock_is_wrong",
    ),
    Mutant(
        name="an hour too much is passed on to the next owner",
        module="sluice.actors.dispatcher.delivery.redelivery_clock",
        old="        if self._written:\n",
        new="        if self._written < 0:\n",
        world=REDELIVERIES,
        test="tests/actors/dispatcher/delivery/test_redelivery.py::test_the_next_owner_waits_no_longer_than_was_left",
    ),
    Mutant(
        name="what was delivered by an earlier owner counts as a first delivery",
        module="sluice.actors.key_shared.state.nacks",
        old="    window.flags[idle] |= DELIVERED  # by an owner before this one\n",
        new="",
        world=REDELIVERIES,
        test=f"{_UNITS}::test_repeated_nack_proves_an_earlier_delivery",
    ),
]
