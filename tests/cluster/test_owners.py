"""Processes that are frozen and come back: owners of topics and dispatchers, and consumers beyond their lease."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import sluice
from sluice.cluster.client.blocking import Consumer
from sluice.cluster.client.client import Client
from sluice.cluster.client.message import Batch
from sluice.cluster.client.receipts import Receipt
from sluice.cluster.launch import launch
from sluice.cluster.node.sessions import runs
from tests.cluster.helpers import (
    PATIENCE_MS,
    PATIENCE_S,
    PYTHON,
    ROOT,
    SMALL,
    Received,
    actors,
    batch,
    eventually,
    pid_of,
    rows,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1200)]

KEYS, EACH = 40, 20


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One cluster for all tests of this module."""
    with launch.local(tmp_path_factory.mktemp("owners"), brokers=2, **SMALL), sluice.connect() as connected:
        yield connected


class Workers:
    """Consumers that keep each batch for a while; no key may be with two of them at a time."""

    def __init__(self, consumers: list[Consumer]) -> None:
        self.consumers = consumers
        self.received = Received()
        self._pending: list[list[Batch]] = [[] for _ in consumers]

    def turn(self) -> int:
        """Each takes what has come, after it has finished the first of what it had. Returns how many keys were seen."""
        for number, consumer in enumerate(self.consumers):
            pending = self._pending[number] = [one for one in self._pending[number] if not one.received.revoked]
            if pending:
                consumer.acknowledge(pending.pop(0))
            got = consumer.receive_batch(20)
            if got is None:
                continue
            mine = set(got.rows["key"].to_pylist())
            for other, held in enumerate(self._pending):
                for one in held:
                    if other != number and not one.received.revoked:
                        both = mine & set(one.rows["key"].filter(one.received.open).to_pylist())
                        assert not both, f"{both} are with two consumers at once"
            pending.append(got)
            for key, payload in zip(got.rows["key"].to_pylist(), got.rows["payload"].to_pylist(), strict=True):
                self.received.by_key.setdefault(key.decode(), []).append(int(payload))
        return len(self.received.by_key)

    def finish(self, keys: int, each: int) -> None:
        """Go on until everything has come and is acknowledged."""

        def done() -> bool:
            self.turn()
            return self.received.complete(keys, each) and not any(self._pending)

        eventually(done, lambda: self.received.missing(keys, each))
        self.received.check(keys, each)

        def durable() -> bool:
            for consumer in self.consumers:
                consumer.wait_acknowledged(PATIENCE_MS)  # who lost a session is told once, and its messages come again
            return done()

        eventually(durable, "not everything is acknowledged for good")


@pytest.mark.parametrize("kind", ["topic", "dispatcher"])
def test_a_frozen_owner_that_comes_back_breaks_nothing(client: Client, kind: str) -> None:
    """SIGSTOP under load until a second owner is at work, SIGCONT under load: nothing lost, twice or out of order."""
    topic = f"frozen-{kind}"
    client.create_topic(topic)
    client.subscribe(topic, "audit", initial_position="earliest").close()  # keeps every entry from being trimmed
    workers = Workers(
        [client.subscribe(topic, "s", initial_position="earliest", receiver_queue_size=200) for _ in range(3)]
    )
    producer = client.create_producer(topic)
    receipts: list[Receipt] = []

    def load() -> None:
        receipts.append(producer.send_batch(batch(KEYS, EACH, first=EACH * len(receipts))))
        workers.turn()

    for _ in range(5):
        load()
    eventually(workers.turn, "nothing was delivered")
    before = actors(client, kind, f"{topic}/0" if kind == "topic" else f"{topic}/0/s")[0]
    (epoch,) = [row["epoch"] for row in client.stats(topic)]
    victim = pid_of(before["address"])
    os.kill(victim, signal.SIGSTOP)
    try:
        for _ in range(5):
            load()

        def replaced() -> bool:
            workers.turn()
            return any(row["address"] != before["address"] for row in actors(client, kind, before["name"]))

        eventually(replaced, "a frozen owner is not replaced")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGCONT)
    for _ in range(5):
        load()
    workers.finish(KEYS, EACH * len(receipts))
    for receipt in receipts:
        assert (receipt.result(PATIENCE_S).positions >= 0).all()
    (stats,) = client.stats(topic)
    assert stats["epoch"] > epoch
    assert stats["numberOfEntries"] == KEYS * EACH * len(receipts), "a late write of the frozen owner was taken"
    eventually(lambda: rows(client, topic, "s", "msgBacklog") == 0, "the backlog stays")
    assert rows(client, topic, "s", "orderViolationsTotal") == 0
    for consumer in workers.consumers:
        consumer.close()


def test_new_client_waits_for_a_controller_that_is_away(client: Client) -> None:
    """A client that never asked anything: nothing that it could know from before helps it."""
    client.create_topic("waiting", partitions=2)
    victim = psutil.Process(pid_of("controller/controller"))
    victim.kill()
    with Client() as other:
        consumer = other.subscribe("waiting", "s", initial_position="earliest")
        with other.create_producer("waiting") as producer:
            producer.send(b"x", partition_key="k")
        assert other.topics()
        consumer.close()
    eventually(lambda: pid_of("controller/controller") != victim.pid, "the controller does not come back")


