"""Clusters that start, stay, are killed, come back, and leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

import sluice
from sluice.cluster.launch import discovery, launch
from sluice.cluster.launch.status import describe
from sluice.cluster.node.environment import is_session_folder, short_folder
from sluice.cluster.node.folder import DOOR_FILE, STATE_FILE, claimed
from sluice.cluster.node.nodes import free_port
from sluice.cluster.node.sessions import count_nodes, processes_of, runs
from tests.cluster.helpers import (
    PATIENCE_MS,
    PATIENCE_S,
    PYTHON,
    ROOT,
    SMALL,
    Received,
    attached,
    batch,
    eventually,
    listeners,
    listening_sockets,
    rows,
    session_of,
    still_open,
    values,
)


def up(folder: Path, *, nodes: int = 1, **more: Any) -> dict[str, Any]:
    """Start a cluster, or what is missing of it, and leave this process unattached."""
    import ray

    try:
        return launch.up(values(folder, **more), nodes)
    finally:
        ray.shutdown()


def kill_everything(session: str) -> None:
    """SIGKILL to every process, bookies and all, at once."""
    processes = processes_of(session)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    eventually(lambda: not any(runs(process) for process in processes), "killed processes live on")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A data folder; whatever the test left running on it is ended."""
    data = tmp_path / "data"
    yield data
    if (data / STATE_FILE).exists():
        with contextlib.suppress(sluice.SluiceError):
            launch.down(data)


# -- what stays -----------------------------------------------------------------------------------------------------


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_down_and_kill_9_keep_everything(folder: Path) -> None:
    """Topics with settings, subscriptions, backlog, cursor and delayed messages, over `down` and over kill -9."""
    assert up(folder, bookies=2)["nodes"] == 1
    with attached(folder) as client:
        client.create_topic("orders", partitions=2, retention_ms=77)
        consumer = client.subscribe("orders", "billing", initial_position="earliest", receiver_queue_size=100)
        client.subscribe("orders", "audit", initial_position="earliest").close()
        producer = client.create_producer("orders", "shop")
        producer.send_batch(batch(20, 10)).result(PATIENCE_S)
        due = time.time() + 5
        producer.send(b"100", partition_key="delayed", deliver_at=round(due * 1000))
        producer.send(b"200", partition_key="far", deliver_after=timedelta(days=2))
        first = Received()
        eventually(lambda: first.take([consumer]) >= 0 and first.count >= 60, "nothing was delivered")
        consumer.wait_acknowledged(PATIENCE_MS)
        consumer.close()
        left = 202 - first.count
        eventually(lambda: rows(client, "orders", "billing", "msgBacklog") == left, "the backlog is wrong")
    before = session_of(folder)
    sockets = listening_sockets([port for _, port in listeners(before)])
    assert sockets
    assert launch.down(folder)["ended"] > 0
    assert processes_of(before) == []
    assert still_open(sockets) == []
    assert not Path(before).exists()
    assert not (folder / STATE_FILE).exists()

    up(folder, bookies=2)
    with attached(folder) as client:
        assert_found_again(client, left)
    assert_ray_is_not_needed(folder)
    kill_everything(session_of(folder))
    up(folder, bookies=2)
    with attached(folder) as client:
        assert_found_again(client, left)
        consumer = client.subscribe("orders", "billing")
        eventually(lambda: first.take([consumer]) >= 0 and first.count >= 201, lambda: first.missing(20, 10))
        assert time.time() >= due
        assert first.by_key.pop("delayed") == [100]
        first.check(20, 10)
        assert first.count == 201, "something was delivered twice"
        consumer.wait_acknowledged(PATIENCE_MS)
        assert rows(client, "orders", "billing", "msgBacklog") == 1
        assert rows(client, "orders", "audit", "msgBacklog") == 202
        again = client.create_producer("orders", "shop", initial_sequence_id=0)
        again.send_batch(batch(20, 10)).result(PATIENCE_S)
        assert rows(client, "orders", "audit", "msgBacklog") == 202, "a producer's sequences were forgotten"
        consumer.close()


def assert_ray_is_not_needed(folder: Path) -> None:
    """Another process that sees the data folder is a client without importing Ray."""
    program = (
        f"import sys, sluice; client = sluice.connect(data_dir={str(folder)!r});"
        "print(client.subscriptions('orders'));"
        "client.create_producer('orders').close(); client.close(); print('ray' in sys.modules)"
    )
    ran = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.splitlines() == ["['audit', 'billing']", "False"]


