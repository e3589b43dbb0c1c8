"""A broker whose log holds message i at position i:i, for the scenarios of the bucket tracker."""

from sluice.storage.format.position import position
from tests.actors.delayed.broker import Broker, Log, bucket_settings
from tests.actors.delayed.world import World


def message(i: int) -> int:
    return position(i, i)


class Scenario:
    """A broker whose log holds message i at position i:i."""

    def __init__(self, *, look_ahead_ms: int = 0, scale: int = 10, **rule: int) -> None:
        self.world = World()
        self.log = Log()
        self.settings = bucket_settings(**rule)
        self.look_ahead_ms = look_ahead_ms
        self.scale = scale
        self.epoch = 0

    async def begin(self, script: object = None, mark_delete: int = -1) -> Broker:
        self.epoch += 1
        broker = Broker(self.world, self.log, self.settings, self.epoch, script, self.look_ahead_ms)  # type: ignore[arg-type]
        await broker.tracker.start()
        await broker.tracker.recovered()
        broker.tracker.trim(mark_delete)
        return broker

    async def publish(self, broker: Broker, first: int, last: int) -> None:
        for i in range(first, last + 1):
            self.log.due[message(i)] = i * self.scale
            broker.read()
            await self.world.settle()

    async def finish(self, broker: Broker) -> None:
        broker.recount()
        await broker.end()


def numbers(places: list[int]) -> list[int]:
    return [place >> 32 for place in places]


def buckets(broker: Broker) -> int:
    return int(broker.tracker.stats()["buckets"])
