"""Pictures from statistics, and what is told between two of them."""

from __future__ import annotations

from typing import Any

from sluice.cluster.watch.story import Picture, events, picture


def dispatcher(partition: int = 0, **changed: Any) -> dict[str, Any]:
    return {
        "topic": "orders",
        "partition": partition,
        "epoch": 3,
        "paused": False,
        "awaitedConsumers": 0,
        "msgBacklog": 5,
        "msgAckCounter": 4,
        "hashesMovedTotal": 10,
        "drainingHashesCount": 0,
        "orderViolationsTotal": 0,
        "consumers": [consumer("a", [[1, 9]])],
    } | changed


def consumer(name: str, ranges: list[list[int]], drains: int = 0) -> dict[str, Any]:
    return {
        "consumerName": name,
        "msgAckCounter": 3,
        "keyHashRangeArrays": ranges,
        "drainingHashes": [{"hash": 7 + n, "unackMsgs": 2, "blockedAttempts": 1} for n in range(drains)],
    }


def topic(epoch: int = 1, bookies: tuple[str, ...] = ("b1", "b2")) -> dict[str, Any]:
    ledger = {"ledgerId": 8, "state": "open", "entries": 3, "fragments": [[0, list(bookies)]]}
    return {"partition": 0, "epoch": epoch, "msgInCounter": 12, "ledgers": [ledger]}


def status(state: str = "running", problem: str = "") -> dict[str, Any]:
    return {"actors": [{"kind": "bookie", "name": "bookie/b1", "address": "h/b1", "state": state, "problem": problem}]}


def told(before: Picture, after: Picture) -> list[str]:
    return [event["text"] for event in events(before, after)]


def test_a_picture_adds_up_the_partitions_that_answer() -> None:
    seen = picture(9, [dispatcher(0), None, dispatcher(2)], [topic(), None], status())
    assert seen["totals"]["backlog"] == 10
    assert seen["totals"]["acknowledged"] == 8, "those of consumers that have left count as well"
    assert seen["totals"]["published"] == 12
    assert [part["answers"] for part in seen["partitions"]] == [True, False, True]
    assert seen["partitions"][0]["consumers"][0]["ranges"] == [[1, 9]]


def test_replaced_consumer_has_left_and_joined() -> None:
    """A replacement that is there at once is seen by its number; a new dispatcher's numbers say nothing."""
    rows = [[consumer("a", [[1, 9]]) | {"consumerNumber": number}] for number in (3, 4)]
    before, after = (picture(at, [dispatcher(consumers=row)], [], None) for at, row in enumerate(rows))
    assert told(before, after) == ["partition 0: a left", "partition 0: a joined"]
    taken_over = picture(2, [dispatcher(consumers=rows[1], epoch=4)], [], None)
    assert told(before, taken_over) == ["partition 0: a new dispatcher, epoch 3 to 4"]


def test_a_draining_hash_is_named_with_its_holder() -> None:
    seen = picture(9, [dispatcher(consumers=[consumer("old", [], drains=2)])], [], None)
    assert seen["partitions"][0]["drains"] == [[7, "old", 2, 1], [8, "old", 2, 1]]


def test_the_first_picture_tells_nothing() -> None:
    assert events(None, picture(9, [dispatcher()], [], None)) == []


def test_changed_consumers_are_told_with_moved_hashes() -> None:
    before = picture(1, [dispatcher()], [], None)
    after = picture(
        2, [dispatcher(consumers=[consumer("b", [])], hashesMovedTotal=14, drainingHashesCount=4)], [], None
    )
    assert told(before, after) == [
        "partition 0: a left",
        "partition 0: b joined",
        "partition 0: 4 hashes moved, 4 are draining",
    ]
    assert told(after, picture(3, [dispatcher(consumers=[consumer("b", [])], hashesMovedTotal=14)], [], None)) == [
        "partition 0: everything is drained"
    ]


def test_a_new_dispatcher_has_drained_nothing_and_counts_anew() -> None:
    def stats(epoch: int, draining: int, created: int, violations: int) -> dict[str, Any]:
        counts = {"pulsar_delayed_message_index_bucket_op_count": {"create": {"succeed": created}}}
        return dispatcher(
            epoch=epoch,
            drainingHashesCount=draining,
            bucketDelayedIndexStats=counts,
            orderViolationsTotal=violations,
        )

    before, after = (picture(1, [stats(3, 4, 2, 5)], [], None), picture(2, [stats(4, 0, 3, 1)], [], None))
    assert told(before, after) == [
        "partition 0: a new dispatcher, epoch 3 to 4",
        "partition 0: THE ORDER WAS BROKEN 1 times",
        "partition 0: 3 buckets sealed",
    ]


def test_owners_that_change_or_fall_silent_are_told() -> None:
    before = picture(1, [dispatcher(), dispatcher(1)], [topic()], None)
    after = picture(2, [dispatcher(epoch=4, hashesMovedTotal=0), None], [topic(epoch=2)], None)
    assert told(before, after) == [
        "partition 0: a new dispatcher, epoch 3 to 4",
        "partition 1: its dispatcher does not answer",
        "partition 0: a new owner, epoch 1 to 2",
    ]


def test_buckets_ledgers_actors_and_violations_are_told() -> None:
    def counts(create: int) -> dict[str, Any]:
        return {"pulsar_delayed_message_index_bucket_op_count": {"create": {"succeed": create}}}

    before = picture(1, [dispatcher(bucketDelayedIndexStats=counts(1))], [topic()], status())
    after = picture(
        2,
        [dispatcher(bucketDelayedIndexStats=counts(3), orderViolationsTotal=1)],
        [topic(bookies=("b1", "b3"))],
        status("read-only", "the disk is full"),
    )
    assert told(before, after) == [
        "partition 0: THE ORDER WAS BROKEN 1 times",
        "partition 0: 2 buckets sealed",
        "partition 0: ledger 8 goes on with b1, b3",
        "bookie/b1 is read-only: the disk is full",
    ]
