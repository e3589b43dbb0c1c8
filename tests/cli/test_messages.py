"""`produce` and `consume`."""

from __future__ import annotations

import io
import json
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta

import pytest

from sluice.cli.waiting import Waiting
from sluice.storage.errors import Unavailable
from tests.cli.conftest import Cli, FakeClient, Message


def _sent(client: FakeClient) -> list[tuple[bytes, bytes | None]]:
    return [(call[1], call[2]["partition_key"]) for call in client.calls if call[0] == "send"]


def test_produce_sends_each_message_each_time(cli: Cli, client: FakeClient) -> None:
    code, _, err = cli("produce", "T", "-m", "a", "-m", "é", "-k", "key", "-n", "2")
    assert (code, err) == (0, "sluice: 4 messages published and confirmed\n")
    assert _sent(client) == [(b"a", b"key"), ("é".encode(), b"key")] * 2
    assert client.closed == 2


def test_produce_reads_lines_with_keys(cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    _standard_input(monkeypatch, b"k1:a\nk2:b:c\n\xff\xfe:\x00\r\n")
    assert cli("produce", "T", "--key-separator", ":")[0] == 0
    assert _sent(client) == [(b"a", b"k1"), (b"b:c", b"k2"), (b"\x00\r", b"\xff\xfe")]


def test_produce_takes_any_bytes(cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are no text are a payload all the same: from standard input, and as an argument of the shell."""
    _standard_input(monkeypatch, b"\x80\xff\nlast")
    assert cli("produce", "T")[0] == 0
    assert cli("produce", "T", "-m", "\udcff", "-k", "\udc80")[0] == 0
    assert _sent(client) == [(b"\x80\xff", None), (b"last", None), (b"\xff", b"\x80")]


def _standard_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_produce_names_the_line_without_a_key(cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    _standard_input(monkeypatch, b"nothing\n")
    code, _, err = cli("produce", "T", "--key-separator", ":")
    assert code == 2
    assert "no ':' in the line 'nothing'" in err


def test_produce_with_a_delay(cli: Cli, client: FakeClient) -> None:
    cli("produce", "T", "-m", "a", "--deliver-after", "1m30s")
    cli("produce", "T", "-m", "a", "--deliver-at", "1970-01-01T00:00:01+00:00")
    options = [call[2] for call in client.calls if call[0] == "send"]
    assert options[0]["deliver_after"] == timedelta(seconds=90)
    assert options[1]["deliver_at"] == 1000


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--deliver-after", "9" * 30), ("--deliver-after", "9" * 400 + "d"), ("--deliver-after", "101d" * 400),
        ("--deliver-after", "40000d"), ("--deliver-at", "9" * 5000), ("--deliver-at", "0001-01-01T00:00:00+14:00"),
    ],
)  # fmt: skip
def test_a_delay_that_no_calendar_has_is_the_callers(cli: Cli, client: FakeClient, option: str, value: str) -> None:
    code, _, err = cli("produce", "T", "-m", "a", option, value)
    assert code == 2, err
    assert "internal error" not in err
    assert _sent(client) == []


def test_consume_shows_what_a_terminal_would_obey(cli: Cli, client: FakeClient) -> None:
    client.inbox = deque([Message(b"a\x1b[2J\nb", b"\x9b\x07\xc2\x9b", 2), Message(b"a\n", b"\xc2\x9b", 4)])
    code, out, _ = cli("consume", "T", "-s", "S", "-n", "2")
    assert code == 0
    assert out == "1:2 key=9b07c29b a\\x1b[2J\\nb\n1:4 key=\\x9b a\\n\n"


def test_the_timeout_bounds_subscribing(cli: Cli, client: FakeClient) -> None:
    cli("consume", "T", "-s", "S", "--timeout", "250ms")
    assert [call[3]["timeout_ms"] for call in client.calls if call[0] == "subscribe"] == [250]


def test_a_waiting_command_prints_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Every reason once; nothing while messages move, and an outage of the controller is a reason as well."""
    client = FakeClient(answers={"alarms": ["b1 is read-only: disk"], "troubles": ["no quorum"]})
    waiting = Waiting(client, look_seconds=0.01)  # type: ignore[arg-type]

    def asked() -> int:
        return len([call for call in client.calls if call[0] == "troubles"])

    with waiting.watched():
        _wait_for(lambda: asked() > 2)
        client.answers["alarms"] = Unavailable("the controller does not answer")
        before = asked()
        _wait_for(lambda: asked() > before + 1)
    said = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("sluice: still waiting: ") for line in said] == [
        "b1 is read-only: disk", "no quorum", "the controller does not answer",
    ]  # fmt: skip


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


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


def test_consume_under_a_name_that_comes_back(cli: Cli, client: FakeClient) -> None:
    client.inbox = deque([Message(b"a", b"k", 2)])
    code, _, _ = cli("consume", "T", "-s", "S", "--name", "worker-1", "--grace-ms", "30000")
    assert code == 0
    asked = next(call[3] for call in client.calls if call[0] == "subscribe")
    assert (asked["consumer_name"], asked["grace_ms"]) == ("worker-1", 30_000)


def test_consume_says_no_setting_that_was_not_given(cli: Cli, client: FakeClient) -> None:
    """Another one stays as it is: who has a look changes nothing."""
    for given, said in ((), {}), (("--nack-order", "none"), {"nack_order": "none"}):
        client.inbox = deque([Message(b"a", b"k", 2)])
        cli("consume", "T", "-s", "S", "--no-ack", *given)
        asked = [call[3] for call in client.calls if call[0] == "subscribe"][-1]
        assert asked == {"initial_position": "latest", "receiver_queue_size": 1, **said}


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


@pytest.mark.parametrize(
    "words",
    [
        ("produce", "T", "--key-separator", ""), ("produce", "T", "-m", "a", "-n", "1" + "0" * 20),
        ("produce", "T", "-m", "a", "--rate", "inf"), ("produce", "T", "-m", "a", "--rate", "nan"),
        ("produce", "T", "-m", "a", "--deliver-after", ""), ("produce", "T", "-m", "a", "--deliver-at", ""),
        ("consume", "T", "-s", "S", "-n", "1" + "0" * 20), ("consume", "T", "-s", "S", "--timeout", ""),
    ],
)  # fmt: skip
def test_an_option_that_means_nothing_is_the_callers(cli: Cli, client: FakeClient, words: tuple[str, ...]) -> None:
    """One line says so before anything is asked of the cluster."""
    code, out, err = cli(*words)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "internal error" not in err
    assert client.calls == []


def test_lines_are_sent_again_without_a_copy_of_each(
    cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of all of them would take more memory than there is."""
    _standard_input(monkeypatch, b"a\nb\n")
    wanted = 5

    def send(payload: bytes, **options: object) -> str:
        sent.append(payload)
        if len(sent) == wanted:
            raise Unavailable("enough")
        return "1:1"

    sent: list[bytes] = []
    monkeypatch.setattr(client, "send", send)
    assert cli("produce", "T", "-n", str(10**12))[0] == 2
    assert sent == [b"a", b"b", b"a", b"b", b"a"]
