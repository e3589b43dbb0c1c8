"""One client that floods the gateway and reads nothing: memory stays bounded, and others go on."""

from __future__ import annotations

import ctypes
import gc
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.actors.pulsar.codec.frames import U32, encode
from sluice.actors.pulsar.codec.protocol import command
from sluice.actors.pulsar.conversation.limits.intake import GREETING_BYTES
from sluice.cluster.client.client import Client
from tests.cluster.gateway.clients import joined
from tests.cluster.gateway.raw import HELLO, Raw

pytestmark = pytest.mark.timeout(240)
MOST_GROWTH = 250 * 1024 * 1024
"""Bytes by which the process may grow under attack: it has about 120 MB, and shall stay below 400."""
FLOOD = 64 * 1024 * 1024
LARGE_SCHEMA = 250_000


def resident() -> int:
    """Bytes of memory that this process has and needs: what allocators keep for later says nothing about a flood."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc has it
        trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def lookups(number: int) -> bytes:
    """With five thousand letters to be repeated in the answer."""
    return encode(command("lookup", topic="calm", listener="x" * 5_000, request_id=number))


def producers(number: int) -> bytes:
    return encode(command("producer", topic="crowd", producer_id=number, request_id=number))


def consumers(number: int) -> bytes:
    name = f"c{number}"
    asked = {"topic": "crowd", "subscription": "s", "type": 1, "consumer_name": name}
    return encode(command("subscribe", consumer_id=number, request_id=number, **asked))


def schemas(number: int) -> bytes:
    return encode(command("get_schema", topic="schema", request_id=number))


def new_schemas(number: int) -> bytes:
    """Each of them is new, as far as a topic may have so many."""
    schema = {"name": "s", "data": b"x" * 100_000 + str(number).encode(), "type": 1}
    return encode(command("put_schema", topic="taken", request_id=number, schema=schema))


def sends(number: int) -> bytes:
    """To a producer that there is not."""
    return encode(command("send", producer_id=9, sequence_id=number))


def others(name: str, **more: object) -> Callable[[int], bytes]:
    return lambda number: encode(command(name, request_id=number, **more))


FLOODS: dict[str, Callable[[int], bytes]] = {
    "lookup": lookups,
    "producer": producers,
    "subscribe": consumers,
    "get_schema": schemas,
    "put_schema": new_schemas,
    "send": sends,
    "partition_metadata": others("partition_metadata", topic="calm"),
    "topics_of": others("topics_of", namespace="public/default", mode=0),
    "consumer_stats": others("consumer_stats", consumer_id=9),
    "ack": others("ack", consumer_id=9, ack_type=0),
    "seek": others("seek", consumer_id=9),
    "not offered": others("new_txn"),
    "ping": lambda number: encode(command("ping")),
    "flow": lambda number: encode(command("flow", consumer_id=9, permits=5)),
}


@contextmanager
def attack(raw: Raw, data: Iterator[bytes]) -> Iterator[threading.Event]:
    """Sends all that is taken, and never reads. The event is set when nothing more is taken, or everything was."""
    one = raw.socket
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    one.settimeout(2)
    full = threading.Event()

    def send() -> None:
        try:
            for part in data:
                one.sendall(part)
        except OSError:  # nothing is read any more, or the connection was closed
            pass
        full.set()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield full
    finally:
        one.close()
        thread.join()


def flood(make: Callable[[int], bytes]) -> Iterator[bytes]:
    """CONNECT, and so many commands of a kind that they have FLOOD bytes, but no more than 200,000."""
    yield HELLO
    sent = 0
    for first in itertools.count(1, 100):
        part = b"".join(map(make, range(first, first + 100)))
        sent += len(part)
        yield part
        if sent > FLOOD or first > 200_000:
            return


@pytest.fixture(scope="module")
def large(server: Client) -> None:
    """A topic with a schema of the largest size."""
    raw = Raw(server.pulsar_service_url)
    raw.greet()
    schema = {"name": "s", "data": b"x" * LARGE_SCHEMA, "type": 1}
    raw.say("put_schema", topic="schema", request_id=1, schema=schema)
    assert raw.next("put_schema_answer").request_id == 1
    raw.close()


def check_costs_little(server: Client, open_: Callable[[], Raw], data: Iterator[bytes]) -> None:
    """A connection floods and reads nothing. Meanwhile another client connects and publishes."""
    before = resident()
    with attack(open_(), data) as full:
        client = joined(server)
        producer = client.create_producer("calm")
        for _ in range(20):
            producer.send(b"x")
        assert full.wait(120)
        producer.send(b"x")
        assert resident() - before < MOST_GROWTH
        client.close()
    with Raw(server.pulsar_service_url) as again:
        again.greet()
    assert resident() - before < MOST_GROWTH


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", FLOODS)
def test_stranger_that_floods_and_never_reads_costs_little(server: Client, name: str) -> None:
    check_costs_little(server, lambda: Raw(server.pulsar_service_url), flood(FLOODS[name]))


def test_before_the_greeting_little_is_kept(server: Client) -> None:
    """A frame larger than that is refused by its first bytes, and so are many that wait for a CONNECT's answer."""
    before = resident()
    strangers = [Raw(server.pulsar_service_url) for _ in range(100)]
    for each in strangers:
        each.send(U32.pack(5_000_000) + b"x" * 4_000_000)
    assert resident() - before < MOST_GROWTH
    assert all(each.closed() for each in strangers)
    assert resident() - before < MOST_GROWTH
    halves = [Raw(server.pulsar_service_url) for _ in range(100)]
    for each in halves:
        each.send(U32.pack(GREETING_BYTES - 10) + b"x" * (GREETING_BYTES - 100))
    with Raw(server.pulsar_service_url) as other:
        other.greet()
    assert resident() - before < MOST_GROWTH
    for each in halves:
        each.close()
