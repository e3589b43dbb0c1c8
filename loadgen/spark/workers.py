"""Spark's Python workers, forked from a process that has imported what they all need.

Spark starts one Python process and forks its workers from it. What a worker imports by itself it imports once more in
each; so the process that is forked from imports the broker's client and the judge first, without starting a thread.
"""

from __future__ import annotations

import pyspark.worker  # noqa: F401 - what Spark's own worker imports
from pyspark.daemon import manager

import sluice.loadgen.judge.verdict
import sluice.loadgen.load.publish  # noqa: F401 - what a publishing task needs
from sluice.cluster.base.arrow import without_pandas

if __name__ == "__main__":
    without_pandas()
    manager()
