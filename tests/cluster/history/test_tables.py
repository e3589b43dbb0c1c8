"""The tables of a catalog: its failures are answers, and one that hangs is asked by one thread at a time."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from threading import Event

import pytest

from sluice.cluster.history import tables
from sluice.cluster.history.scan import StoreUrls
from sluice.cluster.history.tables import CatalogTables, check_catalog
from sluice.storage.errors import Invalid, Unavailable


def catalog_tables(catalog: str, folder: Path) -> CatalogTables:
    return CatalogTables(catalog, f"file://{folder}/tables", StoreUrls.in_folder(folder))


def test_a_damaged_catalog_is_unavailable_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "c.db").write_bytes(b"no database" * 1_000)
    with pytest.raises(Unavailable, match="does not answer") as caught:
        asyncio.run(catalog_tables(f"sqlite:///{tmp_path}/c.db", tmp_path).follow("t"))
    assert "\n" not in str(caught.value)


def test_a_locked_catalog_is_unavailable(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "c.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Unavailable, match=r"does not answer: .*locked"):
            asyncio.run(catalog_tables(f"sqlite:///{tmp_path}/c.db?timeout=0.1", tmp_path).follow("t"))
    other.close()


@pytest.mark.parametrize(
    ("catalog", "said"),
    [
        ("postgresql+pg8000://till:hidden@host/db", "postgresql.pg8000://host/db needs the package pg8000"),
        ("nonsense://till:hidden@host/db", "nonsense://host/db names no database"),
    ],
)
def test_a_catalog_without_a_driver_is_refused_at_the_start(catalog: str, said: str) -> None:
    with pytest.raises(Invalid, match=said) as caught:
        check_catalog(catalog)
    assert "hidden" not in str(caught.value)
    check_catalog("sqlite:////somewhere/c.db")


def test_a_hanging_catalog_answers_further_topics_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, asked = Event(), []

    def follow(topic: str) -> None:
        asked.append(topic)
        if topic == "first":
            goes_on.wait(60)

    monkeypatch.setattr(tables, "COMMIT_S", 0.1)
    found = catalog_tables("http://somewhere", tmp_path)
    monkeypatch.setattr(found, "_follow", follow)

    async def scenario() -> None:
        with pytest.raises(Unavailable, match="does not answer within"):
            await found.follow("first")
        monkeypatch.setattr(tables, "COMMIT_S", 3_600)
        with pytest.raises(Unavailable, match="does not answer within"):
            await found.follow("second")
        assert asked == ["first"]
        goes_on.set()
        assert found._hanging is not None
        await asyncio.wrap_future(found._hanging)
        await found.follow("second")
        assert asked == ["first", "second"]

    try:
        asyncio.run(scenario())
    finally:
        goes_on.set()
