"""What the topic commands ask of the client, and what they show."""

from __future__ import annotations

import json

import pytest

from storage.errors import NotFound
from tests.cli.conftest import Cli, FakeClient


def test_create_hands_over_the_whole_settings(cli: Cli, client: FakeClient) -> None:
    code, _, err = cli("topics", "create", "orders", "-p", "4", "--set", "roll_ms=1h", "--set", "roll_bytes=64MB")
    assert (code, err) == (0, "sluice: topic orders has 4 partitions\n")
    name, topic, settings = client.calls[1]
    assert (name, topic) == ("create_topic", "orders")
    assert (settings["partitions"], settings["roll_ms"], settings["roll_bytes"]) == (4, 3_600_000, 64 << 20)


def test_a_topic_of_no_namespace_is_a_wrong_call(cli: Cli, client: FakeClient) -> None:
    client.answers["create_topic"] = NotFound("Namespace sales/eu does not exist")
    code, out, err = cli("topics", "create", "persistent://sales/eu/orders")
    assert (code, out, err) == (2, "", "sluice: Namespace sales/eu does not exist\n")


def test_the_full_name_and_the_address_are_understood(cli: Cli, client: FakeClient) -> None:
    cli("topics", "delete", "persistent://public/default/orders", "--force", "--address", "127.0.0.1:6379")
    assert client.calls == [
        ("connect", "127.0.0.1:6379"),
        ("delete_topic", "orders", {"force": True}),
    ]


def test_a_dry_run_deletes_nothing(cli: Cli, client: FakeClient) -> None:
    code, _, err = cli("topics", "delete", "orders", "--dry-run")
    assert code == 0
    assert "would delete topic orders" in err
    assert [call[0] for call in client.calls] == ["connect", "stats"]


def test_list_as_table_and_as_json(cli: Cli, client: FakeClient) -> None:
    client.answers["topics"] = [{"topic": "a", "partitions": 3, "ttl_ms": 0}]
    assert json.loads(cli("topics", "list", "--json")[1]) == client.answers["topics"]
    assert "partitions" in cli("topics", "list")[1]
    client.answers["topics"] = []
    assert cli("topics", "list")[1] == "none\n"


def test_stats_keep_every_field_in_json(cli: Cli, client: FakeClient) -> None:
    client.answers["stats"] = [{"partition": 0, "owner": "node/x", "epoch": 3, "storageSize": 10, "odd": {"a": [1]}}]
    assert json.loads(cli("topics", "stats", "orders", "--json")[1]) == client.answers["stats"]
    table = cli("topics", "stats", "orders")[1]
    assert "bytes" in table
    assert "odd" not in table
    assert "node/x" in cli("topics", "partitions", "orders")[1]


@pytest.mark.parametrize(
    ("address", "said"),
    [("host", "an address is HOST:PORT"), ("host:99999", "an address is HOST:PORT"), ("h:1", "nothing answers at h:1")],
)
def test_an_address_where_nothing_listens(cli: Cli, client: FakeClient, address: str, said: str) -> None:
    code, out, err = cli("topics", "list", "--address", address)
    assert (code, out) == (2, "")
    assert said in err
    assert client.calls == []


def test_without_a_cluster_it_says_how_to_start_one(cli: Cli, client: FakeClient) -> None:
    code, out, err = cli("topics", "list", "--data-dir", "down")
    assert (code, out) == (2, "")
    assert err.startswith("sluice: no cluster is running on down; start one with `./sluice up`")
    assert client.calls == []
