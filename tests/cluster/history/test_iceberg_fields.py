"""The fields of a topic's schema are columns of its Iceberg table: published by an unchanged client of Pulsar's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Float, JsonSchema, Long, Record, String

from sluice.cluster.client.client import Client
from sluice.cluster.history.iceberg import IcebergTable, open_catalog
from sluice.cluster.history.scan import StoreUrls
from sluice.cluster.launch import embedded
from tests.cluster.gateway.clients import joined
from tests.cluster.helpers import eventually


class Order(Record):  # type: ignore[misc]
    article = String()
    amount = Long()


class Larger(Record):  # type: ignore[misc]
    article = String()
    amount = Long()
    price = Float(required_default=True)


class Renewed(Record):  # type: ignore[misc]
    amount = String()


class Site:
    """A cluster with a catalog, and with topics whose ledgers leave as soon as they are closed."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client, self.folder = client, folder
        self.pulsar = joined(client)

    def publish(self, topic: str, schema: Any, values: list[Any], **how: Any) -> None:
        """Each value as a message, batched as the client does."""
        producer = self.pulsar.create_producer(topic, schema=schema, **how)
        for number, value in enumerate(values):
            producer.send_async(value, None, partition_key=f"k{number % 2}")
        producer.flush()
        producer.close()

    def status(self, topic: str) -> dict[str, Any]:
        return self.client.offload_status(topic)[0]

    def table(self, topic: str) -> Any:
        """As another process reads it."""
        catalog = open_catalog(f"sqlite:///{self.folder}/c.db", StoreUrls.in_folder(self.folder).objects + "-iceberg")
        return IcebergTable(catalog, StoreUrls.in_folder(self.folder), topic).table()

    def rows(self, topic: str, count: int, *columns: str) -> list[dict[str, Any]]:
        """Columns of all messages, when they are so many."""
        rows: list[dict[str, Any]] = []

        def found() -> bool:
            table = self.table(topic)
            known = [name for name in columns if name in table.schema().column_names]
            try:
                rows[:] = table.scan(selected_fields=(*known, "ledger", "entry")).to_arrow().to_pylist()
            except FileNotFoundError:  # it has not followed yet
                return False
            return len(rows) == count

        eventually(found, lambda: f"{len(rows)} of {count}: {self.status(topic)}")
        rows.sort(key=lambda row: (row["ledger"], row["entry"]))
        return [{name: row[name] for name in columns if name in row} for row in rows]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path}/data/c.db"
    with embedded.connect(tmp_path / "data", iceberg_catalog=url, pulsar_port=0) as client:
        one = Site(client, tmp_path / "data")
        yield one
        one.pulsar.close()


def settings(site: Site, topic: str, entries: int) -> None:
    site.client.create_topic(topic, 1, roll_entries=entries, offload_threshold_bytes=0, offload_deletion_lag_ms=0)


@pytest.mark.parametrize("schema", [AvroSchema, JsonSchema])
def test_fields_are_columns_and_new_ones_are_added(site: Site, schema: Any) -> None:
    settings(site, "orders", 3)
    site.publish("orders", schema(Order), [Order(article=f"a{n}", amount=n) for n in range(3)])
    first = [{"article": f"a{n}", "amount": n} for n in range(3)]
    assert site.rows("orders", 3, "article", "amount", "price") == first
    old = site.table("orders").current_snapshot().snapshot_id
    site.publish("orders", schema(Larger), [Larger(article=None, amount=n, price=0.5) for n in range(3)])
    second = [{"article": None, "amount": n, "price": 0.5} for n in range(3)]
    assert site.rows("orders", 6, "article", "amount", "price") == [row | {"price": None} for row in first] + second
    table = site.table("orders")
    assert table.scan(row_filter="price > 0.1 and amount = 2").to_arrow().num_rows == 1
    assert table.scan(snapshot_id=old).to_arrow().num_rows == 3
    assert site.status("orders")["undecoded"] == 0


def test_payload_that_is_no_order_is_null_and_counted(site: Site) -> None:
    """A client claims the schema and sends something else: everything leaves all the same."""
    settings(site, "orders", 4)
    wrong = pulsar.schema.BytesSchema()
    wrong._schema_info = AvroSchema(Order)._schema_info  # what it registers, and not what it sends
    good = AvroSchema(Order).encode(Order(article="a", amount=7))
    site.publish("orders", wrong, [b"\xff\xff", good, b"", good[:-1]])
    assert site.rows("orders", 4, "article", "amount") == [
        {"article": None, "amount": None},
        {"article": "a", "amount": 7},
        {"article": None, "amount": None},
        {"article": None, "amount": None},
    ]
    assert site.status("orders")["undecoded"] == 3


def test_an_erased_key_is_gone_from_the_columns(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.actors.topic.background.erasing.FORGOTTEN_MS", 0)
    settings(site, "orders", 4)
    site.publish("orders", AvroSchema(Order), [Order(article=f"secret{n}", amount=n) for n in range(4)])
    assert len(site.rows("orders", 4, "article")) == 4
    site.client.erase("orders", "k1")
    eventually(
        lambda: not site.client.erase_status("orders")[0]["keys"], lambda: str(site.client.erase_status("orders"))
    )
    wanted = [
        {"article": f"secret{n}", "amount": n} if n % 2 == 0 else dict.fromkeys(("article", "amount")) for n in range(4)
    ]
    eventually(
        lambda: site.rows("orders", 4, "article", "amount") == wanted, lambda: str(site.rows("orders", 4, "article"))
    )
    files = [*(site.folder / "objects" / "history+").rglob("*.parquet")]
    assert len(files) == 1
    assert site.table("orders").inspect.files().column("file_path").to_pylist() == [f"file://{files[0]}"]


def test_older_files_and_topics_of_the_same_name(tmp_path: Path) -> None:
    """Files from before the catalog have no columns; a topic that is made again may have other columns of the same
    name.
    """
    data = tmp_path / "data"
    with embedded.connect(data, pulsar_port=0) as client:
        site = Site(client, data)
        settings(site, "orders", 2)
        site.publish("orders", AvroSchema(Order), [Order(article="a", amount=n) for n in range(2)])
        eventually(lambda: site.status("orders")["offloaded_ledgers"] == 1, lambda: str(site.status("orders")))
        site.pulsar.close()
    with embedded.connect(data, iceberg_catalog=f"sqlite:///{data}/c.db", pulsar_port=0) as client:
        site = Site(client, data)
        site.publish("orders", AvroSchema(Order), [Order(article="b", amount=n) for n in range(2)])
        found = [{"amount": None}, {"amount": None}, {"amount": 0}, {"amount": 1}]
        assert site.rows("orders", 4, "amount") == found
        client.delete_topic("orders", force=True)
        settings(site, "orders", 2)
        site.publish("orders", AvroSchema(Renewed), [Renewed(amount="many") for _ in range(2)])
        assert site.rows("orders", 2, "amount") == [{"amount": "many"}] * 2
        site.pulsar.close()
