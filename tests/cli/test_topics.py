"""The requests of the topic commands to the client, and their output."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest

from sluice.cli.exit_codes import run
from sluice.cluster.base.audit import audited_lines
from sluice.storage.errors import NotFound
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
    [
        ("host", "an address is HOST:PORT"),
        ("host:99999", "an address is HOST:PORT"),
        ("host:" + "1" * 5_000, "an address is HOST:PORT"),
        ("h:1", "nothing answers at h:1"),
    ],
)
def test_an_address_where_nothing_listens(cli: Cli, client: FakeClient, address: str, said: str) -> None:
    code, out, err = cli("topics", "list", "--address", address)
    assert (code, out) == (2, "")
    assert said in err
    assert client.calls == []


def test_a_host_that_cannot_be_looked_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topics", "list", "--address", "a..b:1"]) == 2
    assert "an address is HOST:PORT, not 'a..b:1'" in capsys.readouterr().err


def test_without_a_cluster_it_says_how_to_start_one(cli: Cli, client: FakeClient) -> None:
    code, out, err = cli("topics", "list", "--data-dir", "down")
    assert (code, out) == (2, "")
    assert err.startswith(f"sluice: no cluster is running on {Path('down').absolute()}; start one with `./sluice up`")
    assert client.calls == []


def row_of(**values: object) -> dict[str, object]:
    """How the offloading of a partition stands."""
    known = {"partition": 0, "ledger": 0, "runs_done": 0, "runs_all": 0, "asked": False, "error": ""}
    return {**known, "offloaded_ledgers": 1, "offloaded_bytes": 10, "bookie_bytes": 20, "first_left": -1, **values}


def test_offload_waits_until_it_is_done(cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.cli.topics.WATCH_SECONDS", 0)
    client.answers["offload"] = [row_of(asked=True, ledger=4, runs_done=3, runs_all=9)]
    client.answers["offload_status"] = [row_of()]
    code, out, err = cli("topics", "offload", "orders", "--keep", "2MB")
    assert (code, err) == (0, "sluice: offloading orders ... ledger 4: 3 of 9 runs\n")
    assert ("offload", "orders", 2 << 20, {}) in client.calls
    assert "bytes on bookies" in out
    code, out, _ = cli("topics", "offload", "orders", "--no-wait", "--json")
    assert (code, json.loads(out)[0]["asked"]) == (0, True)


def test_offload_without_retention_says_that_nothing_lasts(cli: Cli, client: FakeClient) -> None:
    client.answers["offload"] = [row_of()]
    none = {"retention_ms": 0, "retention_bytes": 0, "history_retention_ms": 0, "history_retention_bytes": 0}
    client.answers["topics"] = [{"topic": "orders", **none}]
    _, _, err = cli("topics", "offload", "orders")
    assert err.startswith("sluice: topic orders was created without retention")
    assert err.count("\n") == 1
    client.answers["topics"] = [{"topic": "orders", **none, "history_retention_ms": -1}]
    assert cli("topics", "offload", "orders")[2] == ""


def test_compact_waits_until_it_is_done(cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.cli.topics.WATCH_SECONDS", 0)
    known = {"partition": 0, "messages": 3, "bytes": 900, "left_bytes": 0, "error": ""}
    busy = {**known, "asked": True, "running": True, "read_bytes": 1, "all_bytes": 4}
    client.answers["compact"] = [busy]
    client.answers["compaction_status"] = [{**known, "asked": False, "running": False}]
    code, out, err = cli("topics", "compact", "orders")
    assert (code, err) == (0, "sluice: compacting orders ... 25 %\n")
    assert "bytes there" in out
    code, out, _ = cli("topics", "compact", "orders", "--no-wait", "--json")
    assert (code, json.loads(out)[0]["asked"]) == (0, True)
    assert cli("topics", "compaction-status", "orders")[0] == 0


def test_offload_does_not_wait_for_a_store_that_is_away(cli: Cli, client: FakeClient) -> None:
    client.answers["offload"] = [row_of(asked=True, error="S3 answers 503")]
    code, out, err = cli("topics", "offload", "orders")
    assert (code, err) == (0, "")
    assert "S3 answers 503" in out
    assert cli("topics", "offload", "orders", "--keep", "much")[0] == 2


def test_erase_waits_until_it_is_done(cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.cli.topics.WATCH_SECONDS", 0)
    row = {"partition": 0, "keys": 1, "ledgers_left": 3, "messages": 2, "done_messages": 0, "error": ""}
    client.answers["erase"] = [row]
    client.answers["erase_status"] = [{**row, "keys": 0, "ledgers_left": 0, "messages": 0, "done_messages": 5}]
    code, out, err = cli("topics", "erase", "orders", "--key", "ada", "--json")
    assert (code, json.loads(out)[0]["done_messages"]) == (0, 5)
    assert err == "sluice: erasing in orders ... 3 ledgers left, 2 messages erased\n"
    assert ("erase", "orders", "ada", {}) in client.calls
    assert "would erase the messages of 'ada'" in cli("topics", "erase", "orders", "--key", "ada", "--dry-run")[2]


def test_the_audit_knows_who_erased_here(
    cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client.answers["erase"] = []
    call = ("topics", "erase", "orders", "--key", "ada", "--data-dir", str(tmp_path / "data"))
    assert cli(*call)[0] == 0
    assert list(audited_lines(tmp_path / "data")) == [], "there is an audit only where there are roles"
    monkeypatch.setenv("SLUICE_AUTHORIZATION_ENABLED", "true")
    assert cli(*call, "--dry-run")[0] == 0
    assert cli(*call)[0] == 0
    [line] = audited_lines(tmp_path / "data")
    assert (line["role"], line["what"], line["topic"]) == ("the command line", "erase", "orders")
    assert line["address"].partition("@")[0] == getpass.getuser()
    assert "ada" not in str(line), "the key is to be forgotten"
