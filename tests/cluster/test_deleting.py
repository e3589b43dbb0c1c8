"""A subscription that is deleted by name or by verb, and a topic that is, in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

import cluster
from cluster.history_scan import StoreUrls, stored_topics
from storage.errors import Invalid, NotFound

pytestmark = pytest.mark.timeout(300)


def test_a_deletion_by_verb_is_that_of_the_controller(tmp_path: Path) -> None:
    """Its owners alone would be found gone, and started again."""
    with cluster.connect(embedded=True, data_dir=tmp_path) as client:
        client.create_topic("orders", 2)
        consumer = client.subscribe("orders", "billing")
        with pytest.raises(Invalid, match="consumers are connected"):
            client.admin("orders", "billing", "delete")
        assert client.subscriptions("orders") == ["billing"]
        consumer.close()
        assert client.admin("orders", "billing", "delete") == [{"deleted": True}] * 2
        assert client.subscriptions("orders") == []
        assert not any(row["kind"] == "dispatcher" for row in client.status()["actors"])
        with pytest.raises(NotFound, match="has no subscription 'billing'"):
            client.admin("orders", "billing", "delete", force=True)


def test_a_topic_that_was_deleted_is_no_table(tmp_path: Path) -> None:
    """Its records stay; a query that names something like it would fail at what is not there."""
    with cluster.connect(embedded=True, data_dir=tmp_path / "data") as client:
        for topic in ("kept", "gone"):
            client.create_topic(topic, 2)
            client.create_producer(topic).send(b"payload")
        client.delete_topic("gone")
        assert stored_topics(StoreUrls.in_folder(tmp_path / "data")) == ["kept"]
