"""Recorded decisions come out of a replay as they were, over random schedules, and a changed decision is found."""

from __future__ import annotations

import contextlib
import functools
import gc
import pickle
import struct
import weakref
from dataclasses import replace
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from sluice.actors.key_shared import KeySharedDispatcher
from sluice.actors.key_shared.state import dispatch_pass
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.recorder import flight_file, recorded
from sluice.actors.recorder.flight_file import RecordedCalls, RecordedSubscription, assemble, pack, unpack
from sluice.actors.recorder.recorded import RecordedDecisions, Recording
from sluice.actors.recorder.replay import replay
from sluice.actors.recorder.timeline import explain_at, in_office, timeline
from sluice.storage.errors import Corrupt, InvariantViolation
from sluice.storage.format.hashing import masked_hash
from tests.actors.key_shared.driver import Driver
from tests.actors.key_shared.test_model import Schedule

OF = RecordedSubscription("orders", 0, "billing", 1)


class RecordedSchedule(Schedule):
    """The random schedules of the decisions, recorded, with snapshots in between."""

    def make(self) -> KeySharedDispatcher:
        self.recording = Recording(OF)
        self.chunks: list[RecordedCalls] = []
        return RecordedDecisions(self.settings, self.recording)

    @rule(snapshot=st.booleans())
    def write(self, snapshot: bool) -> None:
        if snapshot:
            self.recording.ask_for_snapshot()
        chunk = self.recording.taken(self.now)
        if chunk is not None:
            self.chunks.append(chunk)

    def teardown(self) -> None:
        super().teardown()
        if not hasattr(self, "dispatch"):
            return
        self.write(False)
        data = assemble(map(pack, self.chunks))
        found = replay(unpack(data, "recorded"))[OF]
        assert found.difference is None, str(found.difference)
        assert (found.gaps, found.missing) == (0, 0)
        sent = sum(int(share[1][-1]) for chunk in self.chunks for call in chunk for share in route_of(call))
        assert found.decisions == sent
        starts = [i for i, chunk in enumerate(self.chunks) if any(call.name == "snapshot" for call in chunk)]
        for start in starts:
            later = replay(unpack(assemble(map(pack, self.chunks[start:])), "later"))[OF]
            assert later.difference is None, str(later.difference)


def route_of(call: Any) -> Any:
    return (call.outcome or ()) if call.name == "route" else ()


RecordedSchedule.TestCase.settings = settings(Schedule.TestCase.settings, max_examples=60)
TestRecordedSchedule = RecordedSchedule.TestCase


