"""The order of the steps: called, published, acknowledged; a key once at a time; a worker ends when it has finished."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.cluster.workers.result_loop import MOST_BYTES, Call, NotOurs, ResultLoop
from sluice.cluster.workers.schedule import KeySchedule

Item = tuple[bytes, int]


class Player:
    """Each step waits until the test lets it end; what began is written down."""

    def __init__(self, concurrency: int = 1, size: int = 1) -> None:
        self.size = size
        self.began: list[str] = []
        self.under_way: dict[str, Call[Item]] = {}
        self.changes = 0
        self.loop: ResultLoop[Item] = ResultLoop(KeySchedule(concurrency, lambda item: False), self, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def _note(self, step: str, calls: list[Call[Item]]) -> None:
        self.began.append(" ".join([step, *(call.item[0].decode() + str(call.item[1]) for call in calls)]))
        self.under_way |= {call.item[0].decode() + str(call.item[1]): call for call in calls}

    def call(self, calls: list[Call[Item]]) -> None:
        self._note("call", calls)

    def publish(self, calls: list[Call[Item]]) -> None:
        self._note("publish", calls)

    def acknowledge(self, calls: list[Call[Item]]) -> None:
        self._note("acknowledge", calls)

    def give_back(self, call: Call[Item]) -> None:
        self._note(f"give back, because {call.error},", [call])

    # -- the test ---------------------------------------------------------------------------------------------------

    def take(self, *items: Item) -> list[str]:
        for item in items:
            self.loop.submit(item[0], item)
        return self._since(self.loop.start)

    def returns(self, *names: str, error: BaseException | None = None, nothing: bool = False) -> list[str]:
        """Their handlers return; returns what began since."""
        calls = [self.under_way[name] for name in names]
        for call in calls:
            call.error = error
            call.results, call.size = ([], 0) if nothing or error else (["a result"], self.size)
        return self._since(lambda: self.loop.returned(calls))

    def confirmed(self, *names: str, error: Exception | None = None) -> list[str]:
        calls = [self.under_way[name] for name in names]
        for call in calls:
            call.error = error
        return self._since(lambda: self.loop.published(calls))

    def gone_back(self, name: str) -> list[str]:
        return self._since(lambda: self.loop.given_back(self.under_way[name]))

    def full(self) -> bool:
        return self.loop.full

    def _since(self, step: Callable[[], object]) -> list[str]:
        before = len(self.began)
        step()
        return self.began[before:]


def test_a_place_is_free_while_results_wait_and_the_key_is_not() -> None:
    player = Player()
    assert player.take((b"a", 1), (b"a", 2), (b"b", 1)) == ["call a1"]
    assert player.returns("a1") == ["publish a1", "call b1"]
    assert player.confirmed("a1") == ["acknowledge a1"]  # a2 waits for the place that b1 has
    assert player.returns("b1") == ["publish b1", "call a2"]
    assert player.loop.handled == 1


def test_messages_ready_at_once_go_together() -> None:
    player = Player(concurrency=3)
    assert player.take((b"a", 1), (b"b", 1), (b"a", 2), (b"c", 1)) == ["call a1 b1 c1"]
    assert player.returns("a1", "c1") == ["publish a1 c1"]
    assert player.returns("b1") == ["publish b1"]
    assert player.confirmed("b1", "a1") == ["acknowledge b1 a1", "call a2"]
    assert player.loop.handled == 2


def test_message_without_results_is_acknowledged_at_once() -> None:
    player = Player(concurrency=2)
    player.take((b"a", 1), (b"a", 2), (b"b", 1))
    assert player.returns("a1", nothing=True) == ["acknowledge a1", "call a2"]


def test_failed_message_goes_back_before_its_key_goes_on() -> None:
    """Whether the handler fails or the publishing."""
    player = Player()
    assert player.take((b"a", 1), (b"a", 2), (b"a", 3)) == ["call a1"]
    assert player.returns("a1", error=ValueError("no")) == ["give back, because no, a1"]
    assert player.gone_back("a1") == ["call a2"]
    assert player.returns("a2") == ["publish a2"]
    assert player.confirmed("a2", error=ValueError("full")) == ["give back, because full, a2"]
    assert player.gone_back("a2") == ["call a3"]
    assert player.returns("a3", error=NotOurs()) == []
    assert player.loop.handled == 0


def test_one_that_is_refused_fails_no_other() -> None:
    player = Player(concurrency=2)
    player.take((b"a", 1), (b"b", 1), (b"b", 2))
    player.returns("a1", "b1")
    calls = [player.under_way["a1"], player.under_way["b1"]]
    calls[0].error = ValueError("no")
    player.loop.published(calls)
    assert player.began[-3:] == ["acknowledge b1", "give back, because no, a1", "call b2"]


def test_a_worker_has_finished_when_all_is_published() -> None:
    player = Player(concurrency=2)
    player.take((b"a", 1), (b"a", 2), (b"b", 1))
    player.loop.stop()
    assert player.take((b"c", 1)) == []
    assert player.returns("a1") == ["publish a1"]
    assert player.returns("b1") == ["publish b1"]
    assert player.confirmed("b1") == ["acknowledge b1"]
    assert not player.loop.finished
    assert player.confirmed("a1") == ["acknowledge a1"]
    assert player.loop.finished


def test_error_that_ends_a_thread_ends_the_worker() -> None:
    """The message is neither acknowledged nor given back: it comes again when the worker is replaced."""
    player = Player()
    player.take((b"a", 1), (b"b", 1))
    before = player.changes
    assert player.returns("a1", error=SystemExit()) == []
    assert isinstance(player.loop.error, SystemExit)
    assert player.changes > before


@pytest.mark.parametrize("most", [1, 3])
def test_keys_that_wait_for_their_results_are_bounded(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("sluice.cluster.workers.schedule.MOST_RETURNED", most)
    player = Player()
    player.take(*[(b"%d" % key, 0) for key in range(9)])
    for key in range(most):
        player.returns(f"{key}0")
    assert [text for text in player.began if text.startswith("call")] == [f"call {key}0" for key in range(most)]
    assert player.confirmed("00") == ["acknowledge 00", f"call {most}0"]


def test_results_that_wait_are_bounded_in_bytes() -> None:
    """Two fit; the handlers whose results do not keep their places, so nothing more is called."""
    player = Player(concurrency=2, size=MOST_BYTES // 2)
    player.take(*[(b"%d" % key, 0) for key in range(9)])
    assert player.returns("00") == ["publish 00", "call 20"]
    assert player.returns("10") == ["publish 10", "call 30"]
    assert not player.full()
    assert player.returns("20", "30") == []
    assert player.full()
    assert player.confirmed("10") == ["acknowledge 10", "publish 20", "call 40"]
    assert player.confirmed("00", error=ValueError("no")) == ["give back, because no, 00", "publish 30", "call 50"]
    assert not player.full()


def test_a_message_with_more_results_than_may_wait_goes_alone() -> None:
    player = Player(size=MOST_BYTES + 1)
    player.take((b"a", 0), (b"b", 0))
    assert player.returns("a0") == ["publish a0", "call b0"]
    assert player.returns("b0") == []
    assert player.confirmed("a0") == ["acknowledge a0", "publish b0"]
