"""Mutants of several gateways: who has a machine's ports, whose a name is, what the subscription's record says."""

from __future__ import annotations

from tools.mutants import Mutant

GATEWAY = "gateway"
DOORS, SEVERAL = (
    "tests/actors/pulsar/conversation/gateway/test_port_claims.py",
    "tests/actors/pulsar/test_several_gateways.py",
)
PLACES, KEEPER = "tests/actors/placement/test_gateways.py", "tests/actors/controller/test_gateway_keeper.py"

TAKING_OVER: list[Mutant] = [
    Mutant(
        name="a gateway does not wait for the one that has the ports",
        module="sluice.actors.pulsar.conversation.gateway.port_claims",
        old='        if not self._claimed and self._done("gateway_waits", self._machine_ports.claim):\n',
        new="        if not self._claimed:\n",
        world=GATEWAY,
        test=DOORS,
    ),
    Mutant(
        name="a port that could not be published counts as published",
        module="sluice.actors.pulsar.conversation.gateway.port_claims",
        old='self._done("port_untold", tell) is not False:\n',
        new='self._done("port_untold", tell) != 0.5:\n',
        world=GATEWAY,
        test=DOORS,
    ),
    Mutant(
        name="who takes over chooses another free port",
        module="sluice.actors.pulsar.conversation.gateway.port_claims",
        old="            port = wanted or self._machine_ports.chosen(scheme)\n",
        new="            port = wanted\n",
        world=GATEWAY,
        test=DOORS,
    ),
    Mutant(
        name="a gateway tries to listen once",
        module="sluice.actors.pulsar.conversation.gateway.port_claims",
        old="            while not self.listens and not await self.open():",
        new="            if not self.listens and not await self.open():",
        world=GATEWAY,
        test=DOORS,
    ),
    Mutant(
        name="two producers of one name write",
        module="sluice.actors.topic.partition.access",
        old="        if not twins or not request.home or request.again:",
        new="        if True:",
        world=GATEWAY,
        test=SEVERAL,
    ),
    Mutant(
        name="who comes back on another connection is taken for somebody else",
        module="sluice.actors.topic.partition.access",
        old="        if not twins or not request.home or request.again:",
        new="        if not twins or not request.home:",
        world=GATEWAY,
        test=SEVERAL,
    ),
    Mutant(
        name="a client that does not answer keeps its name",
        module="sluice.actors.pulsar.conversation.client_session",
        old="            self.end()\n        return not self.closed\n",
        new="            pass\n        return not self.closed\n",
        world=GATEWAY,
        test=SEVERAL,
    ),
    Mutant(
        name="that batches are acknowledged in parts dies with the owner",
        module="sluice.actors.dispatcher.delivery.subscription",
        old='            "by_index": self.by_index,\n',
        new="",
        world=GATEWAY,
        test=SEVERAL,
    ),
    Mutant(
        name="other gateways do not hear that batches are acknowledged in parts",
        module="sluice.actors.dispatcher.delivery.dispatch_loop",
        old="session.deliver(by_index=self._state.by_index)",
        new="session.deliver()",
        world=GATEWAY,
        test=SEVERAL,
    ),
    Mutant(
        name="who unsubscribes does not look for consumers of other gateways",
        module="sluice.actors.pulsar.conversation.commands",
        old='["consumersCount"] > 1:',
        new='["consumersCount"] > 1_000:',
        world=GATEWAY,
        test=SEVERAL,
    ),
    Mutant(
        name="a gateway counts for its node",
        module="sluice.actors.placement.placement",
        old="for slot, node in placed.items() if not is_gateway(slot)}",
        new="for slot, node in placed.items()}",
        world=GATEWAY,
        test=PLACES,
    ),
    Mutant(
        name="a gateway goes to whichever machine there is",
        module="sluice.actors.placement.placer",
        old="                if not here and is_gateway(slot):",
        new="                if False:",
        world=GATEWAY,
        test=PLACES,
    ),
    Mutant(
        name="a machine that was not seen once loses its gateway",
        module="sluice.actors.controller.gateway_keeper",
        old="if now - seen < GONE_MS}",
        new="if now - seen < 1}",
        world=GATEWAY,
        test=KEEPER,
    ),
    Mutant(
        name="the gateway of a machine that is gone is started for ever",
        module="sluice.actors.controller.gateway_keeper",
        old="                await self._end(entry)\n",
        new="                pass\n",
        world=GATEWAY,
        test=KEEPER,
    ),
]
