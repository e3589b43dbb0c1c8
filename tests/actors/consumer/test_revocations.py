"""A consumer takes some messages back by itself before it speaks to a new owner."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.actors.consumer.negative_acks import NegativeAcksTracker
from sluice.actors.consumer.payload import Payloads
from sluice.actors.consumer.payload_fetcher import PayloadFetcher
from sluice.actors.consumer.revocations import Revocations, TakingBack
from sluice.actors.consumer.unacked_messages import UnackedMessageTracker
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import NO_COUNTS, Revocation
from tests.actors.consumer.test_unacked_messages import part
from tests.sim.world import World


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_revocation_that_never_came_is_made_up_for(carried_out: bool) -> None:
    """The owner confirmed what was given back, and ended before it asked for what lies behind that."""

    async def scenario(world: World) -> None:
        ports = world.client("reader")
        holding, backs = UnackedMessageTracker(), NegativeAcksTracker(ports)
        inbox = PayloadFetcher(
            ports, Payloads(ports, Directory(ports, "controller"), "orders", 0), lambda came, trimmed: None
        )
        revocations = Revocations(ports, holding, inbox, backs, TakingBack())
        back = backs.note(np.array([10]), NO_COUNTS)
        backs.finish(back, confirmed=True)
        behind, before = part(11, 2), part(8, 2)
        holding.add(before)
        holding.add(behind)
        over = False
        world.background(revocations.wait(1, [back], lambda: over), "it waits")
        await ports.clock.sleep(1)
        if carried_out:
            revocations.carry_out(Revocation(number=1, positions=np.array([12])))
        else:
            over = True
        await ports.clock.sleep(2_000)
        assert revocations.forestall(7)[1] == (0 if carried_out else 2)
        while (again := backs.oldest(holding.positions())) is not None:
            backs.finish(again, confirmed=True)
        revocations.reset()
        holding.add(part(20, 1))
        assert revocations.forestall(8)[1] == 0, "what an earlier session gave back is no matter any more"

    World(0).play(scenario)
