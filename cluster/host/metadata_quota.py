"""A quota of bytes for the records that clients and operators make: topics, schemas, policies, rights, pools.

Each record has limits of its own, but nothing else limits their number. A full store would stop the owners of all
partitions, because they write their records there. Above the quota the store refuses a new record of this kind, and a
version that is larger than the one before it. Records of owners, smaller versions and removals always pass.

A process measures the store at most every MEASURED_MS, and spends at most LOAD of its time on that. Between two
measurements it counts the bytes that it adds itself. So several processes can pass the quota by the records of some
seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from sluice.storage.errors import Invalid
from sluice.storage.stores.metadata import NewVersion, Record

METADATA_QUOTA_BYTES = 1 << 30
MEASURED_MS = 5_000
LOAD = 0.1
"""The part of a process's time that measuring may take."""
MADE_BY_CLIENTS = ("workers/",)
"""How the keys of records begin that clients make, and that Sluice alone rewrites afterwards."""
OF_CLIENTS = (
    "lifetime/",
    "limits/",
    "namespace/",
    "permission/",
    "quota-age/",
    "quota/",
    "schema-definition/",
    "schema/",
    "tenant/",
    "topic/",
    *MADE_BY_CLIENTS,
)
"""The same of all records that the quota limits."""


class MetadataQuota:
    """The quota of one store.

    most: bytes; 0 is any number.
    measure: returns the bytes of the store.
    """

    def __init__(self, most: int, measure: Callable[[], Awaitable[int]]) -> None:
        self._most, self._measure = most, measure
        self._size, self._until = 0, 0.0
        self._measuring = asyncio.Lock()

    async def add(self, version: NewVersion, newest: Callable[[str], Awaitable[Record | None]]) -> None:
        """Count the bytes of a version of a record of clients. Raises Invalid above the quota, Unavailable.

        newest: reads the version before it.
        """
        key, number, value = version
        if not self._most or (number > 1 and key.startswith(MADE_BY_CLIENTS)):
            return
        async with self._measuring:
            if (began := time.monotonic()) >= self._until:
                self._size = await self._measure()
                ended = time.monotonic()
                self._until = ended + max(MEASURED_MS / 1000, (ended - began) * (1 / LOAD - 1))
        if self._size + len(value) > self._most:
            before = await newest(key)
            if before is None or len(value) > len(before.value):
                raise Invalid(
                    f"the metadata of this cluster have {self._size} bytes, and their quota is {self._most}: "
                    "delete topics, or raise metadata_quota_bytes"
                )
        self._size += len(value)
