"""What it costs to cut the wanted rows out of a run before it travels between machines, and to send the whole run.

    .venv/bin/python benchmarks/cutting.py [--size BYTES] [--small]

Both go over TCP on the loopback and are checked at both ends: the whole run, of which the consumer takes its rows, or
the rows alone. Prints one JSON object: for runs of several sizes and for several shares of the rows the bytes that
travel, and the processor time of both sides together in microseconds, as whole / cut.
"""

from __future__ import annotations

import argparse
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.storage.format.batch import decode_body, make_batch
from sluice.storage.format.cut import cut_run
from sluice.storage.format.frame import Run, make_run, payload_crc

COUNTS = (80, 300, 600, 2_500, 10_000)
SHARES = (0.02, 0.1, 0.25, 0.5, 0.75)
SOCKET_BUFFER = 4 * 1024 * 1024


class Wire:
    """A TCP connection of this process with itself."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._out = socket.create_connection(server.getsockname())
            self._in, _ = server.accept()
        for end in (self._out, self._in):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)

    def carry(self, payload: memoryview) -> memoryview:
        """The same bytes at the other end."""
        sender = threading.Thread(target=self._out.sendall, args=(payload,))
        sender.start()
        came, got = np.empty(len(payload), np.uint8).data, 0
        while got < len(payload):
            got += self._in.recv_into(came[got:])
        sender.join()
        return came

    def close(self) -> None:
        """End it."""
        self._out.close()
        self._in.close()


def whole(wire: Wire, run: Run, rows: npt.NDArray[np.uint32]) -> int:
    """Send the run, and take the rows at the other end; returns the bytes that travelled."""
    came = wire.carry(run.payload)
    _rows(came, run.shape, run.count).take(pa.array(rows))
    return len(came)


def cut(wire: Wire, run: Run, rows: npt.NDArray[np.uint32]) -> int:
    """Take the rows first, as a broker does that was asked for them."""
    payload_crc(run.payload)
    taken = cut_run(run.payload, run.count, run.delayed, run.shape, rows, most=2.0)
    assert taken is not None
    came = wire.carry(taken.payload)
    _rows(came, run.shape, taken.count)
    return len(came)


def _rows(payload: memoryview, shape: int, count: int) -> pa.RecordBatch:
    payload_crc(payload)
    return decode_body(payload[4 * count :], shape, count)


def cost(work: Callable[[], int], rounds: int) -> tuple[int, int]:
    """(bytes, microseconds of processor time) of one."""
    size = work()
    before = time.process_time()
    for _ in range(rounds):
        work()
    return size, round((time.process_time() - before) * 1e6 / rounds)


def measure(size: int, counts: tuple[int, ...], rounds: int) -> list[dict[str, Any]]:
    """One row for each size of a run and share of its rows."""
    rng, wire, table = np.random.default_rng(1), Wire(), []
    for many in counts:
        columns = {"key": [f"key-{row % 1_000}" for row in range(many)], "payload": [rng.bytes(size)] * many}
        run = make_run(make_batch(pa.record_batch(columns), now=1, producer="p"))
        for share in SHARES:
            rows = np.sort(rng.permutation(many)[: max(round(many * share), 1)]).astype(np.uint32)
            big, small = cost(lambda: whole(wire, run, rows), rounds), cost(lambda: cut(wire, run, rows), rounds)  # noqa: B023
            table.append({"rows": many, "share": share, "bytes": [big[0], small[0]], "cpu_us": [big[1], small[1]]})
    wire.close()
    return table


def main() -> None:
    """Parse the command line and print the result."""
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=count, default=100, help="bytes of a message")
    parser.add_argument("--rounds", type=count, default=200)
    parser.add_argument("--small", action="store_true", help="a run of a second, for the tests")
    options = parser.parse_args()
    counts, rounds = (COUNTS[:2], 5) if options.small else (COUNTS, options.rounds)
    print(json.dumps({"benchmark": "cutting", "size": options.size, "runs": measure(options.size, counts, rounds)}))


if __name__ == "__main__":
    main()
