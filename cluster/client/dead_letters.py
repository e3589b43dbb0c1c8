"""The dead letters of a subscription as an object: the messages that were given back too often, wherever they wait.

With `dead_letter_policy` park or block a failed message stays where it is, and its key waits behind it. The owner of
the subscription lists these keys and carries out decisions. With skip the message lies in the dead letter topic. A
subscription there, `dead-letters`, remembers which letters are decided. One program at a time may read it.

Redriving a letter of that topic publishes it again to the topic that it came from, and acknowledges it when that is
confirmed: a crash in between publishes it twice and loses nothing. Every subscription of that topic gets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, Unpack

from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.messages.settings import ORIGIN
from sluice.actors.ownership.names import check_name
from sluice.cluster.base.loop import LoopThread
from sluice.cluster.client.async_consumer import AsyncConsumer
from sluice.cluster.client.async_producer import AsyncProducer
from sluice.cluster.client.log_reader import StoredRange
from sluice.cluster.client.message import Message, MessageId
from sluice.cluster.client.settings_input import check_names
from sluice.cluster.client.typed_settings import ConsumerSettings
from sluice.storage.errors import Invalid, NotFound
from sluice.storage.format.hashing import key_bytes

DECIDED = "dead-letters"
"""The subscription on a dead letter topic that remembers what was decided."""
PATIENCE_MS = 30_000
"""How long a letter that is there may take to come."""


class LettersChoice(TypedDict, total=False):
    """The letters that a decision means, in exactly one way. message_id: of the message that failed."""

    key: str | bytes
    message_id: MessageId | str
    everything: bool


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that failed. message_id: its place in its own topic. state: parked, blocked, or moved (it is in the
    dead letter topic). since: ms since 1970. messages: how many wait with it, itself included.
    """

    message_id: MessageId
    key: bytes | None
    state: str
    since: int
    messages: int
    data: bytes
    properties: dict[str, str]


@dataclass(frozen=True, slots=True)
class LettersDecided:
    """The keys and messages that a decision was about."""

    keys: int
    messages: int


class AsksBroker(Protocol):
    """A client, as far as dead letters need one."""

    async def admin(self, /, topic: str, subscription: str, verb: str, **arguments: Any) -> list[Any]: ...

    async def stats(self, topic: str, subscription: str) -> list[dict[str, Any]]: ...

    async def topics(self) -> list[dict[str, Any]]: ...

    def read(self, topic: str, wanted: StoredRange) -> AsyncIterator[Received]: ...

    async def create_producer(self, topic: str) -> AsyncProducer: ...

    async def subscribe(
        self, topic: str, subscription_name: str, **settings: Unpack[ConsumerSettings]
    ) -> AsyncConsumer: ...


