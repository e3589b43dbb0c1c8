"""Clients that are not let in or break the protocol: told, closed, and no other client feels anything."""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pulsar
import pytest

import sluice
from sluice.actors.pulsar.codec.frames import MAX_FRAME_BYTES, U32, encode
from sluice.actors.pulsar.codec.protocol import Command, ServerError, command
from sluice.actors.pulsar.conversation.consuming.wanted_consumer import ONE_HAS_ALL, TYPES
from sluice.cluster.client.client import Client
from sluice.cluster.gateway.ports import service_url
from sluice.cluster.gateway.tokens import Rejected, TokenAuthenticator
from sluice.cluster.launch.embedded import running
from sluice.cluster.settings.options import ClusterOptions
from tests.cluster.gateway.clients import EARLIEST, PATIENCE
from tests.cluster.gateway.raw import HELLO, Raw

pytestmark = pytest.mark.timeout(240)


BROKEN = [
    b"SSH-2.0-OpenSSH_9.2\r\n",
    encode(command("ping")),
    HELLO + U32.pack(MAX_FRAME_BYTES + 1) + b"\0" * 64,
    HELLO + U32.pack(2) + b"\0" * 64,
    HELLO + U32.pack(12) + U32.pack(200) + b"\0" * 64,
    HELLO + U32.pack(8) + U32.pack(4) + b"\xff\xff\xff\xff",
    HELLO + encode(Command(type=999)),
    HELLO + encode(Command(type=4)),
    *(HELLO + encode(command(name)) for name in ("success", "message", "send_receipt", "connected", "auth_response")),
]


@pytest.mark.parametrize("data", BROKEN, ids=range(len(BROKEN)))
def test_broken_protocol_is_told_and_closes_the_connection(
    server: Client, client: pulsar.Client, raw: Raw, data: bytes
) -> None:
    consumer = client.subscribe("calm", "s", initial_position=EARLIEST)
    raw.send(data)
    told = [answer for answer in iter(raw.read, None) if answer.HasField("error")]
    assert [answer.error.error for answer in told] == [ServerError.UNSUPPORTED_VERSION]
    client.create_producer("calm").send(b"x")
    message = consumer.receive(PATIENCE)
    assert message.data() == b"x"
    consumer.acknowledge(message)


def test_a_connection_that_is_reset_at_once_is_no_defect(server: Client) -> None:
    """Load balancers look in this way whether anybody listens, every few seconds."""
    loop, _, _ = server.owners()
    defects: list[dict[str, Any]] = []

    def look() -> None:
        """On the loop's own thread, so that it is reset before it is accepted."""
        loop.loop.set_exception_handler(lambda _, context: defects.append(context))
        visitor = Raw(server.pulsar_service_url)
        visitor.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        visitor.close()

    loop.ask(look)
    after = Raw(server.pulsar_service_url)
    after.send(HELLO)
    assert after.read().HasField("connected")
    after.close()
    loop.ask(lambda: loop.loop.set_exception_handler(None))
    assert defects == []


def test_every_request_is_answered_even_those_not_offered(raw: Raw) -> None:
    raw.send(HELLO)
    assert raw.read().HasField("connected")
    for number, name in enumerate(("new_txn", "txn_coordinator", "end_txn", "watch_topics"), 1):
        raw.send(encode(command(name, request_id=number)))
        answer = raw.read().error
        assert (answer.request_id, answer.error) == (number, ServerError.NOT_ALLOWED)
    raw.send(encode(command("seek", consumer_id=9, request_id=7)))
    assert raw.read().error.error == ServerError.CONSUMER_NOT_FOUND
    raw.send(encode(command("ack", consumer_id=9, request_id=8, ack_type=0)))
    assert raw.read().ack_answer.error == ServerError.CONSUMER_NOT_FOUND
    raw.send(encode(command("flow", consumer_id=9, permits=5)) + encode(command("ping")))
    assert raw.read().HasField("pong")


@pytest.mark.parametrize("name", ["lookup", "partition_metadata", "producer", "subscribe", "get_schema", "put_schema"])
def test_a_name_that_is_not_utf8_is_refused(raw: Raw, name: str) -> None:
    raw.greet()
    body = command(name, request_id=7)
    field = getattr(body, name).DESCRIPTOR.fields_by_name["topic"].number
    getattr(body, name).MergeFromString(bytes([field << 3 | 2, 2, 0xFF, 0xFE]))
    raw.send(encode(body))
    (_, told), *_ = [(field, value) for field, value in raw.read().ListFields() if field.message_type is not None]
    assert (told.request_id, told.error) == (7, ServerError.NOT_ALLOWED)
    assert "not UTF-8" in told.message


NOWHERE = [(1, 0), (5, 5), (1 << 31, 7), ((1 << 63) - 1, (1 << 63) - 1), (1 << 63, 3), ((1 << 64) - 1, (1 << 64) - 1)]


