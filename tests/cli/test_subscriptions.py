"""The requests of the subscription commands to the client, and their output."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.cluster.client.dead_letters import DeadLetter, LettersDecided
from sluice.cluster.client.message import MessageId
from tests.cli.conftest import Cli, FakeClient


@pytest.mark.parametrize(
    ("line", "verb", "arguments"),
    [
        ("pending T S", "pending", {"most": 20}),
        ("pending T S --consumer c1 -n 5", "pending", {"most": 5, "consumer": "c1"}),
        ("blocked-keys T S", "blocked_keys", {"top": 20}),
        ("hot-keys T S -n 3", "hot_keys", {"top": 3}),
        ("what-if T S --add 2 --remove a --remove b", "what_if", {"add": 2, "remove": ["a", "b"]}),
        ("owner T S --key k", "owner", {"key": "k"}),
        ("owner T S --hash 1 --at 2026-01-01T00:00:00Z", "owner", {"hash": 1, "at": 1_767_225_600_000}),
        ("delayed T S", "delayed", {"top": 20}),
        ("seek T S earliest", "seek", {"message_id": "earliest"}),
        ("seek T S 7:12", "seek", {"message_id": "7:12"}),
        ("seek T S 7:12:3", "seek", {"message_id": "7:12", "partition": 3}),
        ("seek T S 7:-1", "seek", {"message_id": "7:-1"}),
        ("seek T S 1970-01-01T00:00:01Z", "seek", {"time": 1000}),
        ("skip T S 3", "skip", {"messages": 3}),
        ("clear-backlog T S", "clear_backlog", {}),
        ("parked T S -n 5", "parked", {"top": 5}),
    ],
)
def test_verbs_and_arguments(cli: Cli, client: FakeClient, line: str, verb: str, arguments: dict[str, Any]) -> None:
    client.answers["admin"] = [{"answer": 1}]
    code, out, _ = cli("subscriptions", *line.split(), "--json")
    assert code == 0
    assert json.loads(out) == [{"answer": 1}]
    assert client.calls[1] == ("admin", "T", "S", verb, arguments)


@pytest.mark.parametrize(
    ("line", "verb", "arguments"),
    [
        ("redrive T S --all", "redrive", {"everything": True}),
        ("redrive T S --message-id 1:2:3", "redrive", {"message_id": MessageId.parse("1:2:3")}),
        ("discard T S --key k", "discard", {"key": "k", "only_failed": False}),
        ("discard T S --key k --only-failed", "discard", {"key": "k", "only_failed": True}),
    ],
)
def test_dead_letters_are_decided(
    cli: Cli, client: FakeClient, line: str, verb: str, arguments: dict[str, Any]
) -> None:
    client.answers[verb] = LettersDecided(2, 5)
    code, out, _ = cli("subscriptions", *line.split(), "--json")
    assert (code, json.loads(out)) == (0, {"keys": 2, "messages": 5})
    assert client.calls[1:] == [("dead_letters", "T", "S"), (verb, arguments)]


def test_the_partition_that_moved_is_named(cli: Cli, client: FakeClient) -> None:
    """One that was asked alone was called the first."""
    client.answers["admin"] = [{"position": "7:12"}]
    _, out, _ = cli("subscriptions", "seek", "T", "S", "7:12:3")
    assert [row.split() for row in out.splitlines() if "7:12" in row] == [["│", "3", "│", "7:12", "│"]]


def test_parked_keys_are_shown_and_decided_of(cli: Cli, client: FakeClient) -> None:
    row = {"key": "k", "state": "blocked", "since": 1, "failed": "1:2:0", "messages": 3, "bytes": 30}
    client.answers["admin"] = [{"keys": [row], "alarm": "parking is at its limit"}, {"keys": [], "alarm": ""}]
    code, out, err = cli("subscriptions", "parked", "T", "S")
    assert code == 0
    assert "blocked" in out
    assert "alarm: parking is at its limit" in out + err
    assert "would redrive" in "".join(cli("subscriptions", "redrive", "T", "S", "--key", "k", "--dry-run")[1:])
    assert [call[3] for call in client.calls if call[0] == "admin"] == ["parked", "parked"], "nothing was done"
    client.answers["redrive"] = LettersDecided(2, 5)
    assert "redrive: 2 keys with 5 messages" in "".join(cli("subscriptions", "redrive", "T", "S", "--all")[1:])
    client.answers["discard"] = LettersDecided(0, 0)
    assert "no such key" in "".join(cli("subscriptions", "discard", "T", "S", "--key", "x")[1:])


def test_letters_in_a_dead_letter_topic_are_shown(cli: Cli, client: FakeClient) -> None:
    client.answers["admin"] = [{"keys": [], "alarm": ""}, {"keys": [], "alarm": ""}]
    client.answers["letters"] = [DeadLetter(MessageId.parse("1:2:1"), b"k", "moved", 7, 1, b"paid", {})]
    _, out, _ = cli("subscriptions", "parked", "T", "S", "--json")
    row = {"key": "k", "state": "moved", "since": 7, "failed": "1:2:1", "messages": 1, "bytes": 4}
    assert [answer["keys"] for answer in json.loads(out)] == [[], [row]]


@pytest.mark.parametrize("line", ["redrive T S", "discard T S --key k --all", "redrive T S --message-id x"])
def test_which_keys_must_be_said_in_one_way(cli: Cli, client: FakeClient, line: str) -> None:
    assert cli("subscriptions", *line.split())[0] == 2
    assert not [call for call in client.calls if call[0] == "admin"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("cancel-delayed T S --message-id 1:2:0 --message-id 1:3:0", ("T", "S", {"message_id": ["1:2:0", "1:3:0"]})),
        ("cancel-delayed T --delay-id i --key k", ("T", None, {"delay_id": ["i"], "key": "k"})),
        ("cancel-delayed T S --all --dry-run", ("T", "S", {"everything": True, "dry_run": True})),
        ("cancel-delayed T --to 2026-01-01T00:00:00Z", ("T", None, {"due_to": 1_767_225_600_000})),
        (
            "reschedule-delayed T S --key k --before 1:2:0 --at 2026-01-01T00:00:00Z",
            ("T", "S", {"key": "k", "before": "1:2:0", "deliver_at": 1_767_225_600_000}),
        ),
    ],
)
def test_changing_delays(cli: Cli, client: FakeClient, line: str, expected: tuple[Any, ...]) -> None:
    verb = line.split()[0].replace("-", "_")
    message = {"messageId": "1:2:0", "answer": "too late: at consumer c1"}
    row = {"subscription": "S", "partition": 0, "cancelled": 3, "tooLateAtConsumer": {"c1": 1}, "messages": [message]}
    client.answers[verb] = [row]
    code, out, _ = cli("subscriptions", *line.split())
    assert code == 0
    assert "too late: at consumer c1" in out
    assert client.calls[1] == (verb, *expected)


@pytest.mark.parametrize("to", ["1795000000", "1795000000000000", "1795000000000000000", "9" * 5000, "\u0665", "7:x"])
def test_a_time_in_another_unit_is_refused(cli: Cli, client: FakeClient, to: str) -> None:
    code, _, err = cli("subscriptions", "seek", "T", "S", to)
    assert code == 2
    assert "is not a time" in err
    assert "seek" not in [call[0] for call in client.calls]


@pytest.mark.parametrize("line", ["seek T S earliest", "skip T S 3", "clear-backlog T S", "delete T S"])
def test_a_dry_run_changes_nothing(cli: Cli, client: FakeClient, line: str) -> None:
    code, _, err = cli("subscriptions", *line.split(), "--dry-run")
    assert code == 0
    assert "would" in err
    assert [call[0] for call in client.calls] == ["connect", "stats"]


@pytest.mark.parametrize(
    ("option", "expected"),
    [("--key=k", {"key": "k"}), ("--hash=1", {"hash": 1}), ("--message-id=1:2:0", {"message_id": "1:2:0"})],
)
def test_explain(cli: Cli, client: FakeClient, option: str, expected: dict[str, Any]) -> None:
    reason = {"gate": "draining", "text": "c1 holds it", "unblocks": "acknowledgement of 1:2", "age_ms": 12}
    client.answers["explain"] = {"verdict": "draining", "reasons": [reason], "gates": [{"gate": "paused"}]}
    code, out, _ = cli("subscriptions", "explain", "T", "S", option)
    assert code == 0
    assert "- paused\n- draining: c1 holds it: age_ms 12 (unblocked by: acknowledgement of 1:2)\n" in out
    assert client.calls[1] == ("explain", "T", "S", {"key": None, "hash": None, "message_id": None} | expected)


def test_stats_show_partitions_and_consumers(cli: Cli, client: FakeClient) -> None:
    consumer = {"consumerName": "c1", "unackedMessages": 2}
    client.answers["stats"] = [{"msgBacklog": 5, "consumers": [consumer]}, {"msgBacklog": 6, "consumers": []}]
    out = cli("subscriptions", "stats", "T", "S")[1]
    assert "c1" in out
    assert "backlog" in out
    assert json.loads(cli("subscriptions", "stats", "T", "S", "--json")[1]) == client.answers["stats"]


def test_list(cli: Cli, client: FakeClient) -> None:
    client.answers["subscriptions"] = ["s1"]
    assert json.loads(cli("subscriptions", "list", "T", "--json")[1]) == [{"subscription": "s1"}]


def test_a_deletion_answers_in_json(cli: Cli, client: FakeClient) -> None:
    """A table of what would be deleted came for a program, and nothing at all when it was."""
    client.answers["stats"] = [{"msgBacklog": 5, "consumers": []}]
    assert json.loads(cli("subscriptions", "delete", "T", "S", "--dry-run", "--json")[1]) == client.answers["stats"]
    told = json.loads(cli("subscriptions", "delete", "T", "S", "--json")[1])
    assert told == {"topic": "T", "subscription": "S", "deleted": True}


def test_delete(cli: Cli, client: FakeClient) -> None:
    assert cli("subscriptions", "delete", "T", "S", "--force")[0] == 0
    assert client.calls[1:] == [("delete_subscription", "T", "S", {"force": True})]


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ([[{"hash": 77}], []], "77"),
        ([{"hashes_moved": 78}], "78"),
        ([{"next": [{"due": 79}]}], "79"),
        ([[], []], "none"),
    ],
)
def test_answers_of_every_form_are_shown(cli: Cli, client: FakeClient, answer: list[Any], shown: str) -> None:
    client.answers["admin"] = answer
    code, out, err = cli("subscriptions", "pending", "T", "S")
    assert (code, err) == (0, "")
    assert shown in out
