"""What the stores and the cursor cost: one JSON object on standard output.

    python -m benchmarks.stores [--small]

Cursor: processor time to acknowledge a column of 10,000 positions (the median of 30 and the worst), in order, closing
10,000 gaps at once, and beside a million holes; encode and decode of a million holes, with its size. Metadata: versions
created one after another by one writer, for SQLite beside the same number of raw write+fdatasync on the same disk.
S3: each server that is found here (tests/s3server.py), one client, objects of 1 KiB.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sluice.cluster.base.arguments import ArgumentParser
from sluice.storage.format.cursor import Cursor
from sluice.storage.format.position import position, run_positions
from sluice.storage.stores.metadata import Metadata
from sluice.storage.stores.metadata_objects import ObjectMetadata
from sluice.storage.stores.metadata_sqlite import SqliteMetadata
from sluice.storage.stores.objects import LocalObjects
from sluice.storage.stores.s3 import S3Objects
from tests.s3server import ACCESS_KEY, SECRET_KEY, S3Server, available_kinds

COLUMN = 10_000
ROUNDS = 30


def main() -> None:
    """Measure everything."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a tenth of the rounds")
    small = parser.parse_args().small
    rounds = 20 if small else 200
    result = {"cursor": _cursor(), "metadata": _metadata(rounds), "s3": _s3(rounds)}
    print(json.dumps(result, indent=2))


def _timed(step: Callable[[int], Callable[[], object]]) -> dict[str, float]:
    """Median and worst milliseconds of processor time."""
    taken = []
    for turn in range(ROUNDS):
        call = step(turn)
        began = time.thread_time_ns()
        call()
        taken.append((time.thread_time_ns() - began) / 1e6)
    return {"median_ms": round(statistics.median(taken), 3), "worst_ms": round(max(taken), 3)}


def _holes(cursor: Cursor, count: int) -> None:
    cursor.acknowledge(np.arange(1, 2 * count + 1, 2, dtype=np.int64) + position(1, 0))


def _open() -> Cursor:
    cursor = Cursor()
    cursor.chain([(1, None)])
    return cursor


def _cursor() -> dict[str, object]:
    in_order, closing, crowded, draining = _open(), _open(), _open(), _open()
    _holes(closing, ROUNDS * COLUMN)
    _holes(crowded, 1_000_000)
    _holes(draining, 1_000_000)
    random = np.random.default_rng(1)
    scattered = [np.unique(random.integers(2_000_002, 3_000_000, COLUMN)) + position(1, 0) for _ in range(ROUNDS)]

    def close(cursor: Cursor, turn: int) -> Callable[[], None]:
        column = np.arange(COLUMN, dtype=np.int64) * 2 + (position(1, 0) + turn * COLUMN * 2)
        return lambda: cursor.acknowledge(column)

    result: dict[str, object] = {
        "in_order": _timed(lambda turn: lambda: in_order.acknowledge(run_positions(1, turn * COLUMN, COLUMN))),
        "closing_gaps": _timed(lambda turn: close(closing, turn)),
        "closing_gaps_of_a_million": _timed(lambda turn: close(draining, turn)),
        "scattered_beside_a_million_holes": _timed(lambda turn: lambda: crowded.acknowledge(scattered[turn])),
        "lookup_of_a_run": _timed(lambda turn: lambda: crowded.is_acknowledged(run_positions(1, 500_000, COLUMN))),
        "lookup_scattered": _timed(lambda turn: lambda: crowded.is_acknowledged(scattered[turn])),
        "encode": _timed(lambda turn: crowded.encode),
    }
    packed = crowded.encode()
    result["decode"] = _timed(lambda turn: lambda: Cursor.decode(packed))
    return result | {"holes": crowded.holes, "encoded_bytes": len(packed)}


def _creations(metadata: Metadata, key: str, size: int, rounds: int) -> float:
    """Versions a second."""
    began = time.monotonic()
    for number in range(1, rounds + 1):
        if not metadata.create(key, number, bytes(size)):
            raise RuntimeError("somebody else writes here")
    return round(rounds / (time.monotonic() - began), 1)


def _raw_syncs(path: Path, rounds: int) -> float:
    """write + fdatasync of 4 KiB, a second."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    began = time.monotonic()
    for _ in range(rounds):
        os.write(descriptor, bytes(4096))
        os.fdatasync(descriptor)
    taken = time.monotonic() - began
    os.close(descriptor)
    return round(rounds / taken, 1)


def _metadata(rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder)
        sqlite, files = SqliteMetadata(path / "m.db"), ObjectMetadata(LocalObjects(path / "objects"))
        return {
            "raw_fdatasync_per_second": _raw_syncs(path / "raw", rounds),
            "sqlite_200_bytes_per_second": _creations(sqlite, "small", 200, rounds),
            "sqlite_500_000_bytes_per_second": _creations(sqlite, "large", 500_000, rounds),
            "folder_200_bytes_per_second": _creations(files, "small", 200, rounds),
        }


def _s3(rounds: int) -> dict[str, dict[str, float]]:
    os.environ |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    return {kind: _s3_server(kind, rounds) for kind in available_kinds()}


def _s3_server(kind: str, rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        server = S3Server(kind, Path(folder))
        server.start()
        try:
            store = S3Objects(server.make_bucket("benchmark"), "", server.endpoint)
            began = time.monotonic()
            for number in range(rounds):
                store.put(f"object/{number}", bytes(1024))
            put = time.monotonic()
            for number in range(rounds):
                store.get(f"object/{number}")
            got = time.monotonic()
            return {
                "puts_per_second": round(rounds / (put - began), 1),
                "gets_per_second": round(rounds / (got - put), 1),
                "versions_per_second": _creations(ObjectMetadata(store), "record", 200, rounds),
            }
        finally:
            server.kill()


if __name__ == "__main__":
    main()
