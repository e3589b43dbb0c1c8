"""Several Ray nodes on one machine: where actors go, and what the loss of a node does to them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import sluice
from sluice.cluster.client.blocking import Producer
from sluice.cluster.client.client import Client
from sluice.cluster.client.receipts import Receipt
from sluice.cluster.launch import launch
from sluice.cluster.node.environment import TOKEN_PATH
from sluice.cluster.node.folder import STATE_FILE
from sluice.cluster.node.sessions import count_nodes, processes_of, runs
from tests.cluster.helpers import (
    PATIENCE_S,
    Received,
    actors,
    attached,
    batch,
    eventually,
    pid_of,
    rows,
    session_of,
    values,
)

KEYS, EACH = 40, 20
PR_SET_CHILD_SUBREAPER = 36

ray_test = pytest.mark.ray
pytestmark = [pytest.mark.timeout(1500)]


def test_a_process_that_ends_while_nodes_are_counted_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was killed a moment ago is still listed, and then it has no name."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    seen = psutil.Process(child.pid)
    child.communicate()
    monkeypatch.setattr("sluice.cluster.node.sessions.processes_of", lambda session: [seen])
    assert count_nodes("anywhere") == 0


# -- real nodes -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def three_nodes(folder: Path) -> Iterator[Path]:
    """The data folder of a cluster of three nodes. Their processes become children of this one, so it can reap them."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        assert launch.up(values(folder, bookies=3, brokers=3), 3)["nodes"] == 3
        yield folder
    finally:
        if (folder / STATE_FILE).exists():
            launch.down(folder)
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cluster of most of these tests."""
    with three_nodes(tmp_path_factory.mktemp("nodes") / "data") as folder:
        yield folder


@pytest.fixture
def client(data: Path) -> Iterator[Client]:
    """A client of it, with three nodes and every actor at work."""
    launch.up(values(data, bookies=3, brokers=3), 3)
    with attached(data) as connected:
        eventually(lambda: len(live_nodes()) == 3, "a node is missing")
        eventually(lambda: len(actors(connected, "bookie")) == 3, "a bookie is missing")
        yield connected


def live_nodes() -> list[dict[str, Any]]:
    """Rows of Ray's own list."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def node_of(address: str) -> str:
    """The id of the node that an actor runs on; empty if Ray knows no such process any more."""
    import ray

    try:
        host = ray.get_actor(address.partition("/")[0], "sluice")
        return str(ray.get(host.node.remote(), timeout=60))
    except (ValueError, ray.exceptions.RayActorError):
        return ""


def raylet_of(session: str, node: dict[str, Any]) -> psutil.Process:
    """The process that is a node."""
    for process in processes_of(session):
        with contextlib.suppress(psutil.Error):
            ports = [each.laddr.port for each in process.net_connections("tcp")] if process.name() == "raylet" else []
            if node["NodeManagerPort"] in ports:
                return process
    raise AssertionError(f"no raylet listens on {node['NodeManagerPort']}")


def is_head(node: dict[str, Any]) -> bool:
    """Whether it is the node that Ray was started with; this process is attached to its raylet."""
    return "node:__internal_head__" in node["Resources"]


def victim(client: Client, topic: str) -> dict[str, Any]:
    """A node that is neither the head nor the controller's: one with an owner of a topic's partitions if there is one.

    The bookies are on all nodes.
    """
    owners = {node_of(row["address"]) for row in actors(client, "topic", topic)}
    controller = node_of("controller")
    others = [node for node in live_nodes() if not is_head(node)]
    return max((node for node in others if node["NodeID"] != controller), key=lambda node: node["NodeID"] in owners)


def controllers_node(*, head: bool = False) -> dict[str, Any]:
    """Return the controller's node. Restart the controller until Ray places it on the head, or on another node."""
    import ray

    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        if not (at := node_of("controller")):
            return False
        found[:] = [node for node in live_nodes() if node["NodeID"] == at and is_head(node) == head]
        if not found:
            ray.kill(ray.get_actor("controller", "sluice"), no_restart=False)
        return bool(found)

    eventually(is_there, f"the controller is never on {'the head' if head else 'another node than the head'}")
    return found[0]


def processes_on(session: str, node: dict[str, Any]) -> list[psutil.Process]:
    """Sluice's processes on a node.

    Ray is not asked: a call to an actor that is just then replaced can wait for a minute.
    """
    return [worker for worker in raylet_of(session, node).children(recursive=True) if is_a_host(worker)]


def is_a_host(process: psutil.Process) -> bool:
    """Whether a child of a raylet is one of Sluice's processes. Ray sets the titles."""
    with contextlib.suppress(psutil.NoSuchProcess):
        title = " ".join(process.cmdline())
        return title.startswith("ray::") and "Agent" not in title and "IDLE" not in title
    return False


