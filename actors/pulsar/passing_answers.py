"""What a client asks of topics of which nothing is kept (actors.pulsar.passing)."""

from __future__ import annotations

from typing import Any

from actors.messages import SubscriptionSettings
from actors.names import check_name, namespace_of, quoted
from actors.pulsar.consuming import STICKY, TYPES
from actors.pulsar.fields import ServerError
from actors.pulsar.passing import PassingConsumer, PassingProducer, Wanted, passing_place, persistent_name
from actors.pulsar.refusals import Refused
from actors.pulsar.session import Session
from actors.pulsar.topics import Place


class PassingAnswers:
    """The requests of one connection that are answered otherwise than for topics that are kept."""

    def __init__(self, session: Session) -> None:
        self._c = session
        self._g = session.gateway

    async def place(self, text: str) -> Place:
        """Where a topic is. Raises Invalid, NotFound without its namespace, Refused where such topics are not had."""
        place = passing_place(text)
        await self._g.namespaces.policies(namespace_of(persistent_name(text))[0])
        await self._g.passing.check()
        return place

    async def producer(self, asked: Any) -> PassingProducer:
        """One more. Raises SluiceErrors."""
        place = await self.place(asked.topic)
        if asked.access_mode:
            text = "of a topic that is not persistent nobody is the only producer: use the access mode Shared"
            raise Refused(ServerError.NOT_ALLOWED, text)
        name = asked.producer_name or self._g.fresh("sluice")
        await self._wait_alone(place, name)
        topic = self._g.passing.topic(place.topic)
        made = PassingProducer(
            topic,
            place,
            asked.producer_id,
            name,
            write=self._c.write,
            lost=self._c.fenced,
            settled=self._c.settled,
            alive=self._c.answers,
            fails_by=self._c.fails_by,
        )
        self._c.add_producer(made, asked, "shared")
        topic.producers.append(made)
        return made

    async def _wait_alone(self, place: Place, name: str) -> None:
        """A name is that of one producer, as long as its client is there."""

        def earlier() -> list[PassingProducer]:
            known = self._g.passing.producers_of(place.topic)
            return [one for one in known if one.name == name and not one.closed]

        while others := earlier():
            if await others[0].answers():
                raise Refused(ServerError.PRODUCER_BUSY, f"a producer named {name} is connected")

    async def consumer(self, asked: Any) -> PassingConsumer:
        """One more; a reader is one too, because there is nothing to be read but what comes. Raises SluiceErrors."""
        place = await self.place(asked.topic)
        if not 0 <= asked.type < len(TYPES):
            raise Refused(ServerError.NOT_ALLOWED, f"there is no subscription type {asked.type}")
        if asked.key_shared.mode == STICKY:
            text = "of a topic that is not persistent the keys are split by the broker: give no ranges"
            raise Refused(ServerError.NOT_ALLOWED, text)
        if not asked.subscription:
            raise Refused(ServerError.PRODUCER_BUSY, "the subscription name is empty")
        name = check_name("consumer", quoted(asked.consumer_name or self._g.fresh("consumer")))
        subscription = check_name("subscription", quoted(asked.subscription))
        kind = TYPES[asked.type]
        settings = SubscriptionSettings(type=kind)
        wanted = Wanted(subscription, name, settings, asked.priority_level)
        while kind == "exclusive" and (earlier := self._g.passing.consumers_of(place.topic, subscription)):
            if await earlier[0].answers():
                break
        topic = self._g.passing.topic(place.topic)
        made = PassingConsumer(
            topic,
            place,
            asked.consumer_id,
            wanted,
            write=self._c.write,
            lost=self._c.send_away,
            alive=self._c.answers,
        )
        if asked.HasField("consumer_epoch"):
            made.epoch = asked.consumer_epoch
        topic.join(made)
        try:
            self._c.add_consumer(made, asked)
        except Refused:
            await made.close()
            raise
        return made

    async def unsubscribe(self, consumer: PassingConsumer, *, force: bool) -> None:
        """The last consumer ends its subscription. Raises Refused if it is not the last one."""
        others = self._g.passing.consumers_of(consumer.place.topic, consumer.asked.subscription)
        if len(others) > 1 and not force:
            raise Refused(ServerError.CONSUMER_BUSY, "other consumers are connected to the subscription")
        await consumer.close()
        self._c.remove_consumer(consumer)
