"""`up`, `down`, `status` and `config show`, with a made-up launcher."""

from __future__ import annotations

import json
import socket
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import sluice.cluster.settings.config  # noqa: F401 (it needs the real launcher when it is imported first)
from sluice.cli.exit_codes import run
from sluice.cli.watching import Server
from sluice.cluster.http.guard import PORT_FILE, TOKEN_FILE
from sluice.storage.errors import NotFound
from tests.cli.conftest import Cli

Calls = list[tuple[str, Any]]


@pytest.fixture
def launch(fake_module: Callable[..., None]) -> Calls:
    """Records what the launcher is told."""
    calls: Calls = []

    def verb(name: str, answer: Any) -> Callable[..., Any]:
        def call(argument: Any, nodes: int = 0) -> Any:
            calls.append((name, argument))
            return answer

        return call

    status: dict[str, Any] = {"state": "up", "alarms": [], "bookies": [{"id": "b1", "free": 5}]}
    status["topics"] = [{"topic": "orders", "partitions": 4, "offload_threshold_bytes": -1}]
    fake_module("sluice.cluster.launch.launch", up=verb("up", {"address": "a"}), down=verb("down", None))
    fake_module("sluice.cluster.launch.status", describe=verb("status", status))
    return calls


def test_up_merges_flags_settings_and_file(cli: Cli, launch: Calls, tmp_path: Path) -> None:
    (tmp_path / "sluice.toml").write_text("bookies = 9\nbrokers = 7\n")
    line = "up --bookies 2 --data-dir d --objects s3://b/p --set topic.partitions=4 --set bookie.group_bytes=1MB --json"
    code, out, _ = cli(*line.split())
    assert code == 0
    assert json.loads(out) == {"address": "a"}
    ((_, values),) = launch
    assert (values.bookies, values.data_dir, values.objects, values.brokers) == (2, Path("d"), "s3://b/p", 7)
    assert (values.topic.partitions, values.bookie.group_bytes) == (4, 1 << 20)


def test_up_says_what_is_wrong_and_what_has_no_effect(
    cli: Cli, fake_module: Callable[..., None], tmp_path: Path
) -> None:
    """Options that somebody gave, not defaults; and with nothing to write to it is no success."""
    kept = {"brokers": [2, 9], "cpus": [4, None], "nodes": [3, 1], "bookie_settings": [{"a": 1}, {"a": 2}]}
    alarms = ["bookie-0 is read-only: only 5 bytes are free"]
    answer = {"address": "a", "data_dir": "d", "kept": kept, "alarms": alarms, "read_only": True}
    fake_module("sluice.cluster.launch.launch", up=lambda values, nodes: answer)
    (tmp_path / "sluice.toml").write_text("brokers = 9\n[bookie]\ngroup_bytes = 1000000\n")
    code, _, err = cli("up")
    assert code == 2
    told = err.splitlines()
    assert [line.split(" ")[1] for line in told] == ["brokers", "bookie_settings", "alarm:", "up"]
    assert told[0].startswith("sluice: brokers stays 2, not 9: the cluster runs already; ")
    assert told[-1] == "sluice: up at a, but nothing can be written to it; the data is in d"


def test_down_names_the_folder_that_stays(cli: Cli, launch: Calls, tmp_path: Path) -> None:
    code, _, err = cli("down", "--data-dir", "d")
    assert (code, err) == (0, f"sluice: down; the data stays in {tmp_path / 'd'}\n")
    assert launch == [("down", Path("d"))]


def test_status(cli: Cli, launch: Calls) -> None:
    assert json.loads(cli("status", "--json")[1])["state"] == "up"
    out = cli("status")[1]
    assert "bookies" in out
    assert "b1" in out
    assert "orders" in out
    assert "offload" not in out, "twenty settings of each topic leave no room for what they say"
    assert out.endswith("no alarms\n")


def test_status_ends_with_the_alarms(cli: Cli, fake_module: Callable[..., None]) -> None:
    """They were a list in JSON, above the tables of all actors and topics."""
    status = {"alarms": ["bookie-0 is read-only", "topic/\x1b[2J is broken"], "topics": [{"topic": "orders"}]}
    fake_module("sluice.cluster.launch.status", describe=lambda values: status)
    out = cli("status")[1]
    assert out.splitlines()[-2:] == ["alarm: bookie-0 is read-only", "alarm: topic/\\x1b[2J is broken"]
    assert "alarms" not in out


def test_config_show(cli: Cli, tmp_path: Path) -> None:
    printed = tomllib.loads(cli("config", "show", "--set", "bookies=5")[1])
    assert (printed["bookies"], printed["topic"]["ack_quorum"]) == (5, 2)
    assert json.loads(cli("config", "show", "--set", "bookies=5", "--json")[1])["sources"] == {"bookies": "flag"}


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("up --nodes 1000000", "64"),  # each version of typer has its own words around it
        ("subscriptions cancel-delayed t s --delay-id=", "--delay-id is empty"),
        ("subscriptions cancel-delayed t s --from 2026-02-01 --to 2026-01-01", "--from is later than --to"),
    ],
)
def test_options_without_a_meaning_are_refused(cli: Cli, tmp_path: Path, command: str, reason: str) -> None:
    code, out, err = cli(*command.split(), "--data-dir", str(tmp_path))
    assert (code, out) == (2, "")
    assert reason in " ".join(err.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_has_a_name(cli: Cli, launch: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of a shell that is not set would begin a cluster in the current folder."""
    code, _, err = cli("up", "--data-dir", "")
    assert (code, "name a folder" in err) == (2, True)
    monkeypatch.setenv("SLUICE_DATA_DIR", "")
    code, _, err = cli("up")
    assert (code, "name a folder" in err) == (2, True)
    assert launch == []


def test_no_page_of_a_cluster_that_was_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / TOKEN_FILE).write_text("x")
    for answer in (b"", b"SSH-2.0\r\n", b"HTTP/1.1 404 No\r\n\r\nhello", b"HTTP/1.1 200 OK\r\n\r\nhello"):
        with another_program(answer) as port:
            (tmp_path / PORT_FILE).write_text(str(port))
            code, err = run(["watch", "--data-dir", str(tmp_path)]), capsys.readouterr().err
        assert (code, len(err.splitlines())) == (2, 1)
        assert f"no cluster answers at 127.0.0.1:{port}" in err
    assert run(["watch", "--data-dir", str(tmp_path)]) == 2


@contextmanager
def another_program(answer: bytes) -> Iterator[int]:
    """Has the port now; answers once."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_watch_names_what_there_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / PORT_FILE).write_text("1")
    (tmp_path / TOKEN_FILE).write_text("x")
    server = Server(tmp_path)
    monkeypatch.setattr(server, "subscriptions", lambda: {"orders": ["audit", "billing"], "empty": []})
    assert server.choose("", "") == server.choose("orders", "") == ("orders", "audit")
    assert server.choose("", "billing") == server.choose("orders", "billing") == ("orders", "billing")
    for topic, subscription, named in (
        ("no", "", "no topic no"),
        ("no", "s", "no topic no"),
        ("orders", "s", "no subscription s"),
    ):
        with pytest.raises(NotFound, match=named):
            server.choose(topic, subscription)
