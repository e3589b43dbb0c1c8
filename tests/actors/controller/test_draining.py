"""Nodes are drained: who leaves in which order, what is refused, and what the next controller goes on with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sluice.actors.controller.auditor import ReplicationAuditor
from sluice.actors.controller.draining import DRAINED, NodeDrainer
from sluice.actors.controller.supervisor import Supervisor
from sluice.actors.messages import DrainNode, Ping, Replicate, Replicated
from sluice.actors.ports import Address, Version
from sluice.storage.errors import Invalid, NotFound, Unavailable
from tests.actors.placement.site import BOOKIE, OTHER, TOPIC, Site, play
from tests.sim.worlds.placement import PingNet

LONG_MS = 60_000


class TopicNet(PingNet):
    """Topics answer as well, that so many fragments are left."""

    left = 2

    async def call(self, to: Address, request: Any, timeout: int) -> Any:
        """See PingNet."""
        if isinstance(request, Replicate):
            return Replicated(remaining=self.left)
        assert isinstance(request, Ping)
        return await super().call(to, request, timeout)


class Parts:
    """A controller's supervisor, auditor and drainer on a site. copies: the largest ensemble of a topic."""

    def __init__(self, site: Site, copies: int = 1) -> None:
        site.controller(standby=True, first=100, again=100)
        self.net = TopicNet(site.cluster)
        net: Any = self.net
        self.ports = replace(site.world.client(f"parts-{site.controllers}"), net=net)
        self.supervisor = Supervisor(self.ports, site.places)
        self.auditor = ReplicationAuditor(
            self.ports, self.supervisor.lost, self._topics, lambda: self.drainer.leaving()
        )
        self.copies, self.slow_ms = copies, 0
        self.drainer = NodeDrainer(self.ports, site.places, self.supervisor, self.auditor, self._most_copies)

    async def start(self) -> Parts:
        """Everything runs: two topics, and a bookie."""
        await self.drainer.resume()
        await self.supervisor.adopt()
        wanted: list[tuple[str, dict[str, Any]]] = [("topic", TOPIC), ("topic", OTHER), ("bookie", BOOKIE)]
        await self.supervisor.ensure_all([self.supervisor.want(kind, settings) for kind, settings in wanted])
        self.ports.spawn(self.supervisor.watch(), "watch")
        self.ports.spawn(self.auditor.run(), "auditor")
        return self

    async def _topics(self, everything: bool) -> list[tuple[str, Address]]:
        return [(entry.name, entry.address) for entry in self.supervisor.of_kind("topic")]

    async def _most_copies(self) -> tuple[int, str]:
        await self.ports.clock.sleep(self.slow_ms)
        return self.copies, "t"


def node_of(site: Site, slot: str) -> str:
    """The node of the process that was made for a slot."""
    return site.process(slot).node


def test_owners_move_and_none_of_them_ended() -> None:
    async def scenario(site: Site) -> None:
        parts = await Parts(site).start()
        node = node_of(site, "broker-0")
        bookie = site.process("bookie-0")
        while not (await parts.drainer.ask(DrainNode(node=node, keep_ledgers=True))).done:
            await site.world.loop.pause(100)
        for entry in parts.supervisor.of_kind("topic"):
            assert site.cluster.runs_at(entry.address)
            assert await site.places.node_of(entry.address) != node
        assert [
            process.name for process in site.cluster.alive() if process.node == node and process is not bookie
        ] == []
        assert [entry.restarts for entry in parts.supervisor.all()] == [0, 0, 0]
        assert not bookie.dead, "it serves until its machine goes"

    play(scenario, "one", "two")


def test_ledgers_leave_before_it_is_done() -> None:
    async def scenario(site: Site) -> None:
        parts = await Parts(site, copies=0).start()
        node = node_of(site, "bookie-0")
        await parts.drainer.ask(DrainNode(node=node))
        await site.world.loop.pause(LONG_MS)
        told = await parts.drainer.ask(DrainNode(node=node))
        assert (told.owners, told.fragments, told.done) == (0, 4, False)
        assert parts.drainer.leaving() == ("bookie-0",)
        assert parts.auditor.under_replicated() == 0, "they have their copies"
        parts.net.left = 0
        await site.world.loop.pause(LONG_MS)
        assert (await parts.drainer.ask(DrainNode(node=node))).done

    play(scenario, "one", "two")


