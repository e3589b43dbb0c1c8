"""Sums of the dispatchers' statistics, while some of them are replaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from sluice.loadgen.base.broker import BrokerClient
from sluice.loadgen.base.history import HistoryClock
from sluice.loadgen.samples.sampling import Sampler


def stats(partition: int, epoch: int, *, begun: int, draining: int) -> dict[str, Any]:
    names = (
        "msgBacklog", "unackedMessages", "msgInReplay", "drainingHashesClearedTotal", "drainingHashesPeak",
        "drainingHashesBlockedTotal", "heldBackByPolicyTotal",
    )  # fmt: skip
    sentinel = dict.fromkeys(("checkedOrder", "checkedHolder", "violationsOrder", "violationsHolder"), begun)
    return dict.fromkeys(names, 0) | {
        "partition": partition,
        "epoch": epoch,
        "drainingHashesBegunTotal": begun,
        "drainingHashesCount": draining,
        "drainingHashesByConsumer": {},
        "sentinel": sentinel,
    }


class Told:
    """A client that answers in turn."""

    def __init__(self, *answers: list[dict[str, Any]]) -> None:
        self._answers = list(answers)

    def stats(self, topic: str, subscription: str) -> list[dict[str, Any]]:
        return self._answers.pop(0)


def test_waits_go_on_when_an_owner_is_replaced() -> None:
    def of(epoch: int, **waited: int) -> dict[str, Any]:
        waits = {reason: {"sum": ms} for reason, ms in waited.items()}
        return stats(0, epoch, begun=0, draining=0) | {"waits": waits}

    told = Told([of(1, draining=700)], [of(1, draining=900, grace=50)], [of(2, draining=100)])
    sampler = Sampler(cast(BrokerClient, told), "t", "s", HistoryClock.start())
    for _ in range(3):
        sampler.sample()
    assert [waited for _, waited in sampler.waits] == [
        {"draining": 700},
        {"draining": 900, "grace": 50},
        {"draining": 1_000, "grace": 50},
    ]


def test_an_owner_that_another_thread_notes_ends_no_sample() -> None:
    """At rest two threads ask: a new owner that one of them noted ended the flood in the other."""

    class Meanwhile(dict[str, int]):
        """An owner's sums. Another thread notes the next owner while this one adds them up."""

        def __iter__(self) -> Iterator[str]:
            sampler.waited[0, 2] = {"draining": 100}
            return super().__iter__()

        def keys(self) -> Any:
            return list(self)

    told = Told([stats(1, 1, begun=0, draining=0)])
    sampler = Sampler(cast(BrokerClient, told), "t", "s", HistoryClock.start())
    sampler.waited[0, 1] = Meanwhile(draining=700)
    sampler.sample()
    assert [waited for _, waited in sampler.waits] == [{"draining": 700}]


def test_counters_never_fall_when_an_owner_is_replaced() -> None:
    """The effect of a fault was a negative number of hashes that began to drain."""
    told = Told(
        [stats(0, 1, begun=7, draining=2), stats(1, 1, begun=1, draining=0)],
        [stats(0, 1, begun=9, draining=1), stats(1, 1, begun=1, draining=0)],
        [stats(0, 2, begun=3, draining=3), stats(1, 1, begun=1, draining=0)],
    )
    sampler = Sampler(cast(BrokerClient, told), "t", "s", HistoryClock.start())
    seen = [sampler.sample() for _ in range(3)]
    assert [sums["begun"] for sums in seen] == [8, 10, 13]
    assert [sums["order_checked"] for sums in seen] == [16, 20, 26]
    assert [sums["draining"] for sums in seen] == [2, 1, 3], "this is what there is now"
    assert sampler.latest == seen[-1]