def assert_found_again(client: sluice.Client, left: int) -> None:
    """Check that everything from the first half of the test is there."""
    (topic,) = client.topics()
    assert (topic["topic"], topic["partitions"], topic["retention_ms"]) == ("orders", 2, 77)
    assert client.subscriptions("orders") == ["audit", "billing"]
    eventually(lambda: rows(client, "orders", "billing", "msgBacklog") == left, "the backlog is wrong")
    eventually(lambda: rows(client, "orders", "audit", "msgBacklog") == 202, "the other backlog is wrong")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_up_twice_adds_and_two_clusters_do_not_meet(folder: Path, tmp_path: Path) -> None:
    """`up` on a running cluster adds bookies; a cluster beside it lives and dies alone; strangers are kept out."""
    other = tmp_path / "other"
    first = up(folder, bookies=2)
    assert up(folder, bookies=3)["address"] == first["address"]
    try:
        assert up(other, bookies=2)["address"] != first["address"]
        mine, theirs = session_of(folder), session_of(other)
        pids = {process.pid for process in processes_of(mine)}
        assert pids.isdisjoint(process.pid for process in processes_of(theirs))
        for session in (mine, theirs):
            found = listeners(session)
            assert {"gcs_server", "raylet"} <= set(found.values())
            assert {host for host, _ in found} == {"127.0.0.1"}, found
            assert_nobody_else_gets_in(session)
        with attached(other) as client:
            client.create_topic("theirs")
        with attached(folder) as client:
            client.create_topic("three", ensemble=3)
            assert [row["topic"] for row in client.topics()] == ["three"]
        assert_strangers_are_kept_out(str(first["address"]), tmp_path)
    finally:
        if other.exists():
            launch.down(other)
    assert count_nodes(mine) == 1
    with attached(folder) as client:
        client.create_producer("three").send(b"x", partition_key="k")
        state = describe(values(folder, bookies=3))
        assert state["alarms"] == []
        assert state["underReplicated"] == 0
        assert state["controller_machine"] == "127.0.0.1"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_disk_below_its_minimum_is_told_where_somebody_waits(folder: Path) -> None:
    """`up` names it, a second one too; subscribing ends in time, and a client that waits can say why."""
    full: dict[str, Any] = {"bookies": 1, "bookie": {"min_free_bytes": 1 << 60}}
    for _ in range(2):
        answer = up(folder, **full)
        assert answer["read_only"]
        assert any("are the minimum" in alarm for alarm in answer["alarms"]), answer
    assert up(folder, brokers=3, **full)["kept"] == {"brokers": [1, 3]}
    with attached(folder) as client:
        client.create_topic("orders", ensemble=1, write_quorum=1, ack_quorum=1)
        with pytest.raises(sluice.Unavailable, match=r"did not succeed within 0\.001 s"):
            client.subscribe("orders", "billing", timeout_ms=1)
        producer = client.create_producer("orders")
        receipt = producer.send_async(b"x", partition_key="k")
        eventually(client.troubles, "the client does not know why it waits")
        with pytest.raises(sluice.Unavailable, match=r"not confirmed within 0\.01 s"):
            receipt.result(0.01)
        with pytest.raises(sluice.Unavailable):
            producer.close(0.01)  # a client that closes would wait for it much longer


def assert_nobody_else_gets_in(session: str) -> None:
    """Another user of the machine cannot reach Ray's sockets, whatever Ray allows in its own folders."""
    assert stat.S_IMODE(Path(session).stat().st_mode) == 0o700
    sockets = [path for path in Path(session).rglob("*") if path.is_socket()]
    assert sockets
    assert all(len(os.fsencode(path)) <= 107 for path in sockets)
    mine = {process.pid for process in processes_of(session)}
    bound = {each.laddr for each in psutil.net_connections("unix") if each.pid in mine and each.laddr}
    open_to_others = [path for path in bound if not any(is_private(folder) for folder in Path(str(path)).parents)]
    assert open_to_others == []
    commands = [" ".join(process.cmdline()) for process in processes_of(session)]
    assert not [command for command in commands if "ray.util.client.server" in command]


def is_private(folder: Path) -> bool:
    """Tell whether this user alone may enter the folder."""
    return stat.S_IMODE(folder.stat().st_mode) == 0o700 and folder.stat().st_uid == os.getuid()