class AsyncDeadLetters:
    """The dead letters of one subscription; `client.dead_letters` makes it."""

    def __init__(self, client: AsksBroker, topic: str, subscription: str) -> None:
        self._client = client
        self.topic, self.subscription = check_name("topic", topic), check_name("subscription", subscription)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic}, {self.subscription})"

    async def letters(self, top: int = 100) -> list[DeadLetter]:
        """Return the first `top` letters, parked ones of each partition, in the order in which they failed."""
        policy, topic = await self._stats()
        if policy != "skip":
            answers = await self._client.admin(self.topic, self.subscription, "parked", top=top)
            return list(await asyncio.gather(*(self._parked(row) for answer in answers for row in answer["keys"])))
        if not await self._is_there(topic):
            return []
        async with self._moved(topic) as (_, letters):
            found: list[DeadLetter] = []
            async for message in letters:
                if len(found) < top:
                    found.append(_letter(message))
            return found

    async def redrive(self, **choice: Unpack[LettersChoice]) -> LettersDecided:
        """Let these messages be handled again: a parked key goes on with the message that failed, and a letter in the
        dead letter topic is published again. Durable when it returns. Raises Invalid, SluiceErrors.
        """
        return await self._decide("redrive", choice)

    async def discard(self, *, only_failed: bool = False, **choice: Unpack[LettersChoice]) -> LettersDecided:
        """Count these messages as done. only_failed: of a parked key the failed message alone, and what was parked
        behind it goes out. Durable when it returns. Raises Invalid, SluiceErrors.
        """
        return await self._decide("discard", choice, only_failed=only_failed)

    async def _decide(self, verb: str, choice: LettersChoice, **more: Any) -> LettersDecided:
        check_names(f"argument of {verb}", choice, LettersChoice)
        given = {name: value for name, value in choice.items() if value not in (None, False)}
        if len(given) != 1:
            raise Invalid("say which letters: one of key, message_id (of the failed message) and everything")
        if isinstance(named := given.get("message_id"), str):
            given["message_id"] = MessageId.parse(named)
        policy, topic = await self._stats()
        if policy != "skip":
            rows = await self._client.admin(self.topic, self.subscription, verb, **_of_verb(given), **more)
            return LettersDecided(*(sum(row[name] for row in rows) for name in ("keys", "messages")))
        if not await self._is_there(topic):
            return LettersDecided(0, 0)
        moved: dict[bytes | None, int] = {}
        async with self._moved(topic) as (consumer, letters):
            chosen: list[Message[bytes]] = []
            async for message in letters:
                letter = _letter(message)
                if _is_meant(letter, given):
                    moved[letter.key] = moved.get(letter.key, 0) + 1
                    chosen.append(message)
            if chosen and verb == "redrive":
                await self._publish(chosen)
            for message in chosen:
                await consumer.acknowledge(message)
            await consumer.wait_acknowledged(PATIENCE_MS)
        return LettersDecided(len(moved), sum(moved.values()))

    async def _publish(self, chosen: list[Message[bytes]]) -> None:
        """Send letters to the topic that they came from, in their order, without the properties of dead letters."""
        async with await self._client.create_producer(self.topic) as producer:
            sent = [
                await producer.send_async(
                    message.data(),
                    {name: value for name, value in message.properties().items() if name not in ORIGIN},
                    message.key(),
                    message.ordering_key() or None,
                    message.event_timestamp() or None,
                )
                for message in chosen
            ]
            for one in sent:
                await one

    async def _stats(self) -> tuple[str, str]:
        """The subscription's policy, and its dead letter topic. Raises NotFound."""
        row = (await self._client.stats(self.topic, self.subscription))[0]
        return row["deadLetterPolicy"], row["deadLetterTopic"]

    async def _is_there(self, topic: str) -> bool:
        """Whether any message became a dead letter so far, which is when the topic is made."""
        return any(row["topic"] == topic for row in await self._client.topics())

    @asynccontextmanager
    async def _moved(self, topic: str) -> AsyncIterator[tuple[AsyncConsumer, AsyncIterator[Message[bytes]]]]:
        """Open the letters in the dead letter topic that came from this one, to be decided by nobody else meanwhile."""
        from sluice.actors.pulsar.topic_names import said_name  # most programs open no dead letters

        consumer = await self._client.subscribe(
            topic, DECIDED, type="exclusive", initial_position="earliest", max_unacked_messages_per_consumer=0
        )
        async with consumer:
            waiting = sum(row["msgBacklog"] for row in await self._client.stats(topic, DECIDED))

            async def letters() -> AsyncIterator[Message[bytes]]:
                for _ in range(waiting):
                    message = await consumer.receive(PATIENCE_MS)
                    if said_name(message.properties().get(ORIGIN[0], self.topic)) == self.topic:
                        yield message

            yield consumer, letters()

    async def _parked(self, row: dict[str, Any]) -> DeadLetter:
        """A parked key as the owner lists it, with the message that failed."""
        failed = MessageId.parse(row["failed"])
        place = StoredRange(failed.partition_index, failed.ledger_id(), failed.entry_id(), failed.entry_id())
        async for received in self._client.read(self.topic, place):
            rows = received.rows.slice(0, 1).to_pylist()[0]
            return DeadLetter(
                failed,
                rows["key"],
                row["state"],
                row["since"],
                row["messages"],
                rows["payload"],
                dict(rows.get("properties") or ()),
            )
        raise NotFound(f"message {failed} is not stored any more")


class DeadLetters:
    """The same for a program that blocks."""

    def __init__(self, core: AsyncDeadLetters, loop: LoopThread) -> None:
        self._core, self._loop = core, loop
        self.topic, self.subscription = core.topic, core.subscription

    def __repr__(self) -> str:
        return repr(self._core).removeprefix("Async")

    def letters(self, top: int = 100) -> list[DeadLetter]:
        """See AsyncDeadLetters.letters."""
        return self._loop.run(self._core.letters(top))

    def redrive(self, **choice: Unpack[LettersChoice]) -> LettersDecided:
        """See AsyncDeadLetters.redrive."""
        return self._loop.run(self._core.redrive(**choice))

    def discard(self, *, only_failed: bool = False, **choice: Unpack[LettersChoice]) -> LettersDecided:
        """See AsyncDeadLetters.discard."""
        return self._loop.run(self._core.discard(only_failed=only_failed, **choice))


def _letter(message: Message[bytes]) -> DeadLetter:
    properties = message.properties()
    try:
        at = MessageId.parse(properties.get(ORIGIN[1], ""))
    except Invalid:  # another program has written the letter, and says this in a way of its own, or not
        at = message.message_id()
    return DeadLetter(
        at,
        message.key(),
        "moved",
        message.publish_timestamp(),
        1,
        message.data(),
        properties,
    )


def _is_meant(letter: DeadLetter, choice: dict[str, Any]) -> bool:
    if "key" in choice:
        return letter.key == key_bytes(choice["key"])
    return "everything" in choice or letter.message_id == choice["message_id"]


def _of_verb(choice: dict[str, Any]) -> dict[str, Any]:
    """The choice as arguments of the owners' verbs."""
    if "message_id" not in choice:
        return choice
    at = choice["message_id"]
    return {"message_id": f"{at.ledger_id()}:{at.entry_id()}", "partition": at.partition_index}
