"""The catalog that a cluster's settings name, and the tables in it. Implements actors.ports.Tables.

Where there is a catalog, what leaves has columns for the fields of a topic's schema (cluster.schema_columns).

pyiceberg is the extra `iceberg`, and a process imports it with the first commit. What a catalog wants to be shown, such
as a token, stands where pyiceberg looks for it (the variable PYICEBERG_CATALOG__SLUICE__TOKEN, or ~/.pyiceberg.yaml).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cluster.history_scan import StoreUrls
from cluster.stores import without_password
from storage.errors import Corrupt, Invalid, NotFound, Unavailable
from storage.history import PayloadColumns

COMMIT_S = 60
"""A commit that takes longer is taken for lost; the next one compares again."""


def check_catalog(catalog: str) -> None:
    """Raises Invalid, in one line, if a catalog is named that cannot be used."""
    for package in ("pyiceberg", "fastavro") if catalog else ():
        if find_spec(package) is None:
            raise Invalid(f"iceberg_catalog needs {package}: pip install 'sluice[iceberg]'")
    if catalog and "://" not in catalog:
        raise Invalid(f"iceberg_catalog {catalog} is no catalog: give sqlite:///FILE or http://HOST:PORT")


class CatalogTables:
    """The tables of one catalog; commits of a process come one after another."""

    def __init__(self, catalog: str, warehouse: str, urls: StoreUrls) -> None:
        self._catalog, self._warehouse, self._urls = catalog, warehouse, urls
        self._thread = ThreadPoolExecutor(1, "tables")
        self._looking = ThreadPoolExecutor(1, "schemas")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> CatalogTables | None:
        """Those that a cluster's settings name; None if they name none."""
        catalog = settings.get("iceberg_catalog")
        if not catalog:
            return None
        urls = StoreUrls(settings["metadata"], settings["objects"], settings.get("s3_endpoint_url"))
        return cls(catalog, settings.get("iceberg_warehouse") or default_warehouse(settings), urls)

    async def follow(self, topic: str) -> None:
        """See actors.ports.Tables."""
        commit = asyncio.get_running_loop().run_in_executor(self._thread, self._follow, topic)
        try:
            await asyncio.wait_for(commit, COMMIT_S)
        except TimeoutError:
            shown = without_password(self._catalog)
            raise Unavailable(f"the catalog {shown} does not answer within {COMMIT_S} s") from None
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
        from cluster.schema_columns import SchemaColumns  # only who needs it pays for protobuf

        return SchemaColumns.of_topic(self._urls, topic)

    def _follow(self, topic: str) -> None:
        check_catalog(self._catalog)
        from cluster.iceberg import IcebergTable, open_catalog

        catalog = open_catalog(self._catalog, self._warehouse, self._urls.endpoint)
        try:
            table = IcebergTable(catalog, self._urls, topic)
            if table.follow().snapshot:
                table.expire()
        finally:
            catalog.close()


def default_warehouse(settings: Mapping[str, Any]) -> str:
    """Where tables keep what is theirs: beside the objects."""
    objects = str(settings["objects"])
    return f"{objects}-iceberg" if "://" in objects else (Path(objects).resolve().as_uri() + "-iceberg")