def assert_strangers_are_kept_out(address: str, tmp_path: Path) -> None:
    """Another token, or none: one line, exit 2."""
    wrong = tmp_path / "wrong-token"
    wrong.write_text("ab" * 32)
    wrong.chmod(0o600)
    script = "import sys; from sluice.cli import main; sys.argv = ['sluice', *sys.argv[1:]]; main()"
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    for more in ({"RAY_AUTH_TOKEN_PATH": str(wrong)}, {"HOME": str(tmp_path)}):
        done = subprocess.run(
            [PYTHON, "-c", script, "topics", "list", "--address", address, "--data-dir", str(tmp_path / "empty")],
            cwd=ROOT,
            env=plain | more,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert done.stderr.startswith("sluice: "), done.stderr


# -- what goes ------------------------------------------------------------------------------------------------------

CHILD = """
import signal, sys, time
import sluice
from sluice.cluster.launch import launch
make = launch.short_folder
def told(note):
    path = make(note)
    print(path, flush=True)
    return path
launch.short_folder = told
signal.signal(signal.SIGTERM, signal.default_int_handler)
with launch.local(sys.argv[1], bookies=1, brokers=1, object_store_bytes=80 << 20):
    print("up", flush=True)
    time.sleep(3600)
"""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("folder", signal.SIGINT),
        pytest.param("gcs_server", signal.SIGINT, marks=pytest.mark.release),
        pytest.param("raylet", signal.SIGINT, marks=pytest.mark.release),
        ("ray::", signal.SIGINT),
        ("up", signal.SIGINT),
        ("up", signal.SIGTERM),
    ],
)
def test_an_interrupted_cluster_leaves_nothing(tmp_path: Path, moment: str, number: signal.Signals) -> None:
    """Ctrl-C at any moment of a start or a run: no process, no port, no folder, and the data folder is free.

    The whole process group gets the signal. SIGTERM, which Ray's daemons obey, ends them at the same time.
    """
    child = subprocess.Popen(
        [PYTHON, "-c", CHILD, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        session = child.stdout.readline().strip()
        assert is_session_folder(session)
        eventually(lambda: has_come(moment, session, child), f"{moment} did not come")
        sockets = listening_sockets([port for _, port in listeners(session)])
        os.killpg(child.pid, number)
        assert child.wait(PATIENCE_S) not in (0, -signal.SIGSEGV, -signal.SIGABRT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    # Ray ends a process whose daemons die, and then another one cleans up behind it: not gone at once, but gone.
    eventually(lambda: names(session) == [], lambda: f"processes stay: {names(session)}")
    eventually(lambda: still_open(sockets) == [], lambda: f"ports stay open: {still_open(sockets)}")
    eventually(lambda: not Path(session).exists(), "the folder of the session stays")
    with claimed(tmp_path):
        pass


def has_come(moment: str, session: str, child: subprocess.Popen[str]) -> bool:
    """Whether a start has got so far."""
    if moment == "up":
        return child.stdout is not None and child.stdout.readline().strip() == "up"
    return moment == "folder" or any(name.startswith(moment) for name in names(session))


def names(session: str) -> list[str]:
    """The processes of a session, by name."""
    found = []
    for process in processes_of(session):
        with contextlib.suppress(psutil.Error):
            found.append(process.name())
    return found


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_an_exception_ends_the_local_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception comes through; meanwhile everything listened on the loopback, and nobody else gets the folder."""
    sessions: list[str] = []

    def told(note: list[str]) -> str:
        sessions.append(short_folder(note))
        return sessions[-1]

    monkeypatch.setattr(launch, "short_folder", told)
    token = os.environ.get("RAY_AUTH_TOKEN_PATH")
    sockets: dict[int, int] = {}
    with pytest.raises(ZeroDivisionError), launch.local(tmp_path, bookies=1, brokers=1, **SMALL):  # noqa: PT012
        found = listeners(sessions[-1])
        assert {host for host, _ in found} == {"127.0.0.1"}, found
        sockets = listening_sockets([port for _, port in found])
        with pytest.raises(sluice.Invalid, match="this process itself runs a cluster on"), launch.local(tmp_path):
            pass
        with pytest.raises(sluice.Invalid, match="this process itself runs a cluster on"):
            launch.up(values(tmp_path))
        raise ZeroDivisionError
    assert sockets
    for session in sessions:
        assert names(session) == []
        assert not Path(session).exists()
    assert still_open(sockets) == []
    assert "SLUICE_INTERNAL_ADDRESS" not in os.environ
    assert os.environ.get("RAY_AUTH_TOKEN_PATH") == token


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test if Ray would be started."""

    def refuse(note: list[str] | None = None) -> str:
        raise AssertionError("a session was begun")

    monkeypatch.setattr(launch, "short_folder", refuse)


@pytest.mark.usefixtures("no_session")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """Before anything is started."""
    file = tmp_path / "file"
    file.write_text("in the way")
    for folder in (file, file / "below", Path("/proc/sluice")):
        with pytest.raises(sluice.Invalid, match=r"the data folder .* cannot be used"):
            launch.up(values(folder))
        with pytest.raises(sluice.Invalid, match=r"the data folder .* cannot be used"), launch.local(folder):
            pass


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"address": 7, "session": "", "token_file": ""}',
        '{"address": "127.0.0.1:1", "session": "/home", "token_file": ""}',
        '{"address": "127.0.0.1:1", "session": "/tmp/sluice-x/../../home", "token_file": ""}',
    ],
)
def test_a_foreign_state_file_is_refused(tmp_path: Path, content: str) -> None:
    """The file says which processes to end and which folders to remove, so a foreign one is refused and left as it
    is.
    """
    (tmp_path / STATE_FILE).write_text(content)
    for call in (lambda: launch.up(values(tmp_path)), lambda: launch.down(tmp_path), lambda: discovery.find(tmp_path)):
        with pytest.raises(sluice.Invalid, match=r"cluster\.json .*remove it if no cluster runs"):
            call()
    assert (tmp_path / STATE_FILE).read_text() == content


