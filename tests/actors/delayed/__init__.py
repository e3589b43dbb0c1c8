"""Scenarios of delayed delivery; each test has the ids of its scenarios in its name.

The trackers alone run in a small world of their own (`world.py`, `broker.py`, `scenario.py`), whole brokers with the
client library in the simulator (`desk.py`).

Not here, and why:

* FB-2: a fallback to memory cannot fail, so nothing is delivered at once because of one; only whoever switches delays
  off has that (BD-1).
* TS-1, BD-8 with threads: a tracker lives on one event loop; the crowd are tasks.
* NA-1 with a time-out of acknowledgements: the client has none; giving back everything stands for it.
"""