def test_no_bookie_is_left_behind_because_it_was_down() -> None:
    """Which bookies leave is written down once: one that is being started then would keep its ledgers."""

    async def scenario(site: Site) -> None:
        parts = await Parts(site, copies=0).start()
        node, bookie = node_of(site, "bookie-0"), parts.supervisor.of_kind("bookie")[0]
        site.cluster.die(site.process("bookie-0"), "crash")
        parts.ports.spawn(parts.supervisor.suspect(bookie.address), "suspect")

        async def until(runs: bool) -> None:
            while bool(bookie.address) != runs:
                await site.world.loop.pause(1)

        await until(False)
        with pytest.raises(Unavailable, match="bookie-0 is being started, and may be there"):
            await parts.drainer.ask(DrainNode(node=node))
        await until(True)
        await parts.drainer.ask(DrainNode(node=node))
        assert parts.drainer.leaving() == ("bookie-0",)

    play(scenario, "one", "two")


def test_too_few_bookies_would_be_left() -> None:
    async def scenario(site: Site) -> None:
        parts = await Parts(site).start()
        with pytest.raises(Invalid, match=r"keeps each ledger on 1 bookies, and 0 would be left.*--keep-ledgers"):
            await parts.drainer.ask(DrainNode(node=node_of(site, "bookie-0")))
        assert parts.drainer.nodes() == []

    play(scenario, "one", "two")


def test_the_last_node_and_an_unknown_one_are_refused() -> None:
    async def scenario(site: Site) -> None:
        parts = await Parts(site).start()
        with pytest.raises(NotFound, match="no node 'three'; there are n0 on one, n1 on two"):
            await parts.drainer.ask(DrainNode(node="three"))
        await parts.drainer.ask(DrainNode(node="one", keep_ledgers=True))
        with pytest.raises(Invalid, match="the last node"):
            await parts.drainer.ask(DrainNode(node="two", keep_ledgers=True))
        await parts.drainer.ask(DrainNode(node="one", withdrawn=True))
        await parts.drainer.ask(DrainNode(node="two", keep_ledgers=True))

    play(scenario, "one", "two")


def test_one_of_several_nodes_of_a_machine_is_named_by_id() -> None:
    async def scenario(site: Site) -> None:
        parts = await Parts(site).start()
        with pytest.raises(Invalid, match="any of the nodes n0, n1: name one by its id"):
            await parts.drainer.ask(DrainNode(node="m"))

    play(scenario, "m", "m", "elsewhere")


def test_a_controller_looks_which_drains_there_are() -> None:
    """A client that waits for a drain asks again and again, and takes a refusal for final."""

    async def scenario(site: Site) -> None:
        parts = await Parts(site).start()
        node = node_of(site, "broker-0")
        await parts.drainer.ask(DrainNode(node=node, keep_ledgers=True))
        site.world.crash(parts.ports.me.partition("/")[0])
        site.world.meta.trouble.refused["keys drained/"] = Unavailable
        parts = await Parts(site).start()
        for request in (DrainNode(node=node), DrainNode(node=node, withdrawn=True)):
            with pytest.raises(Unavailable):
                await parts.drainer.ask(request)
        del site.world.meta.trouble.refused["keys drained/"]
        assert (await parts.drainer.ask(DrainNode(node=node))).node == node
        assert parts.drainer.nodes() == [node]
        await parts.drainer.ask(DrainNode(node=node, withdrawn=True))
        await site.world.loop.pause(LONG_MS)
        assert parts.drainer.nodes() == []

    play(scenario, "one", "two")


def test_the_next_controller_goes_on() -> None:
    async def scenario(site: Site) -> None:
        parts = await Parts(site).start()
        node = node_of(site, "broker-0")
        await parts.drainer.ask(DrainNode(node=node, keep_ledgers=True))
        site.world.crash(parts.ports.me.partition("/")[0])
        parts = await Parts(site).start()
        assert parts.drainer.nodes() == [node]
        await site.world.loop.pause(LONG_MS)
        assert (await parts.drainer.ask(DrainNode(node=node))).done
        site.cluster.lose_node(node)
        await site.world.loop.pause(LONG_MS)
        assert parts.drainer.nodes() == [], "a machine that comes back is another node"

    play(scenario, "one", "two")


