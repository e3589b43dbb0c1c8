"""Programs with a cluster in their process that fork: a child's life and end are none of its parent's."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sluice
from sluice.cluster.base.forks import keep_from_children
from tests.cluster.helpers import PATIENCE_S
from tests.cluster.launch.test_embedded import begin, run

pytestmark = pytest.mark.timeout(300)


@contextmanager
def forked(work: Callable[[], object] = lambda: None) -> Iterator[int]:
    """A forked child that works and then lives on for as long as the block. Fails if the work fails."""
    reading, writing = os.pipe()
    worked, told = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        try:
            work()
            os.write(told, b"1")
            os.read(reading, 1)  # until the parent closes its end
            os._exit(0)
        except BaseException:
            os.write(told, b"0")
            os._exit(1)
    os.close(reading)
    os.read(worked, 1)
    try:
        yield child
    finally:
        os.close(writing)
        _, status = os.waitpid(child, 0)
        for descriptor in (worked, told):
            os.close(descriptor)
        assert os.waitstatus_to_exitcode(status) == 0


ENDS = """
import multiprocessing, os, sys
import sluice
client = sluice.connect(embedded=True)
client.create_topic("orders")
producer = client.create_producer("orders")
producer.send(b"before", partition_key="k")
if sys.argv[1] == "multiprocessing":
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join()
elif os.fork() == 0:
    sys.exit()
else:
    os.wait()
producer.send(b"after", partition_key="k")
consumer = client.subscribe("orders", "billing", initial_position="earliest")
print([consumer.receive(240_000).data().decode() for _ in range(2)], len(os.listdir(os.environ["TMPDIR"])))
"""


@pytest.mark.parametrize("way", ["multiprocessing", "exit"])
def test_the_end_of_a_child_ends_nothing(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit hook ran in the child, waited for a thread that it does not have, and removed the parent's data."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::DeprecationWarning")  # Python 3.12 warns of forks beside threads
    assert run(ENDS, way) == (0, "['before', 'after'] 1\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_living_child_holds_no_folder(tmp_path: Path) -> None:
    client = sluice.connect(embedded=True, data_dir=tmp_path)
    with forked():
        client.close()
        sluice.connect(embedded=True, data_dir=tmp_path).close()


SERVES = """
import os, sys
import sluice
client = sluice.connect(embedded=True, pulsar_port=0)
url = client.pulsar_service_url
if os.fork() == 0:
    print(url, flush=True)  # from the child: what it does at a fork is done by now
    sys.stdin.read()
    os._exit(0)
os.kill(os.getpid(), 9)
"""


def test_a_living_child_holds_no_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients would connect to a port at which nobody answers any more."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    killed = begin(SERVES)
    assert killed.stdout is not None
    host, _, port = killed.stdout.readline().strip().removeprefix("pulsar://").partition(":")
    killed.wait(PATIENCE_S)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    killed.communicate()


CONNECTS_ITSELF = """
import faulthandler, os, sys
import sluice

folder = sys.argv[1]
with sluice.connect(embedded=True, data_dir=f"{folder}/parents") as client:
    client.create_topic("orders")
    producer = client.create_producer("orders")
    consumer = client.subscribe("orders", "billing")
    producer.send(b"first")
    message = consumer.receive(240_000)
    child = os.fork()
    if not child:
        faulthandler.dump_traceback_later(200, exit=True)  # where it waits, should it wait for ever
        producer._send_scheduled = consumer._loop_told = True  # the fork may have come at such a moment
        told = f"made by process {os.getppid()}"
        for call in (
            client.topics,
            lambda: producer.send_async(b"x"),
            lambda: consumer.receive(),
            lambda: consumer.acknowledge(message),
            producer.flush,
        ):
            try:
                call()
            except sluice.Invalid as refused:
                print(told in str(refused), flush=True)
        for parents in (consumer, producer, client):
            parents.close()
        with sluice.connect(embedded=True, data_dir=f"{folder}/childs") as own:
            own.create_topic("its-own")
            print([row["topic"] for row in own.topics()], flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(status, [row["topic"] for row in client.topics()])
    producer.send(b"x", partition_key="k")
    print(consumer.receive(240_000).data().decode())
"""


def test_a_child_is_told_to_connect_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child would wait for ever for the thread of its parent. Its own cluster works, and ends with it.

    The program has a process of its own: a child of the tests' process may wait in the collection of what earlier
    tests left there, as clients whose threads it does not have.
    """
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::DeprecationWarning")  # Python 3.12 warns of forks beside threads
    told = "True\n" * 5 + "['its-own']\n" + "0 ['orders']\nx\n"
    assert run(CONNECTS_ITSELF, str(tmp_path)) == (0, told, "")


def test_a_number_that_another_file_has_got_is_left_alone(tmp_path: Path) -> None:
    first = keep_from_children(os.open(tmp_path / "first", os.O_CREAT | os.O_RDWR))
    os.close(first)
    second = os.open(tmp_path / "second", os.O_CREAT | os.O_RDWR)
    assert second == first

    def still_there() -> None:
        assert os.path.samestat(os.fstat(second), os.stat(tmp_path / "second"))

    with forked(still_there):
        pass
    os.close(second)


def test_a_lock_is_its_makers_alone(tmp_path: Path) -> None:
    held = keep_from_children(os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR))
    fcntl.flock(held, fcntl.LOCK_EX)
    with forked(), tempfile.TemporaryFile():
        os.close(held)
        again = os.open(tmp_path / "lock", os.O_RDWR)
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(again)
