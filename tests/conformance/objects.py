"""The contract of every object store. A test class derives from `ObjectStoreKit` and
`ObjectStoreRaces` and gives them a `maker` fixture.

maker() opens the store under test; each call gives another handle on the same content, as another process would have.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from sluice.storage.errors import Invalid, NotFound
from sluice.storage.stores.objects import ObjectStore, probe

Maker = Callable[[], ObjectStore]
RACERS = 8
BAD_NAMES = [
    "",
    "/",
    "a/",
    "/a",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    "a b",
    "a\0b",
    "a\nb",
    "a\n",
    "é",
    "a%2eb",
]
BAD_NAMES += ["a+b", "a\\b", "x" * 201, "a/" * 350 + "a", "a:b", "~", "*"]


class ObjectStoreKit:
    """The tests of the contract. A test class derives from it and defines a fixture `maker`."""

    many = 1_050
    """More names than one page of an S3 list holds."""

    @pytest.fixture
    def maker(self) -> Maker:
        """The maker of handles. Each store's test class overrides it."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, maker: Maker) -> ObjectStore:
        """One handle on the store."""
        return maker()

    def test_an_object_is_created_once_and_never_changed(self, maker: Maker) -> None:
        first, second = maker(), maker()
        assert first.put("a/b", b"one") is True
        assert second.put("a/b", b"two") is False
        assert first.put("a/b", b"one") is False, "a repetition is told that the name is taken, too"
        assert first.get("a/b") == second.get("a/b") == b"one"

    @pytest.mark.parametrize(
        ("start", "length"),
        [(0, None), (0, 4), (3, 4), (3, None), (9, 1), (8, 100), (10, 1), (11, None), (5, 0), (0, 0)],
    )
    def test_ranges_are_those_of_a_slice(self, store: ObjectStore, start: int, length: int | None) -> None:
        content = b"0123456789"
        store.put("range", content)
        assert store.get("range", start, length) == content[start : None if length is None else start + length]

    def test_an_empty_object_is_an_object(self, store: ObjectStore) -> None:
        assert store.put("empty", b"")
        assert store.get("empty") == store.get("empty", 0, 10) == store.get("empty", 5) == b""
        assert store.names("emp") == ["empty"]

    @pytest.mark.parametrize(("start", "length"), [(-1, None), (0, -1)])
    def test_a_negative_range_is_invalid(self, store: ObjectStore, start: int, length: int | None) -> None:
        store.put("range", b"0123456789")
        with pytest.raises(Invalid):
            store.get("range", start, length)

    def test_missing_object_is_not_found_and_can_be_deleted(self, store: ObjectStore) -> None:
        for start, length in ((0, None), (3, 4), (0, 0)):
            with pytest.raises(NotFound):
                store.get("nothing/here", start, length)
        store.delete("nothing/here")
        assert store.names("nothing") == []

    def test_a_deleted_name_is_free_again(self, maker: Maker) -> None:
        first, second = maker(), maker()
        first.put("a", b"one")
        second.delete("a")
        with pytest.raises(NotFound):
            first.get("a")
        assert first.put("a", b"two")
        assert second.get("a") == b"two"

    def test_names_are_sorted_and_chosen_by_any_prefix(self, store: ObjectStore) -> None:
        names = ["a", "a/b", "a/b/c", "a/bc", "a-b", "a.b/x", "ab", "b/a", "B", "a_b", ".hidden/x", "-"]
        for name in names:
            assert store.put(name, name.encode())
        for prefix in ["", "a", "a/", "a/b", "a/b/", "a/b/c", "ab", "b", "a.", ".", "nope", "a/bcd", "/", "..", "a//"]:
            assert store.names(prefix) == sorted(n for n in names if n.startswith(prefix)), prefix
        assert [store.get(name) for name in names] == [name.encode() for name in names]

    def test_size_is_that_of_objects_below_a_prefix(self, store: ObjectStore) -> None:
        store.put("a/b", bytes(1_000))
        store.put("a/c", bytes(200))
        store.put("b", bytes(30))
        assert store.size("a/") == 1_200
        assert store.size("") == 1_230
        store.delete("a/b")
        assert store.size("a/") == 200
        assert store.size("none") == 0

    def test_a_long_list_is_whole(self, maker: Maker) -> None:
        names = [f"many/{number:05d}" for number in range(self.many)]
        store = maker()
        with ThreadPoolExecutor(RACERS) as threads:
            assert all(threads.map(lambda name: store.put(name, b"x"), names))
        assert store.names("many/") == names
        assert store.names("many/0000") == names[:10]

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_bad_names_are_invalid_everywhere(self, store: ObjectStore, name: str) -> None:
        with pytest.raises(Invalid):
            store.put(name, b"x")
        with pytest.raises(Invalid):
            store.get(name)
        with pytest.raises(Invalid):
            store.delete(name)
        assert store.names("") == []

    def test_the_longest_names_work(self, store: ObjectStore) -> None:
        name = "/".join(["p" * 200, "q" * 200, "r" * 200, "s" * 97])
        assert len(name) == 700
        assert store.put(name, b"x")
        assert store.get(name) == b"x"
        assert store.names("p") == [name]

    def test_every_kind_of_buffer_and_a_large_object(self, store: ObjectStore) -> None:
        large = np.random.default_rng(7).integers(0, 256, 5_000_000, np.uint8)
        assert store.put("large", memoryview(large.tobytes()))
        assert store.put("view", memoryview(b"abcdef")[1:4])
        assert store.put("array", bytearray(b"xyz"))
        assert store.get("large") == large.tobytes()
        assert store.get("large", 4_000_000, 1000) == large[4_000_000:4_001_000].tobytes()
        assert (store.get("view"), store.get("array")) == (b"bcd", b"xyz")

    def test_the_probe_accepts_it_and_leaves_nothing(self, store: ObjectStore) -> None:
        probe(store)
        assert store.names("") == []


class ObjectStoreRaces:
    """The part of the kit that needs threads, for every store that is more than a stand-in."""

    race_rounds = 20

    def test_exactly_one_racing_writer_wins(self, maker: Maker) -> None:
        stores = [maker() for _ in range(RACERS)]
        with ThreadPoolExecutor(RACERS) as threads:
            for turn in range(self.race_rounds):
                start = Barrier(RACERS)

                def race(racer: int, turn: int = turn, start: Barrier = start) -> bool:
                    start.wait()
                    return stores[racer].put(f"race/{turn}", b"%d" % racer * 2000)

                won = [racer for racer, mine in enumerate(threads.map(race, range(RACERS))) if mine]
                assert len(won) == 1, f"round {turn}: {len(won)} winners"
                assert stores[0].get(f"race/{turn}") == b"%d" % won[0] * 2000
