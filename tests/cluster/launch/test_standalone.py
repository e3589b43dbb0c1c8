"""A cluster in one process that stays: every door finds it, nobody imports Ray, and a killed one loses nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import sluice
from sluice.cluster.launch import discovery, launch, standalone
from sluice.cluster.launch.discovery import process_of
from sluice.cluster.launch.status import describe
from sluice.cluster.node.folder import STATE_FILE, TOKEN_FILE, claimed, read_state
from sluice.cluster.node.process_watch import this_process
from tests.cluster.helpers import PATIENCE_S, PYTHON, ROOT, values

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The data folder of a cluster that runs."""
    data = tmp_path / "data"
    standalone.up(values(data))
    yield data
    if (data / STATE_FILE).exists():
        launch.down(data)


def process(folder: Path) -> psutil.Process:
    """The process that serves a folder."""
    state = read_state(folder)
    assert state is not None
    found = process_of(state)
    assert found is not None
    return found


@pytest.mark.skipif(not this_process(), reason="processes have no names here")
def test_a_clock_that_is_set_hides_no_cluster(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`down` took it for ended, forgot it, and it ran on. Its number at another boot is another process, though."""
    serving, system = process(folder), tmp_path / "proc"
    began = serving.create_time()
    system.mkdir()
    for entry in Path("/proc").iterdir():
        (system / entry.name).symlink_to(entry)
    (system / "stat").unlink()
    told = Path("/proc/stat").read_text()
    booted = re.search(r"^btime (\d+)$", told, re.MULTILINE)
    assert booted is not None
    (system / "stat").write_text(told.replace(booted[0], f"btime {int(booted[1]) + 3600}"))
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(system))
    assert abs(psutil.Process(serving.pid).create_time() - began) > 3000
    assert process(folder).pid == serving.pid
    state = read_state(folder)
    assert state is not None
    boot, _, rest = str(state["process_name"]).partition("/")
    assert process_of(state | {"process_name": f"another{boot}/{rest}"}) is None
    assert process_of(state | {"process_name": f"{boot}/{rest}0"}) is None


def test_other_processes_use_it_and_down_ends_it(folder: Path) -> None:
    large = os.urandom(1 << 20)
    with sluice.connect(data_dir=folder) as client, sluice.connect(data_dir=folder) as other:
        client.create_topic("orders", 2)
        consumer = other.subscribe("orders", "billing", initial_position="earliest")
        with client.create_producer("orders") as producer:
            producer.send(large, partition_key="a")
            producer.send(b"small", partition_key="b")
        got = [consumer.receive(30_000) for _ in range(2)]
        assert {message.data() for message in got} == {large, b"small"}
        for message in got:
            consumer.acknowledge(message)
        consumer.wait_acknowledged(30_000)
    serving = process(folder)
    status = describe(values(folder))
    assert (status["alarms"], len(status["topics"])) == ([], 1)
    elsewhere = describe(values(folder, objects="s3://another/place"))
    assert elsewhere["objects"] == (folder / "objects").as_uri(), "what the caller would have is no property of it"
    assert elsewhere["data_dir"] == str(folder)
    again = standalone.up(values(folder, bookies=2))
    assert (again["address"], again["kept"]) == (status["address"], {"bookies": [3, 2]})
    assert process(folder) == serving
    assert launch.down(folder) == {"ended": 1}
    assert not serving.is_running()
    assert discovery.find(folder) is None
    assert not (folder / standalone.SOCKETS).exists()
    assert (folder / standalone.LOG_FILE).read_text() == ""
    with sluice.connect(embedded=True, data_dir=folder) as client:
        assert [row["topic"] for row in client.topics()] == ["orders"]


def test_a_killed_one_is_no_cluster_and_loses_nothing(folder: Path) -> None:
    with sluice.connect(data_dir=folder) as client:
        client.create_topic("orders")
        client.create_producer("orders").send(b"kept", partition_key="k")
        serving = process(folder)
        serving.send_signal(signal.SIGKILL)
        serving.wait(PATIENCE_S)
    assert discovery.find(folder) is None
    standalone.up(values(folder))
    with sluice.connect(data_dir=folder) as client:
        assert client.subscribe("orders", "s", initial_position="earliest").receive(60_000).data() == b"kept"
    process(folder).send_signal(signal.SIGKILL)
    assert launch.down(folder)["ended"] in (0, 1)
    assert not (folder / STATE_FILE).exists()


def test_a_client_goes_on_with_one_that_was_started_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also its producers and consumers, and wherever the program is by then."""
    monkeypatch.chdir(folder.parent)
    with sluice.connect(data_dir=Path(folder.name)) as client:
        client.create_topic("orders")
        long = 600_000  # on a busy machine a start takes longer than a lease, and then `before` comes again
        consumer = client.subscribe("orders", "s", initial_position="earliest", lease_ms=long)
        producer = client.create_producer("orders")
        producer.send(b"before", partition_key="k")
        before = consumer.receive(60_000)
        monkeypatch.chdir("/")
        serving = process(folder)
        serving.send_signal(signal.SIGKILL)
        serving.wait(PATIENCE_S)
        standalone.up(values(folder))
        assert [row["topic"] for row in client.topics()] == ["orders"]
        producer.send(b"after", partition_key="k")
        consumer.acknowledge(before)
        assert consumer.receive(60_000).data() == b"after"
        consumer.wait_acknowledged(60_000)


def test_second_cluster_on_a_folder_names_the_first(folder: Path) -> None:
    who = rf"another process \({process(folder).pid}, sluice up --embedded\) runs a cluster on"
    with pytest.raises(sluice.Invalid, match=who):
        sluice.connect(embedded=True, data_dir=folder)
    with pytest.raises(sluice.Invalid, match=who):
        launch.up(values(folder))


def test_a_stranger_gets_no_answer(folder: Path) -> None:
    """Without the token of the folder nobody is let in."""
    (folder / TOKEN_FILE).write_text("x" * 64)
    with pytest.raises(sluice.Invalid), sluice.connect(data_dir=folder) as client:
        client.topics()


def test_a_failed_start_says_why_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with claimed(tmp_path), pytest.raises(sluice.Invalid, match=rf"another process \({os.getpid()}, ") as told:
        standalone.up(values(tmp_path))
    assert "\n" not in str(told.value)
    assert not (tmp_path / STATE_FILE).exists()
    (tmp_path / STATE_FILE).write_text(json.dumps({"address": "", "session": "", "token_file": "", "process": 7}))
    for call in (
        lambda: standalone.up(values(tmp_path)),
        lambda: launch.down(tmp_path),
        lambda: discovery.find(tmp_path),
    ):
        with pytest.raises(sluice.Invalid, match=r"cluster\.json was not written by Sluice"):
            call()


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    """A port of the loopback that another program has."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_admin_port_in_use_ends_up_with_one_line(tmp_path: Path) -> None:
    with taken_port() as port, pytest.raises(sluice.Unavailable, match=f"the admin port {port} is in use") as told:
        standalone.up(values(tmp_path, admin_port=port))
    assert "\n" not in str(told.value)
    assert not (tmp_path / STATE_FILE).exists()


def test_up_answers_at_the_admin_port_that_it_was_given(tmp_path: Path) -> None:
    with taken_port() as port:
        pass
    standalone.up(values(tmp_path, admin_port=port))
    assert http_status(port, "/healthz", "") == 200
    assert http_status(port, "/metrics", "") == 401
    assert http_status(port, "/metrics", (tmp_path / "admin-token").read_text()) == 200
    launch.down(tmp_path)


def http_status(port: int, path: str, token: str) -> int:
    """The status of the answer to a GET with a token."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    status = connection.getresponse().status
    connection.close()
    return status


VERBS = """
import json, sys
from sluice.cli.exit_codes import run
codes = [run([*words, "--data-dir", sys.argv[1]]) for words in (
    ["up", "--embedded", "--set", "pulsar_port=-1"], ["topics", "create", "orders"],
    ["produce", "orders", "-k", "k", "-m", "paid"],
    ["consume", "orders", "-s", "billing", "-p", "earliest", "--timeout", "60s"], ["status", "--json"],
    ["subscriptions", "explain", "orders", "billing", "--key", "k"], ["down"], ["status"],
)]
print(json.dumps([codes, "ray" in sys.modules]))
"""


def test_every_command_works_without_ray(tmp_path: Path) -> None:
    ended = subprocess.run(
        [PYTHON, "-c", VERBS, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    lines = ended.stdout.splitlines()
    assert json.loads(lines[-1]) == [[0, 0, 0, 0, 0, 0, 0, 2], False], ended.stderr
    assert any("key=k paid" in line for line in lines)


@pytest.mark.parametrize("more", [["--nodes", "2"], ["--address", "127.0.0.1:1"]])
def test_one_process_has_no_nodes_and_no_address(tmp_path: Path, more: list[str]) -> None:
    from sluice.cli.exit_codes import run

    assert run(["up", "--embedded", "--data-dir", str(tmp_path), *more]) == 2


def test_cluster_in_the_foreground_serves_until_a_signal(tmp_path: Path) -> None:
    command = [PYTHON, "-c", "from sluice.cli import main; main()", "up", "--embedded", "--foreground"]
    command += ["--data-dir", str(tmp_path), "--set", "pulsar_port=-1"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as serving:
        assert serving.stderr is not None
        try:
            said = serving.stderr.readline()
            assert said.startswith("sluice: up at 127.0.0.1:"), said
            with sluice.connect(data_dir=tmp_path) as client:
                client.create_topic("orders")
            assert process(tmp_path).pid == serving.pid
        finally:
            serving.send_signal(signal.SIGTERM)
        assert serving.wait(PATIENCE_S) == 0
    assert not (tmp_path / STATE_FILE).exists()
