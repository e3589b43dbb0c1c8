"""What the runs behind one message that nobody finishes cost a dispatcher: memory, and the time of a pass.

    python benchmarks/runs.py [--runs N]

So many runs of one message each are read and acknowledged while the very first message stays open; then passes are
timed, each of which adds one run, cuts one position into a part and finishes it. The result is one JSON object.
"""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import numpy as np

from sluice.actors.dispatcher.delivery.unacked_runs import UnackedRuns
from sluice.actors.messages import RunIndex
from sluice.actors.ports.wire import Blob
from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.storage.format.cursor import Cursor
from sluice.storage.format.position import Positions, position

NO_COUNTS = np.empty(0, np.uint8)
PASSES = 200


def single(entry: int) -> RunIndex:
    """A run of one message of 100 bytes."""
    columns, blob = Blob(bytes(4)), Blob(bytes(100))
    return RunIndex(
        ledger=1, first_entry=entry, count=1, delayed=False, shape=0, crc=0, bytes=100, columns=columns, blob=blob
    )


def finish(table: UnackedRuns, cursor: Cursor, positions: Positions) -> None:
    """What the dispatcher does with an acknowledgement."""
    table.done(positions[~cursor.is_acknowledged(positions)])
    cursor.acknowledge(positions)
    table.drop_below(cursor.mark_delete)


def measure(runs: int) -> dict[str, Any]:
    """Play it."""
    table, cursor = UnackedRuns(lambda: 0), Cursor()
    cursor.chain([(1, None)])
    tracemalloc.start()
    table.add(single(0))
    for entry in range(1, runs + 1):
        table.add(single(entry))
        finish(table, cursor, np.array([position(1, entry)], np.int64))
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    took = []
    for entry in range(runs + 1, runs + 1 + PASSES):
        at = np.array([position(1, entry)], np.int64)
        run = single(entry)
        began = time.perf_counter()
        table.add(run)
        table.parts(at, NO_COUNTS, 0)
        finish(table, cursor, at)
        took.append(time.perf_counter() - began)
    return {
        "runs": runs,
        "runs_held": len(table),
        "bytes_held": kept,
        "pass_ms": round(1_000 * float(np.median(took)), 4),
    }


def main() -> None:
    """See the module."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=count, default=200_000)
    print(json.dumps(measure(parser.parse_args().runs)))


if __name__ == "__main__":
    main()
