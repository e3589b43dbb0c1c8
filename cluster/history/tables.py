"""The catalog that a cluster's settings name, and the tables in it. Implements actors.ports.Tables.

Where there is a catalog, what leaves has columns for the fields of a topic's schema (cluster.history.schema_columns).

pyiceberg is the extra `iceberg`, and a process imports it with the first commit. What a catalog wants to be shown, such
as a token, stands where pyiceberg looks for it (the variable PYICEBERG_CATALOG__SLUICE__TOKEN, or ~/.pyiceberg.yaml).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sluice.cluster.base.extras import require
from sluice.cluster.base.printable import first_line
from sluice.cluster.history.scan import StoreUrls
from sluice.cluster.host.stores import without_password
from sluice.storage.errors import Corrupt, Invalid, NotFound, SluiceError, Unavailable
from sluice.storage.history.part import PayloadColumns

COMMIT_S = 60
"""A commit that takes longer is taken for lost; the next one compares again."""


def check_catalog(catalog: str) -> None:
    """Raises Invalid, in one line, if a catalog is named that cannot be used."""
    if not catalog:
        return
    sql = "://" in catalog and not catalog.startswith(("http://", "https://"))
    require("iceberg_catalog", "pyiceberg", "fastavro", *(["sqlalchemy"] if sql else []))
    if "://" not in catalog:
        raise Invalid(f"iceberg_catalog {catalog} is no catalog: give sqlite:///FILE or http://HOST:PORT")
    if sql:
        _check_driver(catalog)


def _check_driver(catalog: str) -> None:
    """Raises Invalid if SQLAlchemy does not know the kind of database, or lacks the package that speaks to it."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    shown = without_password(catalog)
    try:
        make_url(catalog).get_dialect().import_dbapi()
    except ImportError as error:
        raise Invalid(f"iceberg_catalog {shown} needs the package {error.name}: pip install it") from None
    except (SQLAlchemyError, ValueError):
        raise Invalid(f"iceberg_catalog {shown} names no database that SQLAlchemy knows") from None


class CatalogTables:
    """The tables of one catalog; commits of a process come one after another."""

    def __init__(self, catalog: str, warehouse: str, urls: StoreUrls) -> None:
        self._catalog, self._warehouse, self._urls = catalog, warehouse, urls
        self._thread = ThreadPoolExecutor(1, "tables")
        self._looking = ThreadPoolExecutor(1, "schemas")
        self._hanging: Future[None] | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> CatalogTables | None:
        """Open the tables that a cluster's settings name; None if they name no catalog."""
        catalog = settings.get("iceberg_catalog")
        if not catalog:
            return None
        urls = StoreUrls(settings["metadata"], settings["objects"], settings.get("s3_endpoint_url"))
        return cls(catalog, settings.get("iceberg_warehouse") or default_warehouse(settings), urls)

    async def follow(self, topic: str) -> None:
        hangs = Unavailable(f"the catalog {without_password(self._catalog)} does not answer within {COMMIT_S} s")
        if self._hanging is not None and not self._hanging.done():
            raise hangs
        commit = self._thread.submit(self._follow, topic)
        try:
            await asyncio.wait_for(asyncio.wrap_future(commit), COMMIT_S)
        except TimeoutError:
            if commit.running():  # others would wait for the same thread, each until its own time is over
                self._hanging = commit
            raise hangs from None
        except NotFound as error:
            raise Unavailable(str(error)) from error

    async def columns(self, topic: str) -> PayloadColumns | None:
        """See actors.ports.Tables. A commit that waits for the catalog holds it not up."""
        look = asyncio.get_running_loop().run_in_executor(self._looking, self._columns, topic)
        try:
            return await asyncio.wait_for(look, COMMIT_S)
        except TimeoutError:
            raise Unavailable(f"the schemas of {topic} do not come within {COMMIT_S} s") from None
        except (NotFound, Corrupt) as error:
            raise Unavailable(str(error)) from error

    def _columns(self, topic: str) -> PayloadColumns | None:
        from sluice.cluster.history.schema_columns import SchemaColumns  # only who needs it pays for protobuf

        return SchemaColumns.of_topic(self._urls, topic)

    def _follow(self, topic: str) -> None:
        check_catalog(self._catalog)
        from sluice.cluster.history.iceberg import IcebergTable, open_catalog

        catalog = open_catalog(self._catalog, self._warehouse, self._urls.endpoint)
        try:
            table = IcebergTable(catalog, self._urls, topic)
            if table.follow().snapshot:
                table.expire()
        except SluiceError:
            raise
        except Exception as error:
            raise Unavailable(f"the table of {topic!r} is not tidied up: {first_line(error)}") from error
        finally:
            catalog.close()


def default_warehouse(settings: Mapping[str, Any]) -> str:
    """Return the default URL for the files of tables: the URL of the objects with `-iceberg` at its end."""
    objects = str(settings["objects"])
    return f"{objects}-iceberg" if "://" in objects else (Path(objects).resolve().as_uri() + "-iceberg")
