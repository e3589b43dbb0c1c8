"""Mutants of what is cancelled, interrupted or abandoned: waits, handlers, and what is being opened or closed."""

from __future__ import annotations

from tests.sim.mutants import Mutant

GIVING_UP: list[Mutant] = [
    Mutant(
        name="what is cancelled in a handler ends its worker",
        module="cluster.workers.handler_worker",
        old="        if task is None or task.cancelling():\n",
        new="        if task is not None:\n",
        world="workers",
        test="tests/cluster/workers/test_pool.py::test_what_is_cancelled_in_a_handler_fails_its_message",
    ),
]
