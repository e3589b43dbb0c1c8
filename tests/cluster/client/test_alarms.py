"""The alarms in what a controller tells."""

from __future__ import annotations

from sluice.cluster.client.alarms import alarms_of


def test_an_alarm_without_a_reason_ends_with_the_state() -> None:
    rows = [
        {"name": "bookie/bookie-0", "state": "starting", "problem": ""},
        {"name": "bookie/bookie-1", "state": "starting", "problem": "no disk"},
        {"name": "bookie/bookie-2", "state": "running", "problem": ""},
    ]
    told = alarms_of({"actors": rows, "underReplicated": 0})
    assert told == ["bookie/bookie-0 is starting", "bookie/bookie-1 is starting: no disk"]
