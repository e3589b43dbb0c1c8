"""How much one client can ask for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pulsar
import pytest

import sluice
from sluice.actors.pulsar.codec.frames import encode
from sluice.actors.pulsar.codec.protocol import ServerError, command
from sluice.actors.pulsar.conversation import client_session
from sluice.actors.pulsar.conversation.limits import intake
from sluice.cluster.gateway import listener
from sluice.cluster.gateway.ports import service_url
from sluice.cluster.launch.embedded import running
from sluice.cluster.settings.config import load
from sluice.cluster.settings.options import ClusterOptions
from tests.cluster.gateway.clients import EARLIEST, received
from tests.cluster.gateway.raw import Raw

pytestmark = pytest.mark.timeout(240)


MOST, MOST_PER_ADDRESS = 4, 2
HERE, ELSEWHERE, ANYWHERE = "127.0.0.1", "127.0.0.2", "127.0.0.3"


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a gateway that allows few connections."""
    options = ClusterOptions(
        tmp_path, pulsar_port=0, pulsar_max_connections=MOST, pulsar_max_connections_per_address=MOST_PER_ADDRESS
    )
    with running(options):
        yield service_url(tmp_path, 0)


def let_in(url: str, address: str = HERE) -> Raw:
    """A client from this address that has said who it is."""
    one = Raw(url, address)
    one.greet()
    return one


def test_one_connection_too_many_is_closed_and_the_others_stay(crowded: str) -> None:
    """Check the limit of one address, and the limit of all."""
    with ExitStack() as stack:
        stay = [stack.enter_context(let_in(crowded)) for _ in range(MOST_PER_ADDRESS)]
        assert Raw(crowded).closed()
        stay += [stack.enter_context(let_in(crowded, ELSEWHERE)) for _ in range(MOST - MOST_PER_ADDRESS)]
        assert Raw(crowded, ANYWHERE).closed()
        for one in stay:
            one.say("ping")
            assert one.read().HasField("pong")
        stay[0].close()
        while (another := Raw(crowded, ANYWHERE)).refused():  # until the gateway has heard of it
            another.close()
        another.close()


def test_a_stranger_makes_way_for_who_comes(crowded: str) -> None:
    """One of the same address, where that has as many as it may have; else the first of those that were not let in."""
    with ExitStack() as stack:
        strangers = [stack.enter_context(Raw(crowded, address)) for address in (ELSEWHERE, HERE, ANYWHERE, ANYWHERE)]
        stack.enter_context(let_in(crowded, ANYWHERE))
        assert strangers[2].closed()
        stack.enter_context(let_in(crowded))
        assert strangers[0].closed()
        for one in (strangers[1], strangers[3]):
            one.greet()


def test_limits_of_connections_are_settings(tmp_path: Path) -> None:
    given = load(None, data_dir=tmp_path, pulsar_max_connections="7", pulsar_web_max_connections=8).values
    options = given.cluster_options().settings()
    assert (options["pulsar_max_connections"], options["pulsar_web_max_connections"]) == (7, 8)
    assert options["pulsar_max_connections_per_address"] == 500
    with pytest.raises(sluice.Invalid, match="pulsar_max_connections_per_address"):
        load(None, data_dir=tmp_path, pulsar_max_connections_per_address=0)


def test_one_producer_or_consumer_too_many_is_refused(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_session, "MOST_HANDLES", 2)
    raw.greet()
    raw.say("producer", topic="many", producer_id=0, request_id=1)
    assert raw.next("producer_success").request_id == 1
    raw.say("subscribe", topic="many", subscription="s", consumer_id=0, request_id=2)
    assert raw.next("success").request_id == 2
    raw.say("producer", topic="many", producer_id=1, request_id=3)
    raw.say("subscribe", topic="many", subscription="t", consumer_id=1, request_id=4)
    refused = [raw.next("error") for _ in range(2)]
    assert {each.request_id for each in refused} == {3, 4}
    assert {each.error for each in refused} == {ServerError.TOO_MANY_REQUESTS}
    raw.say("close_producer", producer_id=0, request_id=5)
    assert raw.next("success").request_id == 5
    raw.say("producer", topic="many", producer_id=1, request_id=6)
    assert raw.next("producer_success").request_id == 6


def test_fast_producer_waits_for_the_storage(client: pulsar.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything arrives all the same, in order."""
    monkeypatch.setattr(intake, "PENDING_BYTES", 20_000)
    paused = itertools.count()
    before = listener._Socket.pause

    def pause(socket: listener._Socket) -> None:
        next(paused)
        before(socket)

    monkeypatch.setattr(listener._Socket, "pause", pause)
    consumer = client.subscribe("flooded", "s", initial_position=EARLIEST)
    producer = client.create_producer("flooded", batching_enabled=False, block_if_queue_full=True)
    for number in range(400):
        producer.send_async(b"%03d" % number + b"x" * 1_000, lambda *_: None)
    producer.flush()
    assert [int(message.data()[:3]) for message in received(consumer, 400)] == list(range(400))
    assert next(paused) > 0


def test_a_message_that_is_too_large_is_refused_by_its_answer(raw: Raw) -> None:
    """A batch in which one message claims to be larger than a frame can be."""
    raw.greet()
    raw.say("producer", topic="large", producer_id=0, request_id=1)
    assert raw.next("producer_success").request_id == 1
    metadata = b"\x0a\x01p\x10\x00\x18\x01\x58\x01"  # producer_name, sequence_id, publish_time, one message in a batch
    body = len(metadata).to_bytes(4, "big") + metadata + b"\x00\x00\x00\x05\x18\xff\xff\xff\x7f"
    head = encode(command("send", producer_id=0, sequence_id=7, num_messages=1))[4:]
    raw.send((len(head) + len(body)).to_bytes(4, "big") + head + body)
    refused = raw.next("send_error")
    assert (refused.sequence_id, refused.error) == (7, ServerError.NOT_ALLOWED)
    raw.say("ping")
    assert raw.next("pong") is not None
