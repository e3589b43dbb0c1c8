"""Scenarios of delayed delivery; each test has the ids of its scenarios in its name.

All run in the simulator: the trackers alone on its stores, whose calls fail one by one as a test says (`world.py`,
`broker.py`, `scenario.py`), and whole brokers with the client library (`desk.py`).

Not here, and why:

* FB-2: a fallback to memory cannot fail, so nothing is delivered at once because of one; only a subscription
  with delays switched off does that (BD-1).
* TS-1, BD-8 with threads: a tracker lives on one event loop; the crowd are tasks.
* NA-1 with a time-out of acknowledgements: the client has none; giving back everything stands for it.
"""