@pytest.mark.parametrize("kind", range(4), ids=TYPES)
@pytest.mark.parametrize("cumulative", [0, 1])
def test_acknowledgement_of_a_missing_message_is_answered(server: Client, raw: Raw, kind: int, cumulative: int) -> None:
    """And what comes later is delivered all the same."""
    topic = f"nowhere-{kind}-{cumulative}"
    raw.greet()
    raw.say("subscribe", topic=topic, subscription="s", type=kind, consumer_id=1, request_id=1, initial_position=1)
    raw.next("success")
    with server.create_producer(topic) as producer:
        place = producer.send(b"first", partition_key="k")
        ledger = int(str(place).partition(":")[0])
        more = {"ack_set": [-1] * 2_000 + [0]}
        ids = [
            {"ledger": ledger_id, "entry": entry, **more} for ledger_id, entry in (*NOWHERE, (ledger, 1), (ledger, 9))
        ]
        raw.say("ack", consumer_id=1, request_id=8, ack_type=cumulative, message_id=ids[-1:] if cumulative else ids)
        answer, refused = raw.next("ack_answer"), cumulative and TYPES[kind] not in ONE_HAS_ALL
        assert answer.request_id == 8
        assert answer.HasField("error") == refused
        producer.send(b"second", partition_key="k")
        raw.say("flow", consumer_id=1, permits=10)
        entries = [raw.next("message").message_id.entry for _ in range(1 if cumulative and not refused else 2)]
    assert entries[-1] == 1


@pytest.mark.parametrize("kind", range(4), ids=TYPES)
def test_acknowledgement_of_no_row_is_answered(server: Client, raw: Raw, kind: int) -> None:
    """Acknowledge an id with an ack_set that leaves everything open; later acknowledgements are confirmed."""
    topic = f"nothing-{kind}"
    raw.greet()
    raw.say("subscribe", topic=topic, subscription="s", type=kind, consumer_id=1, request_id=1, initial_position=1)
    raw.next("success")
    with server.create_producer(topic) as producer:
        place = producer.send(b"first", partition_key="k")
    ledger, entry = map(int, str(place).split(":")[:2])
    whole = {"ledger": ledger, "entry": entry}
    raw.say("ack", consumer_id=1, request_id=8, ack_type=0, message_id=[{**whole, "ack_set": [-1] * 2_000 + [0]}])
    assert raw.next("ack_answer").request_id == 8
    raw.say("flow", consumer_id=1, permits=10)
    assert raw.next("message").message_id.entry == entry
    raw.say("ack", consumer_id=1, request_id=9, ack_type=0, message_id=[whole])
    assert raw.next("ack_answer").request_id == 9


def test_a_connection_that_ends_gives_back_what_it_held(server: Client, raw: Raw) -> None:
    raw.send(HELLO)
    raw.read()
    topic = "persistent://public/default/handed"
    raw.send(encode(command("subscribe", topic=topic, subscription="s", type=3, consumer_id=1, request_id=1)))
    assert raw.read().HasField("success")
    raw.send(encode(command("flow", consumer_id=1, permits=10)))
    server.create_producer("handed").send(b"x", partition_key="k")
    assert raw.read().message.message_id.entry == 0
    raw.close()
    with server.subscribe("handed", "s", selector="consistent_hashing", initial_position="latest") as other:
        assert other.receive(PATIENCE).data() == b"x"


# -- tokens -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A secret."""
    file = tmp_path_factory.mktemp("key") / "token.key"
    file.write_bytes(secrets.token_bytes(32))
    file.chmod(0o600)
    return file


@pytest.fixture(scope="module")
def guarded(key: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a cluster that wants tokens."""
    folder = tmp_path_factory.mktemp("data")
    with running(ClusterOptions(data_dir=folder, pulsar_port=0, pulsar_token_key_file=str(key))):
        yield service_url(folder, 0)


def signed(key: Path, **claims: Any) -> str:
    return str(jwt.encode(claims, key.read_bytes(), "HS256"))


def test_valid_token_alone_lets_a_client_in(guarded: str, key: Path) -> None:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(guarded, authentication=pulsar.AuthenticationToken(signed(key, sub="till")), logger=quiet)
    client.create_producer("till").send(b"paid")
    client.close()
    wrong = jwt.encode({"sub": "till"}, secrets.token_bytes(32), "HS256")
    for token in (None, wrong, signed(key, sub="till", exp=time.time() - 60)):
        raw = Raw(guarded)
        more = {} if token is None else {"auth_method_name": "token", "auth_data": token.encode()}
        raw.send(encode(command("connect", client_version="raw", protocol_version=20, **more)))
        assert raw.read().error.error == ServerError.AUTHENTICATION
        assert raw.closed()


def test_tokens_are_verified(key: Path, tmp_path: Path) -> None:
    known = TokenAuthenticator(key)
    assert known(signed(key, sub="till", exp=4_000_000_000).encode()).role == "till"
    nobody = jwt.encode({"sub": "till"}, None, "none")
    for token in (nobody, "x", signed(key)):
        with pytest.raises(Rejected):
            known(token.encode())
    key.chmod(0o644)
    with pytest.raises(sluice.Invalid, match="readable by others"):
        TokenAuthenticator(key)
    key.chmod(0o600)
    (tmp_path / "short").write_bytes(b"x" * 31)
    (tmp_path / "short").chmod(0o600)
    for file in (tmp_path / "short", tmp_path / "none"):
        with pytest.raises(sluice.Invalid):
            TokenAuthenticator(file)