class RecordedDriver(Driver):
    """A driver of recorded decisions."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.recording = Recording(OF)
        self.dispatch = RecordedDecisions(SubscriptionSettings(**options), self.recording, now=self.now)

    def file(self) -> bytes:
        chunk = self.recording.taken(self.now)
        assert chunk is not None
        return assemble([pack(chunk)])


def busy(**options: Any) -> RecordedDriver:
    """Two consumers; one leaves while it holds messages."""
    driver = RecordedDriver(**options)
    for name in ("a", "b"):
        driver.join(name, 7)
    for number in range(40):
        driver.now += 10
        driver.publish(f"k{number * 7 % 31}", f"k{number % 11}")
        driver.route()
        for name in driver.numbers:
            driver.ack(*driver.pending(name)[: number % 2], by=name)
            driver.grant(name, 2)
        if number == 20:
            driver.leave("a")
            driver.join("c", 5)
    return driver


def test_a_changed_gate_is_found_by_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    data = busy().file()
    assert replay(unpack(data, "x"))[OF].difference is None
    monkeypatch.setattr(dispatch_pass, "closed", lambda core, rows: iter(()))
    found = replay(unpack(data, "x"))[OF]
    assert found.difference is not None
    assert found.difference.call == "route"


def test_a_violation_comes_again_and_a_mended_gate_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as planted:
        planted.setattr(dispatch_pass, "closed", lambda core, rows: iter(()))
        driver = RecordedDriver()
        driver.join("a", 50)
        driver.send(*(f"k{number}" for number in range(20)))
        driver.join("b", 50)
        with pytest.raises(InvariantViolation):
            driver.send(*(f"k{number}" for number in range(20)))
        data = driver.file()
        again = replay(unpack(data, "x"), through=True)[OF]
        assert again.difference is None
        assert len(again.violations) == 1
    mended = replay(unpack(data, "x"), through=True)[OF]
    assert mended.difference is not None
    assert mended.violations == []


def test_finding_that_stops_no_owner_is_a_remark() -> None:
    driver = RecordedDriver(policy="read_position")
    key = next(key for key in (f"k{number}" for number in range(1_000)) if moves(key))
    driver.join("first", 1)
    driver.send(key, key)
    driver.join("second", 50)
    driver.route()
    violations = driver.dispatch.stats(driver.now)["sentinel"]["violationsHolder"]
    assert violations > 0
    driver.send(key)
    found = replay(unpack(driver.file(), "x"))[OF]
    texts = [text for _, text in found.remarks]
    assert all(text.startswith("the order sentinel found: promise 2 broken: ") for text in texts)
    assert texts
    assert found.clean, "the policy promises nothing else"


def moves(key: str) -> bool:
    """Whether a key goes from the first consumer to the second."""
    driver = Driver()
    driver.join("first")
    driver.join("second")
    return driver.owner_of(key) == "second"


def test_calls_without_room_are_a_gap_until_the_next_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = busy()
    first = driver.recording.taken(driver.now)
    monkeypatch.setattr(recorded, "MOST_BYTES", -1)
    driver.recording._room.held = 1
    driver.send("k1", "k2")
    assert driver.recording.dropped > 0
    monkeypatch.undo()
    assert driver.recording.taken(driver.now) is None
    driver.send("k3")
    driver.grant("c", 20)
    driver.send("k4")
    last = driver.recording.taken(driver.now)
    assert first is not None
    assert last is not None
    found = replay(unpack(assemble([pack(first), pack(last)]), "x"))[OF]
    assert (found.gaps, found.difference) == (1, None)


def test_moment_of_a_key_is_that_of_its_partition() -> None:
    mine, other = RecordedDriver(), RecordedDriver()
    for driver, key in ((mine, "k1"), (other, "k2")):
        driver.now += 10
        driver.publish("held", key)
        driver.route()
    chunks = [mine.recording.taken(20), other.recording.taken(20)]
    newer = RecordedSubscription("orders", 1, "billing", 9)
    assert chunks[0] is not None
    assert chunks[1] is not None
    found = explain_at([chunks[0], replace(chunks[1], of=newer)], masked_hash(b"k1"), mine.now)
    assert (found["partition"], found["verdict"]) == (0, "no_owner")


def test_decisions_of_one_partition_are_kept_at_a_time() -> None:
    """A thousand partitions took a process half a gigabyte, until Python's collector looked."""
    chunks = [chunk for partition in range(5) for chunk in chunks_with_a_snapshot(OF._replace(partition=partition))]
    made: list[weakref.ref[object]] = []
    gc.collect()
    gc.disable()
    try:
        for run in in_office(chunks, chunks[-1].at):
            assert run.decisions is not None
            made.append(weakref.ref(run.decisions._core))
            assert sum(one() is not None for one in made) <= 2
            del run
        assert [one() for one in made] == [None] * 5
    finally:
        gc.enable()


def chunks_with_a_snapshot(of: RecordedSubscription) -> list[RecordedCalls]:
    driver = busy()
    driver.recording.ask_for_snapshot()
    driver.publish("k1")
    chunk = driver.recording.taken(driver.now)
    assert chunk is not None
    return [replace(chunk, of=of)]