@contextlib.contextmanager
def lost(data: Path, node: dict[str, Any], how: str) -> Iterator[list[psutil.Process]]:
    """Inside, a node's raylet is dead or frozen; afterwards nothing of the node runs. Yields what it had started.

    SIGKILL ends what it started as well. A raylet under SIGSTOP ends nobody; after some seconds Ray gives its node up.
    """
    raylet = raylet_of(session_of(data), node)
    family = raylet.children(recursive=True)
    if how == "killed":
        raylet.kill()
        raylet.wait(PATIENCE_S)
    else:
        raylet.suspend()
    try:
        yield family
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            raylet.resume()
            raylet.wait(PATIENCE_S)  # reaped: to its orphans, who keep the locks of their disks, a zombie looks alive
    eventually(lambda: not any(runs(process) for process in family), "processes of the lost node live on")


class Traffic:
    """The messages of a producer to a topic of three partitions, which two consumers of subscription `s` get."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client, self.topic = client, topic
        client.create_topic(topic, partitions=3)
        client.subscribe(topic, "audit", initial_position="earliest").close()  # keeps every entry from being trimmed
        self.consumers = [
            client.subscribe(topic, "s", initial_position="earliest", receiver_queue_size=600) for _ in "ab"
        ]
        self.producer = client.create_producer(topic)
        self.received = Received()
        self.receipts: list[Receipt] = []
        self.send()
        eventually(self.take, "nothing was delivered")

    def send(self, producer: Producer | None = None) -> None:
        """Five more batches, while the consumers go on."""
        for _ in range(5):
            rows = batch(KEYS, EACH, first=EACH * len(self.receipts))
            self.receipts.append((producer or self.producer).send_batch(rows))
            self.take()

    def take(self) -> int:
        """One round over the consumers; returns how many messages came."""
        return self.received.take(self.consumers)

    def arrives(self) -> None:
        """Everything that was sent is confirmed, and comes."""
        for receipt in self.receipts:
            assert (receipt.result(PATIENCE_S).positions >= 0).all()
        total = EACH * len(self.receipts)
        complete = lambda: self.take() >= 0 and self.received.complete(KEYS, total)  # noqa: E731
        eventually(complete, lambda: self.received.missing(KEYS, total))

    def check(self) -> None:
        """All is confirmed, received in order and acknowledged; nothing was stored twice."""
        self.arrives()
        self.received.check(KEYS, EACH * len(self.receipts))
        self.received.settle(self.consumers, self.client, self.topic, "s")
        assert rows(self.client, self.topic, "s", "orderViolationsTotal") == 0
        stored = sum(row["numberOfEntries"] for row in self.client.stats(self.topic))
        assert stored == KEYS * EACH * len(self.receipts), "something was stored twice"

    def close(self) -> None:
        """The clients go."""
        self.producer.close()
        for consumer in self.consumers:
            consumer.close()


@ray_test
@pytest.mark.slow
def test_bookies_are_spread_over_the_nodes(client: Client, data: Path) -> None:
    """One on each; and the brokers as well."""
    assert count_nodes(session_of(data)) == 3
    homes = {node_of(row["address"]) for row in actors(client, "bookie")}
    assert homes == {node["NodeID"] for node in live_nodes()}
    client.create_topic("spread", partitions=3)
    client.create_producer("spread").close()
    owners = {row["address"]: node_of(row["address"]) for row in actors(client, "topic", "spread")}
    assert set(owners.values()) == homes, owners


def placed(client: Client, topic: str) -> dict[str, str]:
    """Owners of a topic's partitions, and of the subscription `s` on them, with the node of each."""
    found = actors(client, "topic", topic)
    found += [row for row in actors(client, "dispatcher", topic) if row["name"].endswith("/s")]
    return {f"{row['name']} at {row['address']}": node_of(row["address"]) for row in found}


@ray_test
@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_the_loss_of_a_node_loses_nothing(client: Client, data: Path, how: str) -> None:
    """Under load. What ran on the node is started on the others."""
    traffic = Traffic(client, f"node-{how}")
    node = victim(client, traffic.topic)
    with lost(data, node, how):
        traffic.send()

        def moved() -> bool:
            traffic.take()
            if node["NodeID"] in [alive["NodeID"] for alive in live_nodes()]:
                return False
            found = placed(client, traffic.topic)
            return len(found) == 6 and not {"", node["NodeID"]} & set(found.values())

        eventually(
            moved, lambda: f"not all is on the other nodes: {placed(client, traffic.topic)}, lost: {node['NodeID']}"
        )
    traffic.send()
    traffic.check()
    eventually(lambda: len(actors(client, "bookie")) == 3, "the lost node's bookie does not come back")
    traffic.close()


