"""One data folder, two sorts of cluster: what one process wrote without Ray a Ray cluster opens, and vice versa."""

from __future__ import annotations

from pathlib import Path

import pytest

import sluice
from sluice.cluster.client.client import Client
from sluice.cluster.launch import launch
from sluice.cluster.node import identity
from tests.cluster.helpers import SMALL, Received, batch, eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

KEYS, EACH = 5, 10


def publish_and_take_half(client: Client, turn: int) -> None:
    """Publish the numbers of a turn for each key; of two subscriptions one acknowledges them, and one does not."""
    client.create_topic("orders", 2)
    with client.create_producer("orders", "writer") as producer:
        producer.send_batch(batch(KEYS, EACH, first=turn * EACH))
    with client.subscribe("orders", "done", initial_position="earliest") as consumer:
        got = Received()
        eventually(
            lambda: got.take([consumer]) is not None and got.complete(KEYS, EACH), lambda: got.missing(KEYS, EACH)
        )
        got.settle([consumer], client, "orders", "done")
        assert all(numbers[0] == turn * EACH for numbers in got.by_key.values()), "it came a second time"
    client.subscribe("orders", "later", initial_position="earliest").close()


def check_everything(client: Client, turns: int) -> None:
    """Check that messages without an acknowledgement are all there, in order, and that no other one comes again."""
    with client.subscribe("orders", "later") as consumer:
        got = Received()
        whole = turns * EACH
        eventually(
            lambda: got.take([consumer], acknowledge=False) is not None and got.complete(KEYS, whole),
            lambda: got.missing(KEYS, whole),
        )
        got.check(KEYS, whole)


def test_a_folder_goes_from_one_to_the_other_and_back(tmp_path: Path) -> None:
    with sluice.connect(embedded=True, data_dir=tmp_path) as client:
        publish_and_take_half(client, 0)
    known = identity.of(tmp_path)
    with launch.local(tmp_path, brokers=1, **SMALL), sluice.connect() as client:
        publish_and_take_half(client, 1)
        check_everything(client, 2)
        with pytest.raises(sluice.Invalid, match="this process itself runs a cluster on"):
            sluice.connect(embedded=True, data_dir=tmp_path)
    with sluice.connect(embedded=True, data_dir=tmp_path) as client:
        publish_and_take_half(client, 2)
        check_everything(client, 3)
        eventually(lambda: client.alarms() == [], lambda: str(client.alarms()))
    assert identity.of(tmp_path) == known
