"""A cluster in one process: no Ray, the same promises, whatever of it fails and however the process ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sluice
from sluice.actors.controller.crash_loop_detector import SAME_ENDS
from sluice.cluster.client.blocking import Consumer
from sluice.cluster.client.client import Client
from sluice.cluster.host.stores import METADATA_FILE
from sluice.cluster.launch import embedded
from sluice.cluster.launch.embedded import EmbeddedCluster
from sluice.cluster.settings.options import ClusterOptions
from sluice.storage.errors import AccessDenied, Corrupt, Invalid, SluiceError
from sluice.storage.stores.metadata import NewVersion
from sluice.storage.stores.metadata_sqlite import SqliteMetadata, witness_of
from tests.cluster.helpers import PATIENCE_MS, PATIENCE_S, PYTHON, ROOT, Received, batch, eventually, rows

pytestmark = pytest.mark.timeout(300)

HEAVY = ("ray", "pyspark", "boto3", "botocore", "pydantic", "aiohttp", "grpc", "typer", "rich", "plotly")


def begin(program: str, *arguments: str) -> subprocess.Popen[str]:
    """A program of a user, in a process of its own."""
    command = [PYTHON, "-c", program, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(program: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of such a program."""
    child = begin(program, *arguments)
    output, errors = child.communicate(timeout=PATIENCE_S)
    return child.returncode, output, errors


@pytest.fixture
def one(tmp_path: Path) -> Iterator[tuple[EmbeddedCluster, Client]]:
    """A cluster, and a client of it, on a folder."""
    options = ClusterOptions(data_dir=tmp_path / "data")
    with embedded.running(options) as inner, Client(None, inner.net, inner.loop) as client:
        yield inner, client


def opened(client: Client, partitions: int = 2) -> tuple[Any, Consumer]:
    """A producer and a consumer of a new topic."""
    client.create_topic("orders", partitions)
    return client.create_producer("orders"), client.subscribe("orders", "billing", initial_position="earliest")


