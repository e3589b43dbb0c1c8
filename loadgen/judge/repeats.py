"""The order of repeated deliveries: what `nack_order=key` promises beyond the order of first ones.

A delivery of a message that came before is out of order if a later message of its key

* was received after this one had been given back and before it came again, or
* is still with a consumer when it comes again.

So first and repeated deliveries of a key ascend until they are acknowledged. Pulsar promises nothing of the kind, nor
does Sluice without the option: then the count is told as information. Delayed messages stand apart, as elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.loadgen.base.history import Int64s
from sluice.loadgen.judge.column_operations import Mask


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Deliveries of messages with keys, none of them delayed; every array has the shape (n,).

    row: where they stand in the history. key, message: numbers; a later message of a key has a higher one. rank: in the
    order in which the broker decided them, within a partition. received, given_back, released: microseconds; released
    is the earliest end of the hold, in whatever way; the largest number for never.
    """

    row: Int64s
    key: Int64s
    message: Int64s
    rank: Int64s
    received: Int64s
    given_back: Int64s
    released: Int64s

    def pick(self, which: npt.NDArray[np.intp]) -> Deliveries:
        columns = (self.row, self.key, self.message, self.rank, self.received, self.given_back, self.released)
        return Deliveries(*(column[which] for column in columns))


def out_of_order(all_of_them: Deliveries) -> Iterator[tuple[int, int]]:
    """Rows of repeated deliveries that are out of order, each with the row of one later message that shows it.

    Python runs once a repeated delivery, and looks at the deliveries of its key in between as columns.
    """
    d = all_of_them.pick(np.lexsort((all_of_them.rank, all_of_them.key)))
    by_message = np.lexsort((d.rank, d.message))
    again: Mask = np.zeros(len(by_message), np.bool_)
    again[1:] = np.diff(d.message[by_message]) == 0
    at = np.flatnonzero(again)
    for now, before in zip(by_message[at].tolist(), by_message[at - 1].tolist(), strict=True):
        between = slice(before + 1, now)
        later = d.message[between] > d.message[now]
        overtook = (d.received[between] > d.given_back[before]) | (d.released[between] > d.received[now])
        wrong = np.flatnonzero(later & overtook)
        if len(wrong):
            yield int(d.row[now]), int(d.row[before + 1 + wrong[0]])
