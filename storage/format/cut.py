"""Cuts some rows out of a run, as a run of their own, for a reader on another machine.

What is cut out has the shape of the run that it comes from, and a checksum of its own. It is not compressed, so of a
compressed run a smaller share is worth it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.storage.format.batch import StoredBatch, decode_body
from sluice.storage.format.frame import Buffer, Run, index_columns, make_run
from sluice.storage.format.inflated import inflated_bytes

MOST = 0.5
"""Rows that take up to so much of a run's bytes are cut out. A choice for bytes: a cut costs a tenth of a
millisecond (docs/decisions/0012).
"""


def cut_run(
    payload: Buffer, count: int, delayed: bool, shape: int, rows: npt.NDArray[np.uint32], most: float = MOST
) -> Run | None:
    """Return a run of some rows (ascending) of a payload whose checksum was verified; None if that saves too little.

    most: the share of the payload's bytes that the rows may take, about. Raises Corrupt if the payload is no run.
    """
    view = memoryview(payload).cast("B")
    columns = count * (12 if delayed else 4)
    body = view[columns:]
    if len(rows) * max(inflated_bytes(body), len(body)) > most * len(body) * count:
        return None
    due, hashes = index_columns(view[:columns], count, delayed)
    taken = decode_body(body, shape, count).take(pa.array(rows))
    run = make_run(StoredBatch(taken, None if due is None else due[rows], hashes[rows]))
    return run if len(run.payload) <= most * len(view) else None
