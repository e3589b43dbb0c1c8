"""Python's collector of cycles, in processes of Sluice's own.

What imports made stays for good, and columns hold no cycles. Looking through all of it at every few hundred allocations
cost a broker a tenth of its time, and one with a thousand partitions, which are millions of objects, half of it. Young
objects grow with the partitions too: looking at them at every 50,000 still took a tenth of the time in which a thousand
partitions were sent to, and found next to nothing.

A user's own process is left as it is.
"""

from __future__ import annotations

import gc

THRESHOLDS = (200_000, 10, 10)


def collect_seldom() -> None:
    """Never look at what is there by now, and seldom at the rest. To be called after the imports."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
