"""Mutants of placement: which process serves which slot."""

from __future__ import annotations

from tests.sim.mutants import Mutant

PLACEMENT = "placement"

PLACING: list[Mutant] = [
    Mutant(
        name="a bookie that cannot start keeps its process",
        module="actors.placement.placer",
        old="            if alone:\n                self._end(process)\n                await",
        new="            if alone:\n                await",
        world=PLACEMENT,
        seed=2,
    ),
    Mutant(
        name="what fell back is not ended when its slot has moved",
        module="actors.placement.placer",
        old="                if self._placement.slot_for(kind, settings) == slot:",
        new="                if False:",
        world=PLACEMENT,
        seed=3,
    ),
    Mutant(
        name="a move that failed is forgotten",
        module="actors.placement.placer",
        old="            self._placement.falls_back(slot, host)\n",
        new="",
        world=PLACEMENT,
        test="tests/actors/placement/test_placer.py::test_a_move_that_failed_is_made_later",
    ),
    Mutant(
        name="a process that was found is given its slot's second one",
        module="actors.placement.placer",
        old="                    if placement.serving.get(slot) is not moves:\n",
        new="                    if False:\n",
        world=PLACEMENT,
        seed=149,
    ),
    Mutant(
        name="nobody looks for what another controller made",
        module="actors.placement.placer",
        old="            await self._ports.clock.sleep(self._times.back)\n",
        new="            await self._ports.clock.sleep(1 << 40)\n",
        world=PLACEMENT,
        seed=19,
    ),
    Mutant(
        name="processes that nobody needs wait for good",
        module="actors.placement.standby",
        old="        return self.waiting[-1] if len(self.waiting) > wanted else None",
        new="        return None",
        world=PLACEMENT,
        seed=7,
    ),
    Mutant(
        name="a broker falls back to a bookie's process",
        module="actors.placement.placement",
        old="        brokers = [each for each in self.serving.values() if is_broker(each.slot) and each.node in alive]",
        new="        brokers = [each for each in self.serving.values() if each.node in alive]",
        world=PLACEMENT,
        seed=3,
    ),
    Mutant(
        name="a lost process is thought to serve those that fell back to it",
        module="actors.placement.placement",
        old="        return sorted(served, key=lambda slot: slot == process.slot)",
        new="        return served[:1]",
        world=PLACEMENT,
        seed=13,
    ),
    Mutant(
        name="who asks for an owner waits as long as its start takes",
        module="actors.supervisor",
        old="            await self.ensure(wanted[0], CALLER_PATIENCE)\n",
        new="            await self.ensure(wanted[0])\n",
        world="owners",
        test="tests/actors/test_locating.py::test_who_asks_for_an_owner_that_takes_long_is_answered",
    ),
    Mutant(
        name="each who waited for a start that failed tries it again",
        module="actors.supervisor",
        old="            if start.error is not None:\n                raise start.error\n",
        new="",
        world="owners",
        test="tests/actors/test_locating.py::test_all_who_wait_for_one_start_learn_why_it_failed",
    ),
    Mutant(
        name="what was replaced while its machine was away goes on",
        module="actors.placement.placer",
        old="        replaced = self._placement.replaced(name, known)\n",
        new="        replaced = []\n",
        world="machines",
        test="tests/actors/placement/test_away.py::test_what_was_replaced_meanwhile_ends_when_it_is_back",
    ),
    Mutant(
        name="a candidate that hears nobody takes office",
        module="actors.candidate",
        old="            return  # this one may be cut off\n",
        new="            pass\n",
        world="candidates",
        test="tests/actors/test_candidate.py::test_one_that_hears_nobody_does_not_take_over",
    ),
    Mutant(
        name="two candidates on one machine confirm each other",
        module="actors.candidate",
        old="            if isinstance(answer, Leading) and answer.machine != self._machine:\n",
        new="            if isinstance(answer, Leading):\n",
        world="candidates",
        test="tests/actors/test_candidate.py::test_two_on_one_machine_do_not_confirm_each_other",
    ),
    Mutant(
        name="what was silent while the controller might not act is counted",
        module="actors.supervisor",
        old="            entry.misses = 0  # who may be the one that is cut off learns nothing of others\n",
        new="            pass\n",
        world=PLACEMENT,
        test="tests/actors/test_supervisor.py::test_who_may_not_act_learns_nothing",
    ),
]
