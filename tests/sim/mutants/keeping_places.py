"""Mutants of places that outlive their consumers: kept, handed over, damped."""

from __future__ import annotations

from tests.sim.mutants import Mutant

GRACE = "grace"
_UNITS = "tests/actors/dispatcher/test_grace.py"

KEEPING_PLACES: list[Mutant] = [
    Mutant(
        name="who handed its place over keeps the newcomer's from being kept",
        module="actors.dispatcher.leases",
        old="any(ring.of(other.number) is not None for other in namesakes)",
        new="any(ring is not None for other in namesakes)",
        world=GRACE,
        test=f"{_UNITS}::test_who_took_over_and_left_at_once_keeps_its_hashes",
    ),
    Mutant(
        name="the place of a consumer that left is not kept",
        module="actors.key_shared.hash_assignments",
        old="    keep = keep and core.keeps_places and",
        new="    keep = False and core.keeps_places and",
        world=GRACE,
        test=f"{_UNITS}::test_after_the_grace_its_hashes_move",
    ),
    Mutant(
        name="the ring is in no record",
        module="actors.dispatcher.grace",
        old='"rows": ring.layout()',
        new='"rows": []',
        world=GRACE,
        seed=4,
    ),
    Mutant(
        name="an announced newcomer gets a place like anybody",
        module="actors.dispatcher.grace",
        old="self._offered_place(request) or self._kept_place(request)",
        new="self._kept_place(request)",
        world=GRACE,
        seed=14,
    ),
    Mutant(
        name="an offer ends with whoever attaches at the place",
        module="actors.key_shared.hash_assignments",
        old='        member.offer_place("" if offered_to == name else offered_to)\n',
        new="",
        world=GRACE,
        test=f"{_UNITS}::test_an_offer_ends_when_another_one_asks_for_messages",
    ),
    Mutant(
        name="an offer outlives that another one asks for messages",
        module="actors.dispatcher.grace",
        old='                    self._core.ring.offer(place, "")\n',
        new="                    pass\n",
        world=GRACE,
        test=f"{_UNITS}::test_an_offer_ends_when_another_one_asks_for_messages",
    ),
    Mutant(
        name="one that handed its place over gets another",
        module="actors.dispatcher.grace",
        old="        if entry is None and request.hands_over_to:\n",
        new="        if False:\n",
        world=GRACE,
        test=f"{_UNITS}::test_a_hand_over_outlives_owners",
    ),
    Mutant(
        name="a newcomer does not ask whether its namesake lives",
        module="actors.dispatcher.grace",
        old="            if place.name == request.consumer and place.keeps_place and session",
        new="            if False and session",
        world=GRACE,
        test=f"{_UNITS}::test_a_newcomer_of_its_name_asks_whether_it_lives",
    ),
    Mutant(
        name="the second of a name keeps its place before it has asked for anything",
        module="actors.dispatcher.grace",
        old=" and not (living and entry == NEW))",
        new=")",
        world=GRACE,
        test=f"{_UNITS}::test_the_second_of_a_name_that_asked_for_nothing_is_gone",
    ),
    Mutant(
        name="the second of a name keeps no place",
        module="actors.dispatcher.grace",
        old="                place.keep_place()\n",
        new="                pass\n",
        world=GRACE,
        test=f"{_UNITS}::test_the_second_of_a_name_that_asked_for_messages_is_kept",
    ),
    Mutant(
        name="the grace begins while the consumer may be alive",
        module="actors.dispatcher.grace",
        old="        if self._membership.awaits(place.base):\n            return\n",
        new="",
        world=GRACE,
        test=f"{_UNITS}::test_the_grace_begins_when_nobody_may_be_alive",
    ),
    Mutant(
        name="a seek takes the places",
        module="actors.key_shared.hash_assignments",
        old="        restore(new, layout(core), now=core.now)\n",
        new="        pass\n",
        world=GRACE,
        test=f"{_UNITS}::test_a_seek_takes_nobodys_place",
    ),
    Mutant(
        name="a kept place is kept for ever",
        module="actors.dispatcher.grace",
        old="            elif kept.over <= now:\n",
        new="            elif False:\n",
        world=GRACE,
        test=f"{_UNITS}::test_after_the_grace_its_hashes_move",
    ),
    Mutant(
        name="who comes and goes gets hashes at once",
        module="actors.dispatcher.grace",
        old="        return JoinAs(unassigned=True) if damped else NEW\n",
        new="        return NEW\n",
        world=GRACE,
        test=f"{_UNITS}::test_who_comes_and_goes_gets_hashes_later",
    ),
    Mutant(
        name="a new owner forgets who comes and goes",
        module="actors.dispatcher.grace",
        old='"flaps": self.damping.rows()',
        new='"flaps": []',
        world=GRACE,
        test=f"{_UNITS}::test_who_comes_and_goes_gets_hashes_later",
    ),
    Mutant(
        name="a copy of an attach is answered before the place is durable",
        module="actors.dispatcher.consumers",
        old="        if self._grace.keeps_places:  # copies wait too: the first answer counts\n            await",
        new="            if self._grace.keeps_places:\n                await",
        world=GRACE,
        test=f"{_UNITS}::test_a_copy_of_an_attach_waits_for_its_place_too",
    ),
]