CONSUMER = """
import sys
import sluice
with sluice.connect(sys.argv[1]) as client:
    consumer = client.subscribe("lease", "s", initial_position="earliest", consumer_name="sleeper", lease_ms=3000,
                                on_ranges=lambda partition, kind, ranges: print(kind, flush=True))
    held = []
    while sum(len(batch) for batch in held) < 100:
        got = consumer.receive_batch(1000)
        if got is not None:
            held.append(got)
    print("holding", flush=True)
    sys.stdin.readline()
    late = consumer.receive_batch(0)
    for batch in held:
        consumer.acknowledge(batch)
    try:
        consumer.wait_acknowledged()
        print("confirmed", flush=True)
    except sluice.Fenced:
        print("Fenced", flush=True)
    print("late", 0 if late is None else len(late), flush=True)
    sys.stdin.readline()
"""


def test_a_consumer_frozen_beyond_its_lease_is_fenced(client: Client) -> None:
    """Messages of the frozen consumer go to others in order; when it goes on, its acknowledgements count for
    nothing.
    """
    client.create_topic("lease")
    producer = client.create_producer("lease")
    producer.send_batch(batch(10, 10)).result(PATIENCE_S)
    address = os.environ["SLUICE_INTERNAL_ADDRESS"]
    sleeper = subprocess.Popen(
        [PYTHON, "-c", CONSUMER, address],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert sleeper.stdin is not None
    assert sleeper.stdout is not None
    try:
        said = [sleeper.stdout.readline().strip()]
        while said[-1] != "holding":
            assert said[-1], "the consumer ended"
            said.append(sleeper.stdout.readline().strip())
        os.kill(sleeper.pid, signal.SIGSTOP)
        other = client.subscribe("lease", "s", consumer_name="other", lease_ms=3_000, initial_position="earliest")
        producer.send_batch(batch(10, 10, first=10)).result(PATIENCE_S)
        received = Received()
        eventually(lambda: received.take([other], acknowledge=False) >= 0 and received.count == 200, "not given on")
        received.check(10, 20)
        os.kill(sleeper.pid, signal.SIGCONT)
        sleeper.stdin.write("\n")
        sleeper.stdin.flush()
        while not said[-1].startswith("late"):
            assert said[-1] or len(said) == 1, "the consumer ended"
            said.append(sleeper.stdout.readline().strip())
        assert "lost" in said, said
        assert "confirmed" not in said or said.index("lost") < said.index("confirmed"), said
        assert said[-1] == "late 0", said
        assert rows(client, "lease", "s", "msgBacklog") == 200, "a late acknowledgement was taken"
        assert other.held() == 200
        assert received.take([other], timeout_millis=200) == 0
    finally:
        sleeper.kill()
        sleeper.wait()
    other.close()


def test_the_killed_controller_comes_back_by_itself(client: Client) -> None:
    """SIGKILL of its process: traffic goes on, it watches again without being asked, and restarts what died."""
    client.create_topic("steady", partitions=2)
    workers = Workers([client.subscribe("steady", "s", initial_position="earliest") for _ in "ab"])
    producer = client.create_producer("steady")
    producer.send_batch(batch(KEYS, EACH)).result(PATIENCE_S)
    (bookie,) = actors(client, "bookie", "bookie-2")
    victims = [pid_of("controller/controller"), pid_of(bookie["address"])]
    dying = [psutil.Process(victim) for victim in victims]
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    eventually(lambda: not any(runs(process) for process in dying), "killed processes live on")
    producer.send_batch(batch(KEYS, EACH, first=EACH)).result(PATIENCE_S)
    workers.finish(KEYS, 2 * EACH)

    # Its process says that the bookie is back: a question could be what woke the controller.
    lock = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).parent / "bookies" / "bookie-2" / ".lock"
    eventually(lambda: locked(lock), "the bookie does not come back")
    eventually(lambda: pid_of("controller/controller") not in victims, "the controller does not come back")
    eventually(lambda: actors(client, "bookie", "bookie-2"), "the controller does not know the bookie")
    client.create_topic("afterwards", ensemble=3)
    with client.create_producer("afterwards") as after:
        after.send(b"x", partition_key="k")
    for consumer in workers.consumers:
        consumer.close()


def locked(path: Path) -> bool:
    """Whether a bookie is on its disk."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_waiting_process_takes_over_and_is_known_afterwards(client: Client) -> None:
    """SIGKILL of an owner's process, then of the controller: the stand-in goes on and is not taken for waiting."""
    client.create_topic("stand-in")
    producer = client.create_producer("stand-in")
    producer.send(b"1", partition_key="k")
    eventually(waiting, "no process waits to take over")
    waited = waiting()
    (topic,) = actors(client, "topic", "stand-in")
    os.kill(pid_of(topic["address"]), signal.SIGKILL)
    producer.send(b"2", partition_key="k")
    (topic,) = actors(client, "topic", "stand-in")
    stand_in = topic["address"].partition("/")[0]
    assert stand_in in waited
    controller = psutil.Process(pid_of("controller/controller"))
    controller.kill()
    eventually(lambda: not runs(controller), "the controller does not die")
    client.create_topic("stand-in-2")  # the next controller starts whatever is missing
    eventually(waiting, "no other process waits to take over")
    assert stand_in not in waiting()
    (topic,) = actors(client, "topic", "stand-in/")
    assert topic["address"].partition("/")[0] == stand_in
    producer.send(b"3", partition_key="k")
    assert client.stats("stand-in")[0]["msgInCounter"] >= 1
    producer.close()


def waiting() -> list[str]:
    """Hosts that were made to take over, and serve nobody yet."""
    import ray

    rows = ray.util.list_named_actors(all_namespaces=True)
    names = [row["name"] for row in rows if row["name"].startswith("broker-standby-")]
    return [name for name in names if not ray.get(ray.get_actor(name, "sluice").introduce.remote(), timeout=60)[0]]
