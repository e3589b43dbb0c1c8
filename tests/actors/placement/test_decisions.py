"""Slots and their spreading over nodes, and when a process that waits is made: decisions without a world."""

from __future__ import annotations

import pytest

from sluice.actors.placement.placement import Placement
from sluice.actors.placement.slots import HostProcess, Times, least_loaded, stem
from sluice.actors.placement.standby import Standby
from sluice.actors.ports import Introduction, Node
from sluice.storage.errors import Unavailable

A, B, C = Node("a", "10.0.0.1"), Node("b", "10.0.0.2"), Node("c", "10.0.0.3")
TIMES = Times(first=100, again=10)


def test_processes_of_a_sort_are_spread_before_they_share_a_node() -> None:
    """Three bookies go to three nodes, whatever else runs there; the fourth where the fewest processes are."""
    nodes = [A, B, C]
    placed = {"broker-0": "b", "broker-1": "b"}
    for number in range(3):
        placed[f"bookie-{number}"] = least_loaded(nodes, f"bookie-{number}", placed).id
    assert sorted(placed[f"bookie-{number}"] for number in range(3)) == ["a", "b", "c"]
    assert least_loaded(nodes, "bookie-3", placed).id == "a"
    assert least_loaded(nodes[1:], "bookie-0", placed).id == "c"
    with pytest.raises(Unavailable, match="no live node"):
        least_loaded([], "bookie-0", placed)


def test_a_process_that_is_replaced_does_not_count_itself() -> None:
    """The process goes back to its own node rather than to a node with another of its sort."""
    assert least_loaded([A, B], "bookie-0", {"bookie-0": "a", "bookie-1": "b"}).id == "a"


def test_the_slot_is_what_a_name_begins_with() -> None:
    """The stem of a slot's name is its sort."""
    assert [stem(name) for name in ("bookie-0-a1b2", "broker-standby-c3d4", "broker-1")] == [
        "bookie-0",
        "broker-standby",
        "broker",
    ]


def waiting(name: str, node: str = "a") -> HostProcess:
    """A process that waits."""
    return HostProcess(name, node, "broker-standby")


def test_they_are_made_one_after_the_other() -> None:
    """As many as are wanted; one that is wanted sooner is made sooner, never later."""
    standby = Standby(TIMES)
    assert standby.due(2) is None
    assert standby.refill(0, 100, 2)
    assert not standby.refill(0, 200, 2)
    assert standby.refill(0, 50, 2)
    assert standby.due(2) == 50
    standby.made(waiting("x"), 60, 2)
    assert standby.due(2) == 70
    standby.failed(80)
    assert standby.due(2) == 180
    standby.made(waiting("y"), 190, 2)
    assert standby.due(3) is None
    assert not standby.refill(190, 0, 2)


def test_one_is_taken_once() -> None:
    standby = Standby(TIMES)
    standby.add(x := waiting("x"))
    assert (standby.remove(x), standby.remove(x)) == (True, False)


def test_standbys_on_lost_nodes_and_surplus_ones_are_found() -> None:
    standby = Standby(TIMES)
    for process in (x := waiting("x"), y := waiting("y", "b")):
        standby.add(process)
    assert standby.elsewhere(["a"]) == [y]
    assert (standby.surplus(1), standby.surplus(2)) == (y, None)
    assert standby.elsewhere(["b"]) == [x]


def test_one_that_waits_is_used_where_it_is_as_well_placed() -> None:
    placement = Placement(3, 0)
    placement.introduced("broker-0-p", Introduction("", "a", []))
    placement.introduced("broker-standby-q", Introduction("", "b", []))
    placement.introduced("broker-standby-r", Introduction("", "a", []))
    assert [each.name for each in placement.stand_ins("broker-1", B, [A, B])] == ["broker-standby-q"]
    assert [each.name for each in placement.stand_ins("broker-1", A, [A, B])] == [
        "broker-standby-q",
        "broker-standby-r",
    ]
    assert placement.stand_ins("bookie-0", B, [A, B]) == []


def test_the_fallback_is_where_the_fewest_slots_are_served() -> None:
    """On a node that lives."""
    placement = Placement(4, 0)
    for number, node in enumerate("aab"):
        placement.introduced(f"broker-{number}-x", Introduction("", node, []))
    placement.introduced("bookie-0-x", Introduction("", "a", []))
    first = placement.fallback([A, B])
    assert first is not None
    assert first.name == "broker-0-x"
    assert placement.use_fallback("broker-3", first)
    assert [host.slot for host in (placement.fallback([A]), placement.fallback([B])) if host] == [
        "broker-1",
        "broker-2",
    ]
    assert placement.fallback([C]) is None
    assert placement.wanted() == 2


def test_a_process_met_again_keeps_what_was_started_in_it() -> None:
    placement = Placement(2, 0)
    placement.introduced("broker-0-x", Introduction("", "a", []))
    asked = placement.serving["broker-0"]
    placement.use_fallback("broker-1", asked)
    placement.mark_lost(asked, 0)
    placement.introduced("broker-0-x", Introduction("", "a", []))
    placement.introduced("broker-1-y", Introduction("", "b", []))
    placement.started("broker-1", asked)
    assert placement.co_located() == ("broker-1", placement.serving["broker-0"])