@ray_test
@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_the_loss_of_the_controllers_node_loses_nothing(client: Client, data: Path, how: str) -> None:
    """Under load. Another controller takes over, for who is connected and for who comes new; the old one has ended.

    So has everything else on the node, also while its raylet is frozen: its bookie comes back on another node.
    """
    traffic = Traffic(client, f"controllers-{how}")
    node = controllers_node()
    eventually(lambda: len(actors(client, "bookie")) == 3, "a bookie is missing")
    here = processes_on(session_of(data), node)
    assert any(process.pid == pid_of("controller") for process in here)
    with lost(data, node, how):
        traffic.send()

        def replaced() -> bool:
            traffic.take()
            return node_of("controller") not in ("", node["NodeID"])

        eventually(replaced, "there is no other controller")
        eventually(lambda: not any(runs(process) for process in here), "processes live on beside their successors")
        eventually(lambda: len(actors(client, "bookie")) == 3, "the lost node's bookie does not come back")

        def told(by: Client) -> bool:
            return len(by.stats(traffic.topic, "s")) == len(by.stats(traffic.topic)) == 3

        with sluice.connect(data_dir=data) as newcomer, Client() as attached_to_ray:
            for each in (client, newcomer, attached_to_ray):
                eventually(partial(told, each), "nobody tells statistics")
            traffic.send()
            traffic.arrives()
            for number, each in enumerate((client, newcomer, attached_to_ray)):
                with each.create_producer(traffic.topic) as another:
                    traffic.send(another)
                    traffic.arrives()
                lives_and_goes(each, f"after-{how}-{number}")
    traffic.send()
    traffic.check()
    traffic.close()


@ray_test
@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_the_loss_of_the_heads_raylet_loses_nothing(request: pytest.FixtureRequest, tmp_path: Path, how: str) -> None:
    """With the controller there, for who came in by the door.

    The cluster has no head afterwards. So the module's goes on to the first of these tests, as the last of its own.
    """
    import ray

    with contextlib.ExitStack() as started:
        if how == "killed":
            data = request.getfixturevalue("data")
            launch.up(values(data, bookies=3, brokers=3), 3)
            ray.shutdown()
        else:
            data = started.enter_context(three_nodes(tmp_path / "data"))
        with attached(data) as client:
            eventually(lambda: len(live_nodes()) == 3, "a node is missing")
            eventually(lambda: len(actors(client, "bookie")) == 3, "a bookie is missing")
            node = controllers_node(head=True)
            here = processes_on(session_of(data), node)
        assert not ray.is_initialized()
        with sluice.connect(data_dir=data) as client:
            traffic = Traffic(client, "head")
            with lost(data, node, how):
                traffic.send()
                eventually(lambda: not any(runs(process) for process in here), "processes live on beside successors")
                eventually(lambda: len(actors(client, "bookie")) == 3, "the lost node's bookie does not come back")
                traffic.send()
                traffic.arrives()
                lives_and_goes(client, "after")
                with sluice.connect(data_dir=data) as newcomer:
                    assert len(newcomer.stats("head", "s")) == 3
            assert added_by_another_process(data) == 3
            traffic.send()
            traffic.check()


def added_by_another_process(data: Path) -> int:
    """How many nodes there are when a process that knows nothing but the folder has brought them to three."""
    told = "import sys, json; from pathlib import Path; from sluice.cluster.launch import launch; "
    told += "from tests.cluster.helpers import values; "
    told += "print(json.dumps(launch.up(values(Path(sys.argv[1]), bookies=3, brokers=3), 3)))"
    known = {name: value for name, value in os.environ.items() if name != TOKEN_PATH}
    done = subprocess.run([sys.executable, "-c", told, data], env=known, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return int(json.loads(done.stdout.splitlines()[-1])["nodes"])


def lives_and_goes(client: Client, topic: str) -> None:
    """A topic is made, used and deleted."""
    client.create_topic(topic, partitions=3)
    with (
        client.subscribe(topic, "s", initial_position="earliest") as consumer,
        client.create_producer(topic) as producer,
    ):
        receipt = producer.send_batch(batch(KEYS, EACH))
        received = Received()
        eventually(lambda: received.take([consumer]) >= 0 and received.complete(KEYS, EACH), "messages are missing")
        assert (receipt.result(PATIENCE_S).positions >= 0).all()
        received.check(KEYS, EACH)
    client.delete_topic(topic, force=True)
    assert topic not in [row["topic"] for row in client.topics()]
