"""A process that writes versions of one record until it is killed: `python -m tests.conformance.writer KIND PATH`.

It prints the number of each version that it was told to have created. KIND is `sqlite` or `folder`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sluice.storage.stores.metadata import Metadata
from sluice.storage.stores.metadata_objects import ObjectMetadata
from sluice.storage.stores.metadata_sqlite import SqliteMetadata
from sluice.storage.stores.objects import LocalObjects

KEY = "killed/record"


def open_store(kind: str, path: Path) -> Metadata:
    """The store that writer and checker share."""
    return SqliteMetadata(path / "metadata.db") if kind == "sqlite" else ObjectMetadata(LocalObjects(path))


def value_of(number: int, writer: str) -> bytes:
    """Some thousand bytes that show who wrote which version, whole or not at all."""
    return f"{number} {writer} ".encode() * 400


def main() -> None:
    """Write until killed."""
    kind, path, writer = sys.argv[1:4]
    store = open_store(kind, Path(path))
    while True:
        newest = store.read(KEY)
        number = 1 if newest is None else newest.number + 1
        if store.create(KEY, number, value_of(number, writer)):
            print(number, flush=True)


if __name__ == "__main__":
    main()
