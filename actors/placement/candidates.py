"""Sees to it that on enough machines there is a process that can be the controller (actors.controller.candidate)."""

from __future__ import annotations

from sluice.actors.placement.placement import Placement
from sluice.actors.ports import Ports, Processes, Unknown
from sluice.storage.errors import Unavailable

CANDIDATE_HOST = "controller-"
"""How the names of these processes begin, but for the first one's."""


async def keep_candidates(ports: Ports, processes: Processes, placement: Placement) -> None:
    """For ever."""
    while True:
        try:
            await _add_candidate(ports, processes, placement)
        except Unavailable as error:
            ports.log("candidates_wait", error=str(error))
        await ports.clock.sleep(placement.times.candidates)


async def _add_candidate(ports: Ports, processes: Processes, placement: Placement) -> None:
    """Make one more on a machine that has none, if there are too few. Raises Unavailable."""
    nodes = await processes.nodes()
    machines = {node.id: node.address for node in [*nodes, *processes.away()]}
    taken: dict[str, None] = {}
    for name in await processes.candidates():
        known = await processes.introduce(name, placement.times.serve)
        if isinstance(known, Unknown) and not known.gone:
            return  # it is not known where it is
        if not isinstance(known, Unknown):
            taken[machines.get(known.node, "")] = None
    free = [node for node in nodes if node.address not in taken]
    if free and len(taken) < placement.candidates:
        name = f"{CANDIDATE_HOST}{ports.rng.randrange(1 << 32):08x}"
        ports.log("candidate_starts", host=name, node=free[0].id)
        await processes.make(name, free[0].id, placement.times.start)