@pytest.mark.usefixtures("no_session")
def test_an_address_where_nothing_listens_is_refused(tmp_path: Path) -> None:
    """At once, by every way in."""
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(sluice.Unavailable, match=f"nothing answers at {address}"):
        launch.up(values(tmp_path, address=address))
    assert not (tmp_path / STATE_FILE).exists()
    with pytest.raises(sluice.Unavailable, match="nothing answers at"):
        sluice.connect(address)
    with pytest.raises(sluice.Unavailable, match="nothing answers at"):
        launch.join("no-port-at-all")


def test_a_folder_without_a_cluster(tmp_path: Path) -> None:
    """Nothing to end, nothing to show."""
    with pytest.raises(sluice.NotFound, match="no cluster was started on"):
        launch.down(tmp_path)
    with pytest.raises(sluice.NotFound, match="no cluster was started on"):
        launch.down(tmp_path / "nowhere")
    assert discovery.find(tmp_path) is None


def test_a_state_file_of_a_dead_cluster_is_cleared_away(tmp_path: Path) -> None:
    """`down` after a reboot: nothing runs, the traces go."""
    session = short_folder()
    state = {"address": f"127.0.0.1:{free_port()}", "session": session, "token_file": ""}
    (tmp_path / STATE_FILE).write_text(json.dumps(state))
    (tmp_path / DOOR_FILE).write_text("{}")  # where its controller listened
    assert launch.down(tmp_path) == {"ended": 0}
    assert not Path(session).exists()
    assert not (tmp_path / STATE_FILE).exists()
    assert not (tmp_path / DOOR_FILE).exists()


def test_an_interrupt_that_breaks_rays_import_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is imported halfway can do nothing, so what runs is ended by process id."""
    daemons: list[subprocess.Popen[bytes]] = []
    joins: list[str] = []

    def start_head(session: str, **_: object) -> str:
        daemons.append(subprocess.Popen([PYTHON, "-c", "import time; time.sleep(600)", f"{session}/ray/raylet"]))
        return "127.0.0.1:1"

    def join(address: str, *_: object) -> None:
        joins.append(address)
        raise KeyboardInterrupt if len(joins) == 1 else AttributeError("partially initialized module 'ray'")

    for name, made_up in (("start_head", start_head), ("join", join), ("answers", lambda _: True)):
        monkeypatch.setattr(launch, name, made_up)
    monkeypatch.setattr(launch, "_add_nodes", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        launch.up(values(tmp_path / "data"))
    assert len(joins) == 2
    assert len(daemons) == 1
    ended = daemons[0].poll() is not None
    daemons[0].kill()
    assert ended
    assert not (tmp_path / "data" / STATE_FILE).exists()
