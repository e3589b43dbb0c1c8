"""Nothing that actors and clients say to each other goes through Ray, however much they say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import sluice
from sluice.cluster.launch import launch
from sluice.cluster.wire import endpoint
from tests.cluster.helpers import Received, batch, eventually, rows
from tests.kit.certificates import Authority

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

EACH = 40


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cluster whose processes speak TLS with other machines."""
    certificates = tmp_path_factory.mktemp("certificates")
    authority = Authority(certificates)
    pair = authority.issue("node")
    files = {
        "tls_trust_certs_file": authority.trust,
        "tls_certificate_file": pair.certificate,
        "tls_key_file": pair.key,
    }
    with launch.local(tmp_path_factory.mktemp("data"), brokers=2, standby=False, **files):
        yield


def test_a_client_of_another_machine_speaks_tls(running: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's machine claims to be another one, so the client takes no socket and no descriptor of this one."""
    monkeypatch.setattr(endpoint, "this_machine", lambda: "another")
    large = os.urandom(3 << 20)
    with sluice.connect() as client:
        client.create_topic("far", partitions=2)
        consumer = client.subscribe("far", "s", initial_position="earliest")
        client.create_producer("far").send(large, partition_key="k")
        message = consumer.receive(60_000)
        assert message.data() == large
        consumer.acknowledge(message)
        consumer.wait_acknowledged(60_000)
        opened = [peer.connection for peer in client._core.net._peers._peers.values() if peer.connection is not None]
        assert len(opened) > 1
        assert all(one._carrier.binding for one in opened)


def test_no_request_goes_through_ray(running: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish, attach, poll, acknowledge, read, stats, explain: Ray is asked where a process is, once, and no more."""
    import ray
    from ray.actor import ActorHandle

    asked: list[str] = []
    call: Any = ActorHandle._actor_method_call

    def count(self: Any, method: str, *rest: Any, **more: Any) -> Any:
        asked.append(method)
        return call(self, method, *rest, **more)

    def usage() -> dict[str, dict[str, float]]:
        names = [row["name"] for row in ray.util.list_named_actors(all_namespaces=True) if row["namespace"] == "sluice"]
        hosts = {name: ray.get_actor(name, "sluice") for name in names if "standby" not in name}
        return {name: ray.get(host.usage.remote(), timeout=60) for name, host in hosts.items()}

    with sluice.connect() as client:
        client.create_topic("direct", partitions=2)
        producer = client.create_producer("direct")
        received = Received()

        def traffic(number: int) -> None:
            consumer = client.subscribe("direct", "s", initial_position="earliest")
            for part in range(5):
                producer.send_batch(batch(50, EACH, first=(5 * number + part) * EACH)).result(60)
            eventually(
                lambda: received.take([consumer]) == 0 and received.complete(50, 5 * EACH * (number + 1)),
                lambda: received.missing(50, 5 * EACH * (number + 1)),
            )
            consumer.wait_acknowledged(30_000)
            client.explain("direct", "s", key="key-1")
            assert [message for part in client.stored("direct") for message in client.read("direct", part)]
            assert rows(client, "direct", "s", "orderViolationsTotal") == 0
            consumer.close()

        traffic(0)  # everybody has found everybody
        before = usage()
        with monkeypatch.context() as patched:
            patched.setattr(ActorHandle, "_actor_method_call", count)
            traffic(1)
        after = usage()
        assert asked == []
        assert {name: told["lookups"] for name, told in after.items()} == {
            name: told["lookups"] for name, told in before.items()
        }
        assert sum(told["calls"] for told in after.values()) > sum(told["calls"] for told in before.values())