def drained(client: Client, consumer: Consumer, keys: int, each: int) -> Received:
    """Everything that was published, in order, acknowledged for good."""
    got = Received()
    eventually(lambda: got.take([consumer]) is not None and got.complete(keys, each), lambda: got.missing(keys, each))
    got.settle([consumer], client, "orders", "billing")
    got.check(keys, each)
    return got


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"admin_port": 65536}, "admin_port is a number from 0 to 65535, not 65536"),
        ({"admin_port": -1}, "admin_port is a number from 0 to 65535, not -1"),
        ({"admin_port": "8080"}, "admin_port is a number from 0 to 65535, not '8080'"),
        ({"pulsar_port": 1.5}, "pulsar_port is a number from -1 to 65535, not 1.5"),
        ({"admin_port": 0, "data_dir": None}, "admin_port needs a data_dir"),
        ({"admin_port": 0, "embedded": False}, "admin_port is for a cluster in this process"),
    ],
)
def test_bad_port_is_refused_in_one_line(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    call: dict[str, Any] = {"embedded": True, "data_dir": tmp_path, **given}
    with pytest.raises(sluice.Invalid) as refused:
        sluice.connect(**call)
    assert str(refused.value).startswith(told)
    assert "\n" not in str(refused.value)


# -- what it does -----------------------------------------------------------------------------------------------------


def test_messages_columns_delays_and_large_payloads() -> None:
    with sluice.connect(embedded=True) as client:
        producer, consumer = opened(client)
        large = os.urandom(1 << 20)
        producer.send(b"late", partition_key="k", deliver_after=timedelta(milliseconds=1))
        producer.send(large, partition_key="large")
        producer.send_batch(batch(10, 20))
        payloads: list[bytes] = []
        while len(payloads) < 202:
            message = consumer.receive(PATIENCE_MS)
            payloads.append(message.data())
            consumer.acknowledge(message)
        assert large in payloads
        assert b"late" in payloads
        assert len(set(payloads)) == 22
        consumer.wait_acknowledged(PATIENCE_MS)
        assert sum(row["msgBacklog"] for row in client.stats("orders", "billing")) == 0
        assert client.alarms() == []


def test_the_lowest_priority_level_is_the_active_consumer(one: tuple[EmbeddedCluster, Client]) -> None:
    """In a failover subscription a later consumer takes over too; another level is refused before any owner is
    asked.
    """
    _, client = one
    client.create_topic("orders", 1)
    first = client.subscribe("orders", "s", type="failover", consumer_name="first", priority_level=1)
    second = client.subscribe("orders", "s", type="failover", consumer_name="second", priority_level=0)
    client.create_producer("orders").send(b"x", partition_key="k")
    assert second.receive(timeout_millis=PATIENCE_MS).data() == b"x"
    (row,) = client.stats("orders", "s")
    assert {each["consumerName"]: each["priorityLevel"] for each in row["consumers"]} == {"first": 1, "second": 0}
    with pytest.raises(sluice.Invalid, match="priority_level is a whole number, 0 to"):
        client.subscribe("orders", "s", type="failover", priority_level=-1)
    first.close()


def test_partitions_wait_for_their_writes_together(one: tuple[EmbeddedCluster, Client]) -> None:
    """In turn, sixteen partitions would need sixteen syncs of the disk, and as many round trips."""
    inner, client = one
    producer, consumer = opened(client, 16)
    for number in range(200):
        producer.send_async(b"x", partition_key=str(number))
    for _ in range(200):
        consumer.acknowledge(consumer.receive(PATIENCE_MS))
    written: list[str] = []
    store = inner._stores[0].store
    assert isinstance(store, SqliteMetadata)
    store._connection.set_trace_callback(written.append)
    consumer.wait_acknowledged()
    store._connection.set_trace_callback(None)
    assert 0 < written.count("COMMIT") < 8


@pytest.mark.parametrize("error", [AccessDenied, Invalid, Corrupt])
def test_acknowledging_goes_on_after_a_store_refused(
    one: tuple[EmbeddedCluster, Client], error: type[SluiceError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a store says while it refuses, it says nothing about what is stored; then it serves again."""
    inner, client = one
    producer, consumer = opened(client, 1)
    producer.send_batch(batch(5, 20)).result()
    message = consumer.receive(PATIENCE_MS)
    store = inner._stores[0].store
    assert isinstance(store, SqliteMetadata)
    create_many, refused = store.create_many, [0]

    def refuse(versions: Sequence[NewVersion]) -> list[bool]:
        if refused[0] < 5 and any(key.startswith("subscription/") for key, _, _ in versions):
            refused[0] += 1
            raise error("the token has expired")
        return create_many(versions)

    monkeypatch.setattr(store, "create_many", refuse)
    consumer.acknowledge(message)
    consumer.wait_acknowledged(PATIENCE_MS)
    assert refused == [5]
    for _ in range(99):
        consumer.acknowledge(consumer.receive(PATIENCE_MS))
    consumer.wait_acknowledged(PATIENCE_MS)
    assert rows(client, "orders", "billing", "msgBacklog") == 0


def test_later_change_of_columns_changes_no_message(one: tuple[EmbeddedCluster, Client]) -> None:
    """Requests pass the codec within a process too."""
    _, client = one
    producer, consumer = opened(client, 1)
    payload = bytearray(b"x" * 100_000)
    columns = pa.record_batch({"key": ["k"], "payload": pa.array([bytes(payload)], pa.binary())})
    producer.send_batch(columns)
    payload[:] = b"y" * len(payload)
    assert consumer.receive(PATIENCE_MS).data() == b"x" * 100_000


def test_a_folder_of_its_own_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with sluice.connect(embedded=True) as client:
        client.create_topic("orders")
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_address_has_no_place_in_one_process() -> None:
    with pytest.raises(sluice.Invalid, match="not both"):
        sluice.connect("127.0.0.1:1", embedded=True)


QUICK = """
import json, sys
import sluice
with sluice.connect(embedded=True) as client:
    client.create_topic("orders")
    producer = client.create_producer("orders")
    consumer = client.subscribe("orders", "billing", initial_position="earliest")
    producer.send(b"paid", partition_key="k")
    consumer.acknowledge(consumer.receive(240_000))
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_the_way_to_it_imports_nothing_heavy() -> None:
    """The embedded broker is ready before Ray alone would be imported."""
    code, output, errors = run(QUICK)
    assert (code, errors) == (0, "")
    assert set(json.loads(output)) & set(HEAVY) == set()


# -- what fails -------------------------------------------------------------------------------------------------------


def kill(inner: EmbeddedCluster, kind: str) -> str:
    """End an actor of a kind as a defect would; returns the address that it had."""
    address = next(address for found, address, _ in inner.actors.inventory() if found == kind)
    inner.loop.soon(inner.actors.drop, address.partition("/")[2], "killed by a test")
    return address


@pytest.mark.parametrize("kind", ["topic", "dispatcher", "bookie", "controller"])
def test_messages_go_on_when_an_actor_is_killed(one: tuple[EmbeddedCluster, Client], kind: str) -> None:
    """The actor comes back under a new address (the controller under its own), and nothing is lost or out of order."""
    inner, client = one
    producer, consumer = opened(client)
    producer.send_batch(batch(5, 10))
    address = kill(inner, kind)
    producer.send_batch(batch(5, 10, first=10))
    drained(client, consumer, 5, 20)

    def healed() -> bool:
        running = [address for found, address, _ in inner.actors.inventory() if found == kind]
        counts = {"topic": 2, "dispatcher": 2, "bookie": 3, "controller": 1}
        return len(running) == counts[kind] and (kind == "controller" or address not in running)

    eventually(healed, f"no {kind} came back")
    eventually(lambda: client.alarms() == [], lambda: str(client.alarms()))


HOLD = """
import sys, time
import sluice
client = sluice.connect(embedded=True, data_dir=sys.argv[1])
client.create_topic("orders", 2)
producer = client.create_producer("orders")
consumer = client.subscribe("orders", "billing", initial_position="earliest")
for number in range(10**6):
    producer.send(str(number // 5).encode(), partition_key=f"key-{number % 5}")
    print(number, flush=True)
"""


def test_an_owner_that_ends_again_and_again_is_an_alarm(one: tuple[EmbeddedCluster, Client]) -> None:
    """The owner is started again each time, so only an alarm tells that a partition is hardly served."""
    inner, client = one
    client.create_topic("orders")
    client.create_producer("orders").send(b"paid")

    def owners() -> list[str]:
        return [address for kind, address, _ in inner.actors.inventory() if kind == "topic"]

    for _ in range(SAME_ENDS):
        assert client.alarms() == []
        ended = kill(inner, "topic")
        eventually(lambda ended=ended: owners() and ended not in owners(), "no owner came back")  # type: ignore[misc]
    alarm = "topic/orders/0 is running: it has ended 3 times for the same reason: killed by a test"
    eventually(lambda: client.alarms() == [alarm], lambda: str(client.alarms()))


PUBLISH_AND_DIE = """
import os, signal, sys
import sluice
from tests.cluster.helpers import batch
client = sluice.connect(embedded=True, data_dir=sys.argv[1])
client.create_topic("orders", 2)
producer = client.create_producer("orders")
producer.send_batch(batch(7, 420)).result()
os.kill(os.getpid(), signal.SIGKILL)
"""


UP = "import sys; from sluice.cli.exit_codes import run; sys.exit(run(sys.argv[1:]))"


def test_a_killed_process_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    child = begin(HOLD, str(tmp_path))
    assert child.stdout is not None
    for _ in range(50):
        assert child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    confirmed = 50 + len([line for line in child.communicate()[0].splitlines() if line.isdecimal()])
    with sluice.connect(embedded=True, data_dir=tmp_path) as client:
        consumer = client.subscribe("orders", "billing")
        got = Received()
        eventually(lambda: got.take([consumer]) is not None and got.count >= confirmed, lambda: str(got.by_key))
    for numbers in got.by_key.values():
        assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_damaged_metadata_log_is_refused_untouched(tmp_path: Path, damage: str) -> None:
    """SQLite takes damage for the end of its log, and what was confirmed would read as never written."""
    code, _, errors = run(PUBLISH_AND_DIE, str(tmp_path))
    assert code == -signal.SIGKILL, errors
    log = tmp_path / "metadata.db-wal"
    data = bytearray(log.read_bytes())
    data[len(data) // 3] ^= 1
    log.write_bytes(data if damage == "flipped" else log.read_bytes()[: len(data) // 2])
    before = {
        path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".cluster.lock"
    }
    with pytest.raises(sluice.Invalid, match=r"metadata\.db.*(is damaged|gone back in time)") as told:
        sluice.connect(embedded=True, data_dir=tmp_path)
    assert "\n" not in str(told.value)
    assert {path: path.read_bytes() for path in before} == before
    code, _, errors = run(UP, "up", "--embedded", "--data-dir", str(tmp_path))
    assert (code, len(errors.splitlines())) == (2, 1), errors
    assert {path: path.read_bytes() for path in before} == before


def test_second_process_on_a_folder_names_the_first(tmp_path: Path) -> None:
    child = begin(HOLD, str(tmp_path))
    try:
        assert child.stdout is not None
        assert child.stdout.readline()
        with pytest.raises(sluice.Invalid, match=rf"another process \({child.pid}, .*wait for it, or end it") as told:
            sluice.connect(embedded=True, data_dir=tmp_path)
        assert "\n" not in str(told.value)
    finally:
        child.kill()
        child.communicate()
    sluice.connect(embedded=True, data_dir=tmp_path).close()


def test_the_same_process_twice_on_a_folder(tmp_path: Path) -> None:
    with (
        sluice.connect(embedded=True, data_dir=tmp_path),
        pytest.raises(sluice.Invalid, match="this process itself"),
    ):
        sluice.connect(embedded=True, data_dir=tmp_path)


FORGETFUL = """
import sys
import sluice
client = sluice.connect(embedded=True, data_dir=sys.argv[1])
client.create_topic("orders", 2)
producer = client.create_producer("orders")
consumer = client.subscribe("orders", "billing", initial_position="earliest")
producer.send(b"0", partition_key="k")
consumer.acknowledge(consumer.receive(240_000))
"""


def test_a_program_that_closes_nothing_ends_quietly(tmp_path: Path) -> None:
    code, _, errors = run(FORGETFUL, str(tmp_path))
    assert (code, errors) == (0, "")
    with sluice.connect(embedded=True, data_dir=tmp_path) as client:
        assert [row["topic"] for row in client.topics()] == ["orders"]


def test_folder_can_be_opened_again_and_again(tmp_path: Path) -> None:
    """Subscriptions, acknowledgements and producers' sequences are where they were."""
    for number in range(3):
        with sluice.connect(embedded=True, data_dir=tmp_path) as client:
            client.create_topic("orders", 1)
            producer = client.create_producer("orders", "one")
            consumer = client.subscribe("orders", "billing", initial_position="earliest")
            producer.send(str(number).encode(), partition_key="k")
            message = consumer.receive(PATIENCE_MS)
            assert message.data() == str(number).encode()
            consumer.acknowledge(message)
            consumer.wait_acknowledged(PATIENCE_MS)


def test_ledgers_that_the_metadata_does_not_know_are_an_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older copy of the metadata was put back: nothing of what only the bookies know is deleted."""
    monkeypatch.setattr("sluice.actors.controller.controller.FIRST_LEFTOVERS_MS", 50)
    folder, copy = tmp_path / "data", tmp_path / "copy"
    file = folder / METADATA_FILE
    with sluice.connect(embedded=True, data_dir=folder) as client:
        client.create_topic("orders", 1)
    shutil.copy(file, copy)
    with sluice.connect(embedded=True, data_dir=folder) as client:
        client.create_producer("orders").send(b"newer", partition_key="k")
    newer = file.read_bytes()
    shutil.copy(copy, file)
    witness_of(file).unlink()
    with sluice.connect(embedded=True, data_dir=folder) as client:
        eventually(lambda: len(client.alarms()) == 2, lambda: str(client.alarms()))
        assert all("holds 1 ledger that the metadata does not know" in alarm for alarm in client.alarms())
    file.write_bytes(newer)
    witness_of(file).unlink()
    with sluice.connect(embedded=True, data_dir=folder) as client:
        consumer = client.subscribe("orders", "billing", initial_position="earliest")
        assert consumer.receive(PATIENCE_MS).data() == b"newer"
