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
        old="            await self._ports.clock.sleep(self._times.discover)\n",
        new="            await self._ports.clock.sleep(1 << 40)\n",
        world=PLACEMENT,
        seed=1,
    ),
    Mutant(
        name="processes that nobody needs wait for good",
        module="actors.placement.standby",
        old="        return self.waiting[-1] if len(self.waiting) > wanted else None",
        new="        return None",
        world=PLACEMENT,
        seed=16,
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
        old="if known is process]\n        for slot in slots:",
        new="if known is process][:1]\n        for slot in slots:",
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
]
