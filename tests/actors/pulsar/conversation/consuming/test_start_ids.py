"""Start ids of readers that name no message: numbers are read as Pulsar's broker does, with their signs."""

from __future__ import annotations

import pytest

from tests.actors.pulsar.two_gateways import GATEWAYS, SHARED, Clients, with_gateways

EXCLUSIVE = 0
EACH = 3
"""Messages of a ledger."""
ALL = list(range(3 * EACH))
UNSIGNED = (1 << 64) - 1
LATEST = (1 << 63) - 1

EDGES = [
    (0, UNSIGNED, ALL[EACH:]),
    (0, 1 << 63, ALL[EACH:]),
    (0, (1 << 32) - 1, ALL[2 * EACH :]),
    (0, 1 << 32, ALL[2 * EACH :]),
    (0, LATEST - 1, ALL[2 * EACH :]),
    (0, LATEST, []),
    (1 << 31, 0, []),
    (1 << 62, UNSIGNED, []),
    (LATEST, 0, []),
    (LATEST, LATEST, []),
    (1 << 63, 0, ALL),
    (UNSIGNED, 0, ALL),
    (UNSIGNED, UNSIGNED, ALL),
]
"""A ledger (0: the second one of the topic), an entry, and what comes."""


@pytest.mark.parametrize(("ledger", "entry", "expected"), EDGES)
def test_an_id_of_no_message_is_placed(ledger: int, entry: int, expected: list[int]) -> None:
    async def scenario(clients: Clients) -> None:
        wire = await clients.join("c0", GATEWAYS[0])
        await clients.consumer(wire, EXCLUSIVE, "all", durable=False, subscription="all")
        await clients.producer(wire, "till", SHARED)
        for _ in ALL:
            await clients.send(wire, "c0")
        await clients.broker.until(lambda: clients.numbers("c0") == ALL)
        ledgers = [at >> 32 for at in clients.ids["c0"]]
        assert ledgers == sorted([ledgers[0], ledgers[EACH], ledgers[-1]] * EACH)
        reader = await clients.join("c1", GATEWAYS[1])
        start = {"ledger": ledger or ledgers[EACH], "entry": entry}
        await clients.consumer(reader, EXCLUSIVE, "r", durable=False, subscription="r", start_message_id=start)
        await clients.send(wire, "c0")
        await clients.broker.until(lambda: clients.numbers("c1")[-1:] == [len(ALL)])
        assert clients.numbers("c1") == [*expected, len(ALL)]

    with_gateways(scenario, topic={"roll_entries": EACH})
