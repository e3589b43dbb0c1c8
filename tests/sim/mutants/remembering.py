"""Mutants of what somebody asks for once: it outlives whoever heard it."""

from __future__ import annotations

from tests.sim.mutants import Mutant

WORKERS, POOLS = "workers", "tests/actors/test_worker_pools.py"

REMEMBERING: list[Mutant] = [
    Mutant(
        name="a keeper that is started again forgets what operators want",
        module="actors.worker_pools",
        old="            if known is not None and known.start and known.start == request.start:\n",
        new="            if False:\n",
        world=WORKERS,
        test=f"{POOLS}::test_a_keeper_that_is_started_again_keeps_what_is_wanted",
    ),
    Mutant(
        name="who starts a pool anew gets what operators wanted of the one before",
        module="actors.worker_pools",
        old="            if known is not None and known.start and known.start == request.start:\n",
        new="            if known is not None:\n",
        world=WORKERS,
        test=f"{POOLS}::test_a_keeper_that_is_started_again_keeps_what_is_wanted",
    ),
    Mutant(
        name="a new controller takes the pools that it has not heard of for abandoned",
        module="actors.worker_pools",
        old="(self._begun if report is None else report.heard)\n",
        new="(-(1 << 40) if report is None else report.heard)\n",
        world=WORKERS,
        test=f"{POOLS}::test_a_new_controller_takes_no_pool_for_abandoned",
    ),
]