def test_timeline_of_a_key_leaves_other_partitions_out() -> None:
    mine, other = RecordedDriver(), RecordedDriver()
    for driver, key in ((mine, "k1"), (other, "k2")):
        driver.now += 10
        driver.join("a", 5)
        driver.send(key)
    chunks = [mine.recording.taken(20), other.recording.taken(20)]
    assert chunks[0] is not None
    assert chunks[1] is not None
    both = [chunks[0], replace(chunks[1], of=RecordedSubscription("orders", 1, "billing", 9))]
    told = timeline(both, masked_hash(b"k1"), 0, mine.now)
    assert {line.partition for line in told} == {0}
    assert any("delivered to a#" in line.text for line in told)
    nowhere = timeline(both, masked_hash(b"k3"), 0, mine.now)
    assert {line.partition for line in nowhere} == {0, 1}, "a key without messages has no partition of its own"


def test_a_lost_chunk_is_a_gap() -> None:
    driver = busy()
    chunks = [driver.recording.taken(1)]
    driver.send("k1")
    driver.recording.taken(2)
    driver.send("k2")
    chunks.append(driver.recording.taken(3))
    found = replay(unpack(assemble(pack(chunk) for chunk in chunks if chunk), "x"))[OF]
    assert (found.gaps, found.difference) == (1, None)
    assert found.missing > 0


def test_a_file_that_is_cut_in_its_first_bytes_has_no_chunk() -> None:
    whole = assemble([pack(RecordedCalls(OF, 1, 1, ()))])
    for end in range(len(flight_file.HEADER) + 2):
        assert not list(unpack(whole[:end], "flight-1", whole=False))
        with pytest.raises(Corrupt):
            list(unpack(whole[:end], "x.flight"))


def test_a_version_that_is_not_known_is_one_clear_line() -> None:
    data = busy().file()
    later = data[:8] + struct.pack("<H", 9) + data[10:]
    with pytest.raises(Corrupt, match="version 9"):
        list(unpack(later, "x.flight"))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_or_cut_bytes_are_corrupt_or_a_shorter_file(data: st.DataObject) -> None:
    whole, exported = a_file(), data.draw(st.booleans())
    cut = data.draw(st.integers(0, len(whole)))
    changed = bytearray(whole[:cut])
    if changed and data.draw(st.booleans()):
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    problem = ""
    try:
        found = list(unpack(bytes(changed), "x.flight", whole=exported))
    except Corrupt as error:
        found, problem = [], str(error)
    assert found or problem or not exported
    assert not problem or "x.flight" in problem
    assert "\n" not in problem


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_nonsense_behind_a_right_checksum_is_corrupt_at_most(data: st.DataObject) -> None:
    whole = a_file()
    length, unpacked, _ = flight_file._CHUNK.unpack_from(whole, len(flight_file.HEADER))
    start = len(flight_file.HEADER) + flight_file._CHUNK.size
    body = bytearray(pa.decompress(whole[start : start + length], unpacked, codec="zstd", asbytes=True))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    packed = pa.compress(bytes(body), codec="zstd", asbytes=True)
    head = flight_file._CHUNK.pack(len(packed), len(body), google_crc32c.value(packed))
    with contextlib.suppress(Corrupt):
        replay(unpack(assemble([head + packed]), "x.flight"))


@pytest.mark.parametrize("wrong", [{"named": 7}, {"outcome": ((1, 2, 3, 4, 5),)}, {"outcome": ((1,),)}, {"error": 1}])
def test_call_of_an_unknown_form_is_corrupt(wrong: dict[str, Any]) -> None:
    driver = busy()
    chunk = driver.recording.taken(driver.now)
    assert chunk is not None
    calls = [tuple(call._replace(**wrong)) if call.name == "route" else tuple(call) for call in chunk]
    with pytest.raises(Corrupt, match=r"form|cannot be read"):
        replay(unpack(assemble([pack(replace(chunk, calls=calls))]), "x"))


@functools.cache
def a_file() -> bytes:
    """A recording that every example damages."""
    return busy().file()


def test_a_snapshot_that_names_other_classes_is_refused() -> None:
    for bad in (print, np.load, Driver):
        with pytest.raises(Corrupt):
            KeySharedDispatcher.restored(pickle.dumps(bad))
    with pytest.raises(Corrupt):
        KeySharedDispatcher.restored(b"")
    with pytest.raises(Corrupt):
        KeySharedDispatcher.restored(b"\x80\x04csluice.actors.key_shared.state.members\nnp.load\n.")
