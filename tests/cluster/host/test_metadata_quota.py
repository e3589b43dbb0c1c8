"""The quota of what clients and operators make in the metadata store."""

from __future__ import annotations

from pathlib import Path

import pytest

import sluice
from sluice.cluster.host import metadata_quota
from sluice.cluster.host.store_ports import AsyncMeta
from sluice.cluster.host.stores import open_metadata
from sluice.cluster.launch import embedded
from sluice.storage.errors import Invalid

QUOTA = 200_000
LARGE = bytes(60_000)


async def _fill(meta: AsyncMeta) -> int:
    """Create topics until the quota refuses one; how many there are. Raises AssertionError if it refuses none."""
    for number in range(20):
        try:
            assert await meta.create(f"topic/{number}", 1, LARGE)
        except Invalid:
            return number
    raise AssertionError("any number fits")


async def test_a_full_store_refuses_topics_and_keeps_owners(tmp_path: Path) -> None:
    meta = open_metadata(str(tmp_path), quota=QUOTA)
    try:
        topics = await _fill(meta)
        assert 2 <= topics <= 3
        assert await meta.create("partition/0/0", 1, LARGE), "the record of an owner"
        assert await meta.create("topic/0", 2, LARGE), "a version that is no larger"
        with pytest.raises(Invalid, match="quota is 200000"):
            await meta.create("topic/0", 3, LARGE + b"x")
        with pytest.raises(Invalid):
            await meta.create("workers/pool", 1, b"x" * QUOTA)
    finally:
        meta.close()


async def test_a_removed_record_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_quota, "LOAD", 1.0)
    monkeypatch.setattr(metadata_quota, "MEASURED_MS", 0)
    meta = open_metadata(str(tmp_path), quota=QUOTA)
    try:
        for number in range(await _fill(meta)):
            await meta.remove(f"topic/{number}")
        assert await meta.create("topic/new", 1, LARGE)
    finally:
        meta.close()


async def test_quota_holds_across_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_quota, "LOAD", 1.0)
    monkeypatch.setattr(metadata_quota, "MEASURED_MS", 0)
    one, other = open_metadata(str(tmp_path), quota=QUOTA), open_metadata(str(tmp_path), quota=QUOTA)
    try:
        await _fill(one)
        with pytest.raises(Invalid):
            await other.create("schema/0", 1, LARGE)
    finally:
        one.close()
        other.close()


async def test_a_quota_of_zero_is_any_number(tmp_path: Path) -> None:
    meta = open_metadata(str(tmp_path))
    try:
        with pytest.raises(AssertionError, match="any number fits"):
            await _fill(meta)
    finally:
        meta.close()


async def test_a_keeper_rewrites_its_pool_above_the_quota(tmp_path: Path) -> None:
    meta = open_metadata(str(tmp_path), quota=QUOTA)
    try:
        assert await meta.create("workers/pool", 1, b"x")
        await _fill(meta)
        assert await meta.create("workers/pool", 2, b"longer than before")
    finally:
        meta.close()


def _make_topics(client: sluice.Client) -> None:
    for number in range(1_000):
        client.create_topic(f"orders-{number}", partitions=4)


def test_a_refused_topic_names_the_quota(tmp_path: Path) -> None:
    with embedded.connect(tmp_path, metadata_quota_bytes=QUOTA) as client:
        client.create_topic("first")
        with pytest.raises(sluice.Invalid, match="metadata_quota_bytes"):
            _make_topics(client)
        with client.create_producer("first") as producer:
            producer.send(b"1")
        client.delete_topic("orders-0")
