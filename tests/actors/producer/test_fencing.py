"""A producer goes on after a change of owner, and stops for good when somebody newer has its name."""

from __future__ import annotations

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import Done, Located, LocateTopic, OpenProducer, ProducerOpened, Suspect
from sluice.actors.ports import Ports
from sluice.actors.producer.producer import PartitionProducer, ProducerConfig
from sluice.actors.runtime.host import Actor
from sluice.storage.errors import Fenced, ProducerFenced, SluiceError
from tests.sim.world import World

TOPIC = "producer-x"


class Owner(Actor):
    """The owner of a partition, and who says where it is. Refuses the first session with the given error."""

    def __init__(self, ports: Ports, refusal: SluiceError) -> None:
        super().__init__(ports)
        self.refusals = [refusal]

    async def on_locate_topic(self, _: LocateTopic) -> Located:
        """Answer that the topic is here."""
        return Located(addresses=[self.ports.me])

    async def on_suspect(self, _: Suspect) -> Done:
        """Noted."""
        return Done()

    async def on_open_producer(self, _: OpenProducer) -> ProducerOpened:
        """The refusal, then a session."""
        if self.refusals:
            raise self.refusals.pop()
        return ProducerOpened(session=7, last_sequence=-1, epoch=2)


def open_after(refusal: SluiceError) -> SluiceError | None:
    """Open a producer whose owner refuses once; what came of it."""
    outcome: list[SluiceError] = []

    async def run(world: World) -> None:
        owner = await world.start("owner", lambda ports: Owner(ports, refusal), fixed=True)
        ports = world.client("client")
        producer = PartitionProducer(ports, Directory(ports, owner), ProducerConfig(TOPIC, 0, "p", "p-1"))
        try:
            await producer.open()
        except SluiceError as error:
            outcome.append(error)
        producer.close()

    World(1).play(run)
    return outcome[0] if outcome else None


def test_an_owner_that_was_replaced_is_looked_up_again() -> None:
    """Whatever the topic is called: the words of an error decide nothing."""
    assert open_after(Fenced(f"partition/{TOPIC}/0 has a newer owner")) is None


def test_a_newer_producer_of_the_name_ends_the_older() -> None:
    assert isinstance(open_after(ProducerFenced("'p' was opened again by a newer instance")), ProducerFenced)
