"""A bookie that loses its disk: it is refused, reported and replaced, and every message has its copies again."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

import sluice
from sluice.cluster.client.client import Client
from sluice.cluster.launch import launch
from sluice.cluster.launch.status import describe
from tests.cluster.helpers import (
    PATIENCE_MS,
    PATIENCE_S,
    Received,
    actors,
    attached,
    batch,
    eventually,
    pid_of,
    rows,
    values,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1500)]

KEYS, EACH, BATCHES = 20, 10, 12


def bookies_of(client: Client, topic: str) -> set[str]:
    """Every bookie that the record of a topic names."""
    return {
        bookie
        for row in client.stats(topic)
        for ledger in row["ledgers"]
        for _, names in ledger["fragments"]
        for bookie in names
    }


def is_told(alarms: list[str]) -> bool:
    """Whether an alarm says which bookie is lost and why: in the words of its last start, which may have timed out."""
    return any("bookie-1 is lost" in alarm and "emptied" in alarm for alarm in alarms)


def kill(client: Client, kind: str, name: str) -> None:
    """SIGKILL to the process of an actor."""
    for row in actors(client, kind, name):
        os.kill(pid_of(row["address"]), signal.SIGKILL)


def test_the_copies_of_a_lost_bookie_are_made_again(tmp_path: Path) -> None:
    """A bookie's folder is deleted after a kill: the count of missing copies returns to zero, old data is read without
    it.
    """
    folder = tmp_path / "data"
    launch.up(values(folder, bookies=3))
    try:
        with attached(folder) as client:
            # Small ledgers: most are closed, and each pair of bookies has some.
            client.create_topic("old", roll_entries=KEYS * EACH)
            client.create_topic("idle")
            client.subscribe("old", "s", initial_position="earliest").close()
            producer = client.create_producer("old")
            for number in range(BATCHES):
                producer.send_batch(batch(KEYS, EACH, first=EACH * number)).result(PATIENCE_S)
            assert len(client.stats("old")[0]["ledgers"]) >= BATCHES / 2
            assert bookies_of(client, "old") == {"bookie-0", "bookie-1", "bookie-2"}
            lose(client, folder)
            eventually(lambda: client.status()["lostBookies"] == ["bookie-1"], "the bookie is not given up")
            eventually(
                lambda: "bookie-1" not in bookies_of(client, "old") and client.status()["underReplicated"] == 0,
                lambda: f"copies are missing: {client.status()['underReplicated']} in {client.stats('old')}",
            )
            assert client.stats("old")[0]["underReplicated"] == 0
            # No memory of an owner, and one copy less: what is read now was copied.
            kill(client, "topic", "old")
            kill(client, "bookie", "bookie-0")
            consumer = client.subscribe("old", "s")
            received = Received()
            eventually(
                lambda: received.take([consumer]) >= 0 and received.complete(KEYS, EACH * BATCHES),
                lambda: received.missing(KEYS, EACH * BATCHES),
            )
            received.check(KEYS, EACH * BATCHES)
            consumer.wait_acknowledged(PATIENCE_MS)
            eventually(lambda: rows(client, "old", "s", "msgBacklog") == 0, "the backlog stays")
            consumer.close()
            with pytest.raises(sluice.Invalid, match="this cluster has 2"):
                client.create_topic("wide", ensemble=3)
            eventually(lambda: is_told(describe(values(folder))["alarms"]), lambda: str(describe(values(folder))))
        launch.up(values(folder, bookies=4))
        with attached(folder) as client:
            assert {row["name"] for row in actors(client, "bookie")} == {
                f"bookie/bookie-{number}" for number in (0, 2, 3)
            }
            client.create_topic("wide", ensemble=3)
            client.create_producer("wide").send_batch(batch(KEYS, EACH)).result(PATIENCE_S)
            assert bookies_of(client, "wide") == {"bookie-0", "bookie-2", "bookie-3"}
    finally:
        launch.down(folder)


def lose(client: Client, folder: Path) -> None:
    """Empty a bookie's disk and kill it: its next start finds nothing, however soon that is."""
    shutil.rmtree(folder / "bookies" / "bookie-1", ignore_errors=True)
    kill(client, "bookie", "bookie-1")
