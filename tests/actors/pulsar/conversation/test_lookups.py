"""A lookup makes no topic. Who subscribes makes the one that is not there, and the audit has who it was."""

from __future__ import annotations

from sluice.actors.messages import BookieList, TopicSettings
from sluice.actors.policies.audited import Audited
from sluice.actors.pulsar.codec.frames import encode
from sluice.actors.pulsar.codec.protocol import command
from sluice.actors.pulsar.conversation.client_connection import ClientConnection
from sluice.storage.errors import NotFound
from tests.actors.pulsar.conversation.limits.test_intake import Slow, Stub, passes, played
from tests.sim.world import World


class Topics:
    """Makes topics, slowly."""

    def __init__(self, world: World, stub: Stub) -> None:
        self._world, self._stub = world, stub
        self.made: dict[str, TopicSettings] = {}

    async def settings(self, topic: str) -> TopicSettings:
        if topic not in self.made:
            raise NotFound(topic)
        return self.made[topic]

    async def bookies(self) -> BookieList:
        return BookieList(ids=["b1"], addresses=["host/b1"])

    async def create(self, topic: str, settings: TopicSettings) -> None:
        self.made[topic] = settings
        await self._stub.wait(self._world)


def test_topic_made_by_a_client_that_left_is_audited() -> None:
    """Else a client that ends the connection at once would leave no trace."""

    async def scenario(world: World, connection: ClientConnection, wire: Slow) -> None:
        stub, told = Stub(), list[Audited]()
        topics = Topics(world, stub)
        connection.gateway.directory = topics  # type: ignore[assignment]
        connection.gateway.audit = told.append
        connection.data(encode(command("lookup", topic="new", request_id=1)))
        await passes(world, 100)
        assert [said for said in wire.said() if said == "lookup_answer"] == ["lookup_answer"]
        assert not topics.made
        connection.data(encode(command("subscribe", topic="new", subscription="s", consumer_id=0, request_id=2)))
        await passes(world, 100)
        assert (list(topics.made), told) == (["new"], [])
        connection.over()
        await passes(world, 100)
        stub.go.set()
        await passes(world, 100)
        assert [(one.what, one.topic) for one in told] == [("create topic", "new")]

    played(scenario)
