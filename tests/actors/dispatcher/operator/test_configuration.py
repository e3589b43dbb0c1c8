"""Changed settings of a subscription take effect, or the caller learns why not; and leases stay honest."""

from __future__ import annotations

import msgspec
import pytest

from sluice.actors.dispatcher import Dispatcher
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import Configure, SubscriptionSettings
from sluice.actors.ports import Address, Ports
from sluice.storage.errors import Conflict, Invalid
from tests.scenarios.key_shared.broker import CONTROLLER, KEYS, SUBSCRIPTION, TOPIC, Broker, Client, play

LONG_MS, SHORT_MS = 20_000, 2_000


@pytest.mark.parametrize(
    "changed", [{"max_redeliver_count": 3}, {"lease_ms": 4_000}, {"look_ahead_per_consumer": 7}, {"type": "shared"}]
)
def test_settings_in_use_are_refused_and_do_not_change(changed: dict[str, int | str]) -> None:
    async def scenario(broker: Broker) -> None:
        before = broker.settings
        client = await broker.join("c1")
        for _ in range(2):  # and nobody remembers the refused ones
            with pytest.raises(Conflict, match=next(iter(changed))):
                await broker.configure(**changed)
            broker.directory = Directory(broker.ports, CONTROLLER)
            with pytest.raises(Conflict, match=next(iter(changed))):
                await broker.directory.dispatcher(TOPIC, 0, SUBSCRIPTION, broker.settings)
            broker.settings = before
        await client.close()
        await broker.configure(**changed)
        await broker.join("c2")
        found = await actor_settings(broker)
        assert {name: getattr(found, name) for name in changed} == changed

    play(scenario)


async def actor_settings(broker: Broker) -> SubscriptionSettings:
    """Return the settings that the dispatcher works with."""
    broker.directory = Directory(broker.ports, CONTROLLER)
    process = broker.world.at(await broker.directory.dispatcher(TOPIC, 0, SUBSCRIPTION))
    assert process is not None
    assert isinstance(process.actor, Dispatcher)
    return process.actor.parts.context.state.settings


def test_a_dispatcher_gets_the_settings_that_are_asked_for() -> None:
    """The dispatcher died while nobody was attached. The next start asks for other settings than the recorded ones."""

    async def scenario(broker: Broker) -> None:
        address = await broker.address()
        broker.world.stop("controller/controller")
        broker.world.stop(address)
        await broker.world.restart("controller")
        broker.directory = Directory(broker.ports, CONTROLLER)
        broker.settings = SubscriptionSettings(initial_position="earliest", max_redeliver_count=5)
        await broker.join("c1")
        assert (await actor_settings(broker)).max_redeliver_count == 5

    play(scenario)


def test_returning_consumer_brings_no_settings() -> None:
    """The settings changed while the consumer was taken for dead. The consumer works with those in force."""

    async def scenario(broker: Broker) -> None:
        frozen = await broker.join("frozen")
        broker.world.pause("frozen")
        await broker.quiet(2 * LONG_MS)
        await broker.configure(max_redeliver_count=5)
        broker.world.network.faults.gone_hint = 1.0
        broker.world.resume("frozen")
        await broker.quiet(LONG_MS)
        await broker.publish(*KEYS[:5])
        await broker.until(lambda: len(frozen.got) == 5, LONG_MS)
        assert (await actor_settings(broker)).max_redeliver_count == 5

    play(scenario, lease_ms=LONG_MS)


def test_settings_that_are_not_said_stay() -> None:
    """This holds with and without a consumer, and for callers that know the dispatcher or do not."""

    async def scenario(broker: Broker) -> None:
        await broker.configure(max_redeliver_count=3, nack_order="key")
        client = await broker.join("c1")
        for said in ([], ["initial_position"], ["nack_order"]):
            wanted = SubscriptionSettings(nack_order="key", initial_position="latest")
            for directory in (broker.directory, Directory(broker.ports, CONTROLLER)):
                await directory.dispatcher(TOPIC, 0, SUBSCRIPTION, wanted, said)
        await client.close()
        await broker.directory.dispatcher(TOPIC, 0, SUBSCRIPTION, SubscriptionSettings(), [])
        wanted = SubscriptionSettings(dead_letter_policy="park")  # with the nack_order that is there
        await broker.directory.dispatcher(TOPIC, 0, SUBSCRIPTION, wanted, ["dead_letter_policy"])
        found = await actor_settings(broker)
        assert (found.max_redeliver_count, found.nack_order, found.dead_letter_policy) == (3, "key", "park")
        assert found.initial_position == "earliest"

    play(scenario)


def test_settings_that_cannot_work_together_are_refused() -> None:
    """The check combines the given settings with those in force, or takes all settings of a new subscription."""

    async def scenario(broker: Broker) -> None:
        await broker.address()
        park = SubscriptionSettings(dead_letter_policy="park")
        for subscription in (SUBSCRIPTION, "new"):
            with pytest.raises(Invalid, match="nack_order = 'key'"):
                await broker.directory.dispatcher(TOPIC, 0, subscription, park, ["dead_letter_policy"])
        odd = SubscriptionSettings(policy="odd")
        with pytest.raises(Invalid, match="choose one of"):
            await broker.directory.dispatcher(TOPIC, 0, SUBSCRIPTION, odd, ["policy"])

    play(scenario)


def test_an_answer_says_which_settings_are_in_force() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.configure(max_redeliver_count=3)
        for said, count in ([], 3), (["max_redeliver_count"], 4):
            wanted = Configure(settings=SubscriptionSettings(max_redeliver_count=4), said=said)
            answer = await broker.ask(wanted)
            assert answer.changed == (count == 4)
            assert answer.settings == msgspec.structs.replace(broker.settings, max_redeliver_count=count)

    play(scenario)


def test_a_shorter_lease_makes_no_two_owners() -> None:
    """The old owner is cut off from the store, and trusts itself no longer than the lease that it gives."""

    async def scenario(broker: Broker) -> None:
        await broker.address()
        await broker.configure(lease_ms=SHORT_MS)
        first = await broker.join("c1", acking=False)
        await broker.publish(*KEYS[:20])
        await broker.until(lambda: len(first.got) == 20)
        (placed,) = [settings for kind, _, settings in broker.world.placed() if kind == "dispatcher"]
        broker.world.meta.trouble.cut["broker"] = 1
        make, _, _ = broker.world.kinds["dispatcher"]
        address = await broker.world.start("newer", lambda ports: make(ports, placed), machine="elsewhere")
        second = Client(broker, "c2", "c2", 1000, acking=True, taking=True)
        broker.clients["c2"] = second
        second.directory = Elsewhere(second.ports, address)
        await second.open(())
        await broker.until(lambda: len(second.got) == 20, 3 * LONG_MS)

    play(scenario, lease_ms=LONG_MS)


class Elsewhere(Directory):
    """A directory that knows only the newer owner."""

    def __init__(self, ports: Ports, address: Address) -> None:
        super().__init__(ports, CONTROLLER)
        self._address = address

    async def dispatcher(self, *_: object, **__: object) -> Address:
        """Return the newer owner's address."""
        return self._address
