"""The requests of operators to dispatchers in a world, repeated until they are answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import SubscriptionSettings, request_of, shown
from sluice.actors.ports import Ports, Unknown
from sluice.storage.errors import Invalid, SluiceError
from tests.sim.worlds.broker import SUBSCRIPTION, TOPIC

ASK_TIMEOUT = 5_000


async def insist(
    ports: Ports,
    directory: Directory,
    settings: SubscriptionSettings,
    partition: int,
    verb: str,
    arguments: dict[str, Any],
    again: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Ask a partition's dispatcher until there is an answer: asking again changes nothing. Raises Invalid.

    again: called before it is asked once more.
    """
    while True:
        try:
            address = await directory.dispatcher(TOPIC, partition, SUBSCRIPTION, settings)
            reply = await ports.net.call(address, request_of(verb, arguments), ASK_TIMEOUT)
            if not isinstance(reply, Unknown):
                return dict(shown(reply))
            await directory.suspect(address)
        except Invalid:
            raise
        except SluiceError as error:
            ports.log("not answered", error=str(error))
        await ports.clock.sleep(50)
        again()
