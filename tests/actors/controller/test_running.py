"""The table of the actors that should run: each way in finds what is there, and no more."""

from __future__ import annotations

from sluice.actors.controller.running import NOWHERE, Running, RunningActors


def make(*addresses: str, kind: str = "topic") -> tuple[RunningActors, list[Running]]:
    """A table of one actor at each address, in this order."""
    table = RunningActors()
    entries = [Running(kind, f"{kind}/{number}", {}, address) for number, address in enumerate(addresses)]
    for entry in entries:
        table.enter(entry)
    return table, entries


def test_entries_of_a_process_come_in_order_of_number() -> None:
    table, (first, second, third) = make("b/1", "a/2", "b/3")
    assert table.processes() == [[first, third], [second]]
    table.runs_at(first, "a/4")
    assert table.processes() == [[first, second], [third]]
    assert table.at("a/4") is first
    assert table.at("b/1") is None


def test_entry_without_address_is_in_no_process() -> None:
    table, (first, second) = make("a/1", "")
    assert (list(table.inside(NOWHERE)), table.processes()) == ([second], [[first]])
    table.runs_at(first, "")
    assert (list(table.inside(NOWHERE)), table.processes()) == ([first, second], [])


def test_forgotten_entry_is_found_nowhere() -> None:
    table, (first, second) = make("a/1", "a/2")
    table.was_idle(first, 5)
    table.remove(first)
    table.was_idle(first, 6)  # the answer to a ping that was on its way
    assert table.all() == table.of_kind("topic") == list(table.inside("a")) == [second]
    assert (table.find(first.name), table.at("a/1"), table.idle(["topic"], 1)) == (None, None, [])
    table.runs_at(first, "b/1")
    assert (first.address, table.inside("b")) == ("b/1", ())


def test_one_takes_the_place_of_its_namesake() -> None:
    table, (first, second) = make("a/1", "a/2")
    again = Running(first.kind, first.name, {}, "b/3")
    table.enter(again)
    assert (table.processes(), table.find(first.name), table.at("a/1")) == ([[again], [second]], again, None)


def test_idle_entries_are_found_by_their_idle_time() -> None:
    table, (first, second, third) = make("a/1", "a/2", "")
    for entry, idle_ms in ((second, 10), (first, 20), (third, 30)):
        table.was_idle(entry, idle_ms)
    assert table.idle(["topic"], 10) == [first, second]
    assert table.idle(["topic"], 11) == [first]
    assert table.idle(["dispatcher"], 0) == []
    table.was_idle(first, 0)
    assert table.idle(["topic"], 0) == [second]
