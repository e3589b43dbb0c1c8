"""The loggers of the parts: each trouble is a warning of its part, once."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import sluice
from sluice.cluster.base.log_parts import WARNINGS, logger_of
from sluice.cluster.client.client import Client
from sluice.cluster.launch.embedded import EmbeddedCluster, running
from sluice.cluster.settings.options import ClusterOptions
from tests.cluster.helpers import eventually

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "running-a-cluster.md").read_text(encoding="utf-8")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    """A cluster in this process, whose actors the test can end."""
    with running(ClusterOptions(data_dir=tmp_path / "data")) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: EmbeddedCluster) -> Iterator[Client]:
    """A client of it."""
    with Client(net=cluster.net, loop=cluster.loop) as client:
        client.create_topic("orders")
        yield client


def said(caplog: pytest.LogCaptureFixture, part: str, level: int, words: str) -> list[str]:
    """Lines of one logger at one level that have these words."""
    every = [record.getMessage() for record in caplog.records if (record.name, record.levelno) == (part, level)]
    return [line for line in every if words in line]


def test_a_lease_that_was_lost_is_a_warning_of_the_client(
    cluster: EmbeddedCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = client.subscribe("orders", "billing", lease_ms=2000)
    cluster.loop.run(_stand_still(2.5))
    eventually(lambda: said(caplog, "sluice.client", logging.WARNING, "the lease was lost"), "it is said")
    (line,) = said(caplog, "sluice.client", logging.WARNING, "the lease was lost")
    assert f"topic=orders partition=0 subscription=billing consumer={consumer.consumer_name()}" in line


async def _stand_still(seconds: float) -> None:
    """The process does nothing for so long, as one that is suspended."""
    time.sleep(seconds)  # noqa: ASYNC251 (that is what is tested)


def test_a_reconnection_is_told_once_by_the_client(
    cluster: EmbeddedCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluice.client")
    producer = client.create_producer("orders")
    client.subscribe("orders", "billing")
    producer.send(b"before")
    for _, address, _ in cluster.actors.inventory():
        if (actor := address.partition("/")[2]).startswith(("topic-", "dispatcher-")):
            cluster.loop.run(cluster.actors.stop(actor, "the test ends it"))
    producer.send(b"after")
    for event in ("opened_again", "attached_again"):
        eventually(lambda event=event: said(caplog, "sluice.client", logging.INFO, event), event)  # type: ignore[misc]
        assert len(said(caplog, "sluice.client", logging.INFO, event)) == 1
    assert said(caplog, "sluice.client", logging.WARNING, "") == []


def test_a_handler_and_its_parked_key_are_told_by_their_parts(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    def handle(message: sluice.Message) -> None:
        raise ValueError("never")

    producer = client.create_producer("orders")
    for payload in (b"fails", b"waits behind it"):
        producer.send(payload, partition_key="key-1")
    with sluice.Workers("orders", "billing", handle, client=client, retry_delay_ms=1, max_redeliver_count=1):
        eventually(lambda: said(caplog, "sluice.dispatcher", logging.WARNING, "its key is parked"), "it is parked")
    (line,) = said(caplog, "sluice.dispatcher", logging.WARNING, "")
    assert line.endswith("key=key-1 topic=orders partition=0 subscription=billing")
    told = said(caplog, "sluice.pool", logging.WARNING, "the handler failed on key key-1")
    assert len(told) == 2
    assert all(text.rstrip().endswith("ValueError: never") for text in told)


@pytest.mark.parametrize(
    ("actor", "part"),
    [
        ("controller/pulsar", "gateway"),
        ("host-1/topic-0-1a2b", "topic"),
        ("client-1a/client", "client"),
        ("net", "net"),
    ],
)
def test_an_actor_logs_with_the_name_of_its_part(actor: str, part: str) -> None:
    assert logger_of(actor).name == f"sluice.{part}"


def test_a_program_without_a_log_sees_warnings_on_stderr() -> None:
    program = "import sluice, logging; sluice.connect; logging.getLogger('sluice.pool').warning('the handler failed')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "the handler failed\n"


def test_the_page_names_every_logger_and_every_warning() -> None:
    text = "".join(
        path.read_text(encoding="utf-8") for folder in ("cluster", "actors") for path in (ROOT / folder).rglob("*.py")
    )
    named = set(re.findall(r"getLogger\(\"(sluice\.\w+)\"\)", text))
    actors = {f"sluice.{part}" for part in ("client", "topic", "dispatcher", "bookie", "controller", "gateway")}
    shown = set(re.findall(r"^\| `(sluice\.\w+)` \|", PAGE, re.MULTILINE))
    assert named | actors <= shown
    assert [words for words in WARNINGS.values() if words not in " ".join(PAGE.split())] == []
