"""`produce` and `consume`."""

from __future__ import annotations

import io
import json
from collections import deque
from datetime import timedelta

import pytest

from tests.cluster.cli.conftest import Cli, FakeClient, Message


def _sent(client: FakeClient) -> list[tuple[bytes, str | None]]:
    return [(call[1], call[2]["partition_key"]) for call in client.calls if call[0] == "send"]


def test_produce_sends_each_message_each_time(cli: Cli, client: FakeClient) -> None:
    code, _, err = cli("produce", "T", "-m", "a", "-m", "é", "-k", "key", "-n", "2")
    assert (code, err) == (0, "sluice: 4 messages published and confirmed\n")
    assert _sent(client) == [(b"a", "key"), ("é".encode(), "key")] * 2
    assert client.closed == 2


def test_produce_reads_lines_with_keys(cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("k1:a\nk2:b:c\n"))
    assert cli("produce", "T", "--key-separator", ":")[0] == 0
    assert _sent(client) == [(b"a", "k1"), (b"b:c", "k2")]


def test_produce_names_the_line_without_a_key(cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("nothing\n"))
    code, _, err = cli("produce", "T", "--key-separator", ":")
    assert code == 2
    assert "no ':' in the line 'nothing'" in err


def test_produce_with_a_delay(cli: Cli, client: FakeClient) -> None:
    cli("produce", "T", "-m", "a", "--deliver-after", "1m30s")
    cli("produce", "T", "-m", "a", "--deliver-at", "1970-01-01T00:00:01+00:00")
    options = [call[2] for call in client.calls if call[0] == "send"]
    assert options[0]["deliver_after"] == timedelta(seconds=90)
    assert options[1]["deliver_at"] == 1000


def test_consume_prints_and_acknowledges(cli: Cli, client: FakeClient) -> None:
    client.inbox = deque([Message(b"a", b"k", 2), Message(b"\xff", None, 3), Message(b"later", b"k", 4)])
    code, out, err = cli("consume", "T", "-s", "S", "-n", "2", "-p", "Earliest")
    assert (code, err) == (0, "sluice: 2 messages received\n")
    assert out == "1:2 key=k a\n1:3 key=- (delivery 2) ff\n"
    asked = {"initial_position": "earliest", "receiver_queue_size": 2}
    assert ("subscribe", "T", "S", asked) in client.calls
    assert len([call for call in client.calls if call[0] == "acknowledge"]) == 2
    assert client.calls[-1][0] == "wait_acknowledged"
    assert client.closed == 2


def test_consume_as_json_without_acknowledging(cli: Cli, client: FakeClient) -> None:
    client.inbox = deque([Message(b"a", b"k", 2)])
    code, out, _ = cli("consume", "T", "-s", "S", "--json", "--no-ack")
    assert code == 0
    assert json.loads(out) == {
        "message_id": "1:2",
        "key": "k",
        "data": "a",
        "redelivery_count": 0,
        "publish_time": "2023-11-14T22:13:20.000Z",
    }
    assert not [call for call in client.calls if call[0] == "acknowledge"]


def test_consume_gives_up_after_the_timeout(cli: Cli, client: FakeClient) -> None:
    code, _, err = cli("consume", "T", "-s", "S", "--timeout", "1ms")
    assert (code, err) == (2, "sluice: 0 messages received\n")


def test_consume_leaves_cleanly_on_ctrl_c(cli: Cli, client: FakeClient) -> None:
    client.inbox = deque([Message(b"a", b"k", 2), Message(b"ctrl-c", b"k", 3)])
    code, out, _ = cli("consume", "T", "-s", "S", "-n", "0")
    assert code == 130
    assert out == "1:2 key=k a\n"
    assert client.closed == 2


def test_consume_of_an_unknown_topic(cli: Cli, client: FakeClient) -> None:
    assert cli("consume", "missing", "-s", "S")[::2] == (2, "sluice: there is no topic 'missing'\n")
