"""Several Ray nodes on one machine: where actors go, and what the loss of a node does to them."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster import launch
from cluster.client import Client
from cluster.consumer import Consumer
from cluster.folder import STATE_FILE
from cluster.receipts import Receipt
from cluster.sessions import count_nodes, processes_of, runs
from tests.cluster.helpers import PATIENCE_S, Received, actors, attached, batch, eventually, rows, session_of, values

KEYS, EACH = 40, 20
PR_SET_CHILD_SUBREAPER = 36

ray_test = pytest.mark.ray
pytestmark = [pytest.mark.timeout(1500)]


def test_a_process_that_ends_while_nodes_are_counted_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was killed a moment ago is still listed, and then it has no name."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    seen = psutil.Process(child.pid)
    child.communicate()
    monkeypatch.setattr("cluster.sessions.processes_of", lambda session: [seen])
    assert count_nodes("anywhere") == 0


# -- real nodes -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a cluster of three nodes. Their processes become children of this one, so it can reap them."""
    folder = tmp_path_factory.mktemp("nodes") / "data"
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        assert launch.up(values(folder, bookies=3, brokers=3), 3)["nodes"] == 3
        yield folder
    finally:
        if (folder / STATE_FILE).exists():
            launch.down(folder)
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


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


def victim(client: Client, topic: str) -> dict[str, Any]:
    """A node that is neither the head nor the controller's: one with an owner of a topic's partitions if there is one.

    A new controller starts owners for who asks anew, and clients of owners that live on have no cause to ask. The
    bookies are on all nodes.
    """
    owners = {node_of(row["address"]) for row in actors(client, "topic", topic)}
    controller = node_of("controller")
    others = [node for node in live_nodes() if "node:__internal_head__" not in node["Resources"]]
    return max((node for node in others if node["NodeID"] != controller), key=lambda node: node["NodeID"] in owners)


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
    """Under load. SIGKILL of a raylet, or SIGSTOP until its node is declared dead.

    A frozen raylet ends nobody: what ran on its node lives on beside what takes its place, until the raylet goes on.
    Bookies keep the locks of their disks meanwhile, so there may be too few for a publish.
    """
    topic = f"node-{how}"
    client.create_topic(topic, partitions=3)
    client.subscribe(topic, "audit", initial_position="earliest").close()  # keeps every entry from being trimmed
    consumers = [client.subscribe(topic, "s", initial_position="earliest", receiver_queue_size=600) for _ in "ab"]
    producer = client.create_producer(topic)
    received = Received()
    receipts: list[Receipt] = []
    for _ in range(5):
        receipts.append(producer.send_batch(batch(KEYS, EACH, first=EACH * len(receipts))))
    eventually(lambda: received.take(consumers), "nothing was delivered")
    node = victim(client, topic)
    raylet = raylet_of(session_of(data), node)
    family = [raylet, *raylet.children(recursive=True)]
    if how == "killed":
        raylet.kill()
        raylet.wait(PATIENCE_S)
    else:
        raylet.suspend()
    try:
        for _ in range(5):
            receipts.append(producer.send_batch(batch(KEYS, EACH, first=EACH * len(receipts))))
            received.take(consumers)

        def moved() -> bool:
            received.take(consumers)
            if node["NodeID"] in [alive["NodeID"] for alive in live_nodes()]:
                return False
            found = placed(client, topic)
            return len(found) == 6 and not {"", node["NodeID"]} & set(found.values())

        eventually(moved, lambda: f"not all is on the other nodes: {placed(client, topic)}, lost: {node['NodeID']}")
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            raylet.resume()
            raylet.wait(PATIENCE_S)  # reaped: to its orphans, who keep the locks of their disks, a zombie looks alive
    for _ in range(5):
        receipts.append(producer.send_batch(batch(KEYS, EACH, first=EACH * len(receipts))))
    total = EACH * len(receipts)
    everything = lambda: received.take(consumers) >= 0 and received.complete(KEYS, total)  # noqa: E731
    eventually(everything, lambda: received.missing(KEYS, total))
    received.check(KEYS, total)
    check_rest(client, topic, received, consumers, receipts)
    eventually(lambda: not any(runs(process) for process in family), "processes of the lost node live on")
    eventually(lambda: len(actors(client, "bookie")) == 3, "the lost node's bookie does not come back")
    for consumer in consumers:
        consumer.close()


def check_rest(
    client: Client, topic: str, received: Received, consumers: list[Consumer], receipts: list[Receipt]
) -> None:
    """All is confirmed and acknowledged, in order; nothing was stored twice."""
    for receipt in receipts:
        assert (receipt.result(PATIENCE_S).positions >= 0).all()
    received.settle(consumers, client, topic, "s")
    assert rows(client, topic, "s", "orderViolationsTotal") == 0
    stored = sum(row["numberOfEntries"] for row in client.stats(topic))
    assert stored == KEYS * EACH * len(receipts), "something was stored twice"
