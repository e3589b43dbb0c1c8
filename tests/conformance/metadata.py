"""The contract of every metadata store. A test class derives from `MetadataKit` and `MetadataRaces`
and gives them a `maker` fixture.

maker() opens the store under test; each call gives another handle on the same content, as another process would have.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

import pytest

from sluice.storage.errors import Invalid, Unavailable
from sluice.storage.stores.metadata import Metadata, Record

Maker = Callable[[], Metadata]
RACERS = 8


class MetadataKit:
    """The tests of the contract. A test class derives from it and defines a fixture `maker`."""

    many = 150
    window = 4
    """How many newer versions a store lets pass before it is in doubt about a late one."""

    @pytest.fixture
    def maker(self) -> Maker:
        """The maker of handles. Each store's test class overrides it."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, maker: Maker) -> Metadata:
        """One handle on the store."""
        return maker()

    def test_versions_follow_one_another(self, maker: Maker) -> None:
        first, second = maker(), maker()
        assert first.read("topic/a") is None
        assert not first.create("topic/a", 2, b"a gap")
        assert first.create("topic/a", 1, b"one")
        assert not second.create("topic/a", 1, b"another one")
        assert not second.create("topic/a", 3, b"a gap")
        assert second.read("topic/a") == Record(1, b"one")
        assert second.create("topic/a", 2, b"two")
        assert not first.create("topic/a", 2, b"late")
        assert not first.create("topic/a", 1, b"very late")
        assert first.read("topic/a") == Record(2, b"two")

    def test_a_writer_that_slept_while_versions_were_trimmed_loses(self, maker: Maker) -> None:
        sleeper, other = maker(), maker()
        for number in range(1, 4):
            assert sleeper.create("owner", number, b"sleeper")
        for number in range(4, 40):
            assert other.create("owner", number, b"other")
        for number in (*range(1, 8), *range(34, 42)):
            if number != 40:
                with suppress(Unavailable):
                    assert not sleeper.create("owner", number, b"late"), number
                assert not sleeper.create("owner", number, b"late"), number
                assert other.read("owner") == Record(39, b"other")
        assert other.create("owner", 40, b"other")

    def test_a_number_slept_over_loses_even_if_it_was_next(self, maker: Maker) -> None:
        """The sleeper knows 3 as the newest and goes for 4. Meanwhile other writers have passed 4, and 4 is trimmed."""
        for ahead in sorted({1, 2, 4, self.window - 1, self.window, self.window + 4}):
            key = f"owner/{ahead}"
            sleeper, other = maker(), maker()
            for number in range(1, 4):
                assert sleeper.create(key, number, b"sleeper")
            for number in range(4, 4 + ahead):
                assert other.create(key, number, b"other")
            try:
                assert not sleeper.create(key, 4, b"late")
            except Unavailable:
                assert ahead > self.window - 2, "doubt is for those who slept very long"
            assert not sleeper.create(key, 4, b"late")
            assert maker().read(key) == Record(3 + ahead, b"other")
            assert other.create(key, 4 + ahead, b"other")

    def test_many_versions_leave_the_newest(self, maker: Maker) -> None:
        store = maker()
        for number in range(1, self.many + 1):
            assert store.create("cursor", number, b"%d" % number)
        assert maker().read("cursor") == Record(self.many, b"%d" % self.many)
        self.check_trimmed(store)

    def check_trimmed(self, store: Metadata) -> None:
        """Check the storage beneath the store after `many` versions of one record. A store's tests may override it."""

    def test_keys_are_sorted_and_chosen_by_any_prefix(self, store: Metadata) -> None:
        keys = ["a", "a/b", "a/b/c", "a/bc", "ab", "b/a", "B", "a/v000000000001", "a.b"]
        for key in keys:
            assert store.create(key, 1, key.encode())
            assert store.create(key, 2, key.encode())
        for prefix in ["", "a", "a/", "a/b", "a/b/", "ab", "b", "nope", "a/v", "a/v00", "a."]:
            assert store.keys(prefix) == sorted(k for k in keys if k.startswith(prefix)), prefix
        for key in keys:
            assert store.read(key) == Record(2, key.encode())

    def test_a_removed_record_is_gone_and_can_be_made_anew(self, maker: Maker) -> None:
        owner, other = maker(), maker()
        for number in range(1, 8):
            assert owner.create("a", number, b"x")
        assert owner.create("a/b", 1, b"child")
        other.remove("a")
        other.remove("a")
        assert owner.read("a") is None
        assert owner.keys("") == ["a/b"]
        assert not owner.create("a", 8, b"the owner does not know"), "a removed record does not come back to life"
        assert owner.read("a") is None
        assert owner.read("a/b") == Record(1, b"child")
        assert owner.create("a", 1, b"anew")
        assert other.read("a") == Record(1, b"anew")

    def test_an_older_number_removes_no_newer_version(self, maker: Maker) -> None:
        owner, other = maker(), maker()
        assert owner.create("a", 1, b"x")
        assert owner.create("a", 2, b"y")
        assert other.create("a", 3, b"newer")
        assert not owner.remove("a", 2)
        assert not owner.remove("a", 4)
        assert owner.read("a") == other.read("a") == Record(3, b"newer")
        assert other.remove("a", 3)
        assert other.remove("a", 3), "there is nothing to be kept"
        assert owner.read("a") is None
        assert not other.create("a", 4, b"the remover does not come back")
        assert owner.create("a", 1, b"anew")

    @pytest.mark.parametrize("size", [0, 1, 1_000_000])
    def test_values_are_bytes_of_any_size(self, maker: Maker, size: int) -> None:
        value = bytes(range(256)) * (size // 256) + b"\0" * (size % 256)
        assert maker().create("value", 1, value)
        assert maker().read("value") == Record(1, value)

    def test_size_grows_with_a_record_and_shrinks_without(self, maker: Maker) -> None:
        owner, other = maker(), maker()
        assert owner.create("kept", 1, b"x")
        before = other.size()
        assert owner.create("large", 1, bytes(100_000))
        assert before + 90_000 <= other.size() <= before + 130_000
        owner.remove("large")
        assert other.size() < before + 30_000

    @pytest.mark.parametrize("key", ["", "/", "a//b", "../a", "a b", "a\0b", "é", "a/", "x" * 201])
    def test_bad_keys_are_invalid(self, store: Metadata, key: str) -> None:
        with pytest.raises(Invalid):
            store.create(key, 1, b"x")
        with pytest.raises(Invalid):
            store.read(key)
        with pytest.raises(Invalid):
            store.remove(key)
        assert store.keys("") == []

    @pytest.mark.parametrize("number", [0, -1])
    def test_numbers_start_at_one(self, store: Metadata, number: int) -> None:
        with pytest.raises(Invalid):
            store.create("a", number, b"x")

    def test_the_probe_accepts_it_and_leaves_nothing(self, store: Metadata) -> None:
        store.probe()
        assert store.keys("") == []


class MetadataRaces:
    """The part of the kit that needs threads, for every store that is more than a stand-in."""

    race_rounds = 15
    increments = 12

    def test_exactly_one_racing_writer_wins_each_number(self, maker: Maker) -> None:
        stores = [maker() for _ in range(RACERS)]
        with ThreadPoolExecutor(RACERS) as threads:
            for number in range(1, self.race_rounds + 1):
                start = Barrier(RACERS)

                def race(racer: int, number: int = number, start: Barrier = start) -> bool:
                    start.wait()
                    return stores[racer].create("race", number, b"%d" % racer)

                won = [racer for racer, mine in enumerate(threads.map(race, range(RACERS))) if mine]
                assert len(won) == 1, f"number {number}: {len(won)} winners"
                assert stores[0].read("race") == Record(number, b"%d" % won[0])

    def test_a_counter_loses_no_increment(self, maker: Maker) -> None:
        def count(racer: int) -> int:
            """Increment until `increments` of them are confirmed; return how often the outcome was unknown."""
            store, done, unknown = maker(), 0, 0
            while done < self.increments:
                newest = store.read("counter") or Record(0, b"0")
                try:
                    done += store.create("counter", newest.number + 1, b"%d" % (int(newest.value) + 1))
                except Unavailable:
                    unknown += 1
            return unknown

        with ThreadPoolExecutor(RACERS) as threads:
            unknown = sum(threads.map(count, range(RACERS)))
        told = RACERS * self.increments
        newest = maker().read("counter")
        assert newest is not None
        assert told <= newest.number <= told + unknown
        assert newest.value == b"%d" % newest.number, "an increment was lost, or one version was created twice"