def test_a_damaged_record_concerns_its_own_node_only() -> None:
    """The next controller starts, and goes on with the others; who withdraws that node is rid of it."""

    async def scenario(site: Site) -> None:
        parts = await Parts(site).start()
        node = node_of(site, "broker-0")
        other = "n1" if node == "n0" else "n0"
        await parts.drainer.ask(DrainNode(node=node, keep_ledgers=True))
        await parts.ports.meta.create(DRAINED + other, 1, b"?")
        await parts.ports.meta.create(DRAINED + "0", 1, b'{"address": 7}')
        site.world.crash(parts.ports.me.partition("/")[0])
        parts = await Parts(site).start()
        assert parts.drainer.nodes() == [node]
        await site.world.loop.pause(LONG_MS)
        assert (await parts.drainer.ask(DrainNode(node=node))).done
        await parts.drainer.ask(DrainNode(node=other, withdrawn=True))
        assert await parts.ports.meta.read(DRAINED + other) is None

    play(scenario, "one", "two")


def test_waiting_for_a_drain_does_not_undo_a_withdrawal() -> None:
    """The command asks again and again for the state of the drain, while another client lets the node be used again."""

    async def scenario(site: Site) -> None:
        parts = await Parts(site).start()
        node = node_of(site, "broker-0")
        await parts.drainer.ask(DrainNode(node=node, keep_ledgers=True))
        assert (await parts.drainer.ask(DrainNode(node=node, look=True))).drained
        assert not (await parts.drainer.ask(DrainNode(node=node, withdrawn=True))).drained
        told = await parts.drainer.ask(DrainNode(node=node, look=True))
        assert (told.node, told.drained, told.done) == (node, False, False)
        assert parts.drainer.nodes() == []

    play(scenario, "one", "two")


def test_a_withdrawal_holds_for_what_was_asked_before() -> None:
    """A client that is interrupted while the controller begins to drain a node lets the node be used again at once."""

    async def scenario(site: Site) -> None:
        parts = await Parts(site, copies=0).start()
        node, parts.slow_ms = node_of(site, "bookie-0"), 1_000

        async def ask(request: DrainNode) -> None:
            await parts.drainer.ask(request)

        for withdrawn in (False, True):
            parts.ports.spawn(ask(DrainNode(node=node, withdrawn=withdrawn)), "an operator")
            await site.world.loop.pause(100)
        await site.world.loop.pause(LONG_MS)
        assert parts.drainer.nodes() == []
        assert await parts.ports.meta.keys(DRAINED) == []

    play(scenario, "one", "two")


def test_a_drain_goes_on_although_its_answer_is_lost() -> None:
    """The store's answer is lost: a client that asks again gets the state of the drain."""

    async def scenario(site: Site) -> None:
        parts = await Parts(site).start()
        node = node_of(site, "broker-0")
        site.world.meta.trouble.faults.fail_after = 1.0
        with pytest.raises(Unavailable):
            await parts.drainer.ask(DrainNode(node=node, keep_ledgers=True))
        site.world.meta.trouble.faults.fail_after = 0.0
        assert parts.drainer.nodes() == []
        assert (await parts.drainer.ask(DrainNode(node=node, keep_ledgers=True))).node == node
        assert parts.drainer.nodes() == [node]

    play(scenario, "one", "two")


def test_a_record_that_is_read_late_undoes_no_withdrawal() -> None:
    """A new controller could not read the records at first. It reads them again when an operator withdraws one."""

    async def scenario(site: Site) -> None:
        parts = Parts(site)
        refused = site.world.meta.trouble.refused
        refused[f"keys {DRAINED}"] = Unavailable
        await parts.start()
        node = node_of(site, "broker-0")
        assert await parts.ports.meta.create(DRAINED + node, 1, b'{"address": "one"}')
        read, waits = parts.ports.meta.read, [True]

        async def slowly(key: str) -> Version | None:
            found = await read(key)
            if key == DRAINED + node and waits:
                waits.clear()
                await site.world.loop.pause(1_000)
            return found

        parts.ports.meta.read = slowly  # type: ignore[method-assign]
        refused.clear()
        while waits:
            await site.world.loop.pause(10)
        assert not (await parts.drainer.ask(DrainNode(node=node, withdrawn=True))).drained
        await site.world.loop.pause(LONG_MS)
        assert parts.drainer.nodes() == []

    play(scenario, "one", "two")
