"""How many messages a second the Key_Shared decisions handle on one core, and what draining costs.

    python benchmarks/dispatch.py [--small] [--messages N] [--queue N] [--nack-order]

Each case reads forward in batches of 10,000, routes them, and lets every consumer acknowledge its messages in groups of
at most 1,000 (`--queue`), as a consumer with a queue of that size does. So 256 consumers have 26 times as many messages
in flight as one, which is more memory than the caches of a core hold; `--queue 40` compares all cases at about equal
messages in flight. Reading obeys `room`. The draining cases begin with a number of draining hashes: consumers that stay
hold one message of each, and newcomers own the hashes now. One message in a hundred is published to those hashes, so
that blocked messages wait and are looked up. Keys are equally likely. The sentinel is on, as always. With
`--nack-order` each case without draining is also run with `nack_order=key`, in turn with runs without it.
`plain_to_nack_order` is how many times as fast the case is without; nothing is given back.

The result is one JSON object on standard output. `messages_per_second` counts append, route and acknowledge together,
against processor time (the decisions never wait), the best of the repetitions. `messages_per_second_cut` counts also
the cutting of the columns into one object for each consumer and batch, which grows with the consumers. What the
consumers themselves do with a delivery is not counted.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.actors.key_shared import Assignment, KeySharedDispatcher
from sluice.actors.key_shared.state.tables import HashTables
from sluice.actors.messages import SubscriptionSettings
from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.storage.format.position import Positions, run_positions

BATCH = 10_000
QUEUE = 1_000
PERMITS = 1 << 60

Column = npt.NDArray[np.uint32]


def make(consumers: int, nack_order: str) -> tuple[KeySharedDispatcher, list[int]]:
    """A subscription without limits that would end the run, and its consumers."""
    dispatch = KeySharedDispatcher(
        SubscriptionSettings(
            nack_order=nack_order,
            max_unacked_messages_per_consumer=0,
            max_unacked_messages_per_subscription=0,
            look_ahead_per_consumer=0,
            look_ahead_per_subscription=1_000_000,
        )
    )
    return dispatch, [join(dispatch, number) for number in range(consumers)]


def join(dispatch: KeySharedDispatcher, number: int) -> int:
    """One more consumer, with permits for ever."""
    consumer = dispatch.join(f"consumer-{number}", now=0)
    dispatch.grant(consumer, PERMITS)
    return consumer


def by_hash(dispatch: KeySharedDispatcher, masked: Column) -> npt.NDArray[np.int64]:
    """Return for each reduced hash the index of one key that has it, -1 for none."""
    where = np.full(65536, -1, np.int64)
    where[dispatch.reduce(masked)] = np.arange(len(masked))
    return where


def drain(dispatch: KeySharedDispatcher, consumers: list[int], wanted: int) -> tuple[list[int], Column, Column]:
    """Let `wanted` hashes drain at the first half of the consumers; returns consumers, keys that drain, others.

    One message of every hash is sent, the second half of the consumers join, and of the hashes that moved all but
    `wanted` are acknowledged.
    """
    masked = np.arange(1 << 17, dtype=np.uint32)
    every = masked[by_hash(dispatch, masked)[1:]]
    positions = run_positions(1, 0, len(every))
    dispatch.append(positions, every)
    dispatch.route(0)
    grown = consumers + [join(dispatch, 1000 + number) for number in range(len(consumers))]
    tables = dispatch.tables
    moved = np.flatnonzero(tables.draining_mask())[:wanted]
    keep = np.isin(dispatch.reduce(every), moved)
    dispatch.acknowledge(positions[~keep])
    if tables.draining != wanted:
        raise SystemExit(f"only {tables.draining} hashes drain, {wanted} were wanted")
    return grown, every[keep], every[~keep]


def traffic(keys: int, messages: int, draining: Column, others: Column) -> Column:
    """Masked hashes of the messages of one run."""
    random = np.random.default_rng(7)
    if len(draining):
        others = others[random.integers(0, len(others), keys)] if keys < len(others) else others
    else:
        others = random.integers(0, 1 << 31, keys).astype(np.uint32)
    hashes = others[random.integers(0, len(others), messages)]
    if len(draining):
        some = np.arange(50, messages, 100)
        hashes[some] = draining[random.integers(0, len(draining), len(some))]
    return hashes


class Consumers:
    """Collects what each consumer got; a full queue is acknowledged in groups of its size."""

    def __init__(self, consumers: list[int], queue: int) -> None:
        self.queue = queue
        self.queues: dict[int, list[Positions]] = {consumer: [] for consumer in consumers}
        self.held = np.zeros(max(consumers) + 1, np.int64)

    def take(self, parts: list[Assignment]) -> list[tuple[Positions, int]]:
        """Messages came; returns what the consumers acknowledge now."""
        for part in parts:
            self.queues[part.consumer].append(part.positions)
            self.held[part.consumer] += len(part.positions)
        full = np.flatnonzero(self.held >= self.queue).tolist()
        return [group for consumer in full for group in self.empty(consumer)]

    def empty(self, consumer: int) -> list[tuple[Positions, int]]:
        """Take everything that this consumer has."""
        parts, self.queues[consumer], self.held[consumer] = self.queues[consumer], [], 0
        if not parts:
            return []
        held = np.concatenate(parts)
        return [(held[at : at + self.queue], consumer) for at in range(0, len(held), self.queue)]


def run(
    consumers: int, keys: int, draining: int, messages: int, queue: int = QUEUE, nack_order: str = "none"
) -> dict[str, Any]:
    dispatch, members = make(consumers, nack_order)
    drained, others = np.empty(0, np.uint32), np.empty(0, np.uint32)
    if draining:
        members, drained, others = drain(dispatch, members, draining)
    hashes = traffic(keys, messages, drained, others)
    positions = run_positions(2, 0, messages)
    readers = Consumers(members, queue)
    sent, took, cutting, clock = 0, 0.0, 0.0, time.process_time
    reports: list[tuple[Positions, int]] = []
    for start in range(0, messages, BATCH):
        began = clock()
        for report in reports:
            dispatch.acknowledge_soon(*report)
        if dispatch.room() < BATCH:
            raise SystemExit("there is no room to read on")
        dispatch.append(positions[start : start + BATCH], hashes[start : start + BATCH])
        routed = dispatch.route(0)
        decided = clock()
        parts = list(routed)
        took, cutting = took + decided - began, cutting + clock() - decided
        sent += sum(len(part.positions) for part in parts)
        reports = readers.take(parts)
    began = clock()
    for report in reports + [group for consumer in members for group in readers.empty(consumer)]:
        dispatch.acknowledge_soon(*report)
    dispatch.room()
    took += clock() - began
    dispatch.check()
    return {
        "seconds": took,
        "cutting": cutting,
        "sent": sent,
        "waiting": messages - sent,
        "sentinel": dispatch.stats(0)["sentinel"],
    }


def measure(consumers: int, keys: int, draining: int, messages: int, repeat: int, queue: int) -> dict[str, Any]:
    """The best of several runs of one case."""
    runs = [run(consumers, keys, draining, messages, queue) for _ in range(repeat)]
    best = min(runs, key=lambda result: float(result["seconds"]))
    violations = best["sentinel"]["violationsHolder"] + best["sentinel"]["violationsOrder"]
    return {
        "consumers": consumers if not draining else 2 * consumers,
        "keys": keys,
        "draining_hashes": draining,
        "messages": messages,
        "messages_waiting_behind_draining": best["waiting"],
        "messages_per_second": round(messages / best["seconds"]),
        "messages_per_second_cut": round(messages / (best["seconds"] + best["cutting"])),
        "order_violations": violations,
    }


def compare(consumers: int, keys: int, messages: int, repeat: int, queue: int) -> dict[str, Any]:
    """The best of several runs with `nack_order=key`, between as many without."""
    seconds: dict[str, list[float]] = {"none": [], "key": []}
    for _ in range(repeat):
        for order, took in seconds.items():
            took.append(float(run(consumers, keys, 0, messages, queue, order)["seconds"]))
    plain, ordered = min(seconds["none"]), min(seconds["key"])
    return {
        "consumers": consumers,
        "keys": keys,
        "messages_per_second": round(messages / ordered),
        "plain_to_nack_order": round(ordered / plain, 2),
    }


def main() -> None:
    parser = ArgumentParser(description="Throughput of the Key_Shared decisions")
    parser.add_argument("--small", action="store_true", help="a few batches only, to see that it runs")
    parser.add_argument("--messages", type=count, default=2_000_000)
    parser.add_argument("--queue", type=count, default=QUEUE, help="messages that a consumer gathers")
    parser.add_argument("--nack-order", action="store_true", help="also with nack_order=key")
    options = parser.parse_args()
    messages, repeat = (30_000, 1) if options.small else (options.messages, 3)
    cases = []
    for consumers in (1, 16, 256):
        for keys in (10, 1_000_000):
            cases.append(measure(consumers, keys, 0, messages, repeat, options.queue))
            cases.append(measure(max(consumers // 2, 1), keys, 10_000, messages, repeat, options.queue))
    ordered = [
        compare(consumers, keys, messages, repeat, options.queue)
        for consumers in (1, 16, 256)
        for keys in (10, 100_000)
        if options.nack_order
    ]
    rates = [case["messages_per_second"] for case in cases]
    cut = [case["messages_per_second_cut"] for case in cases]
    table = HashTables()
    result = {
        "cases": cases,
        "nack_order": ordered,
        "best_to_worst": round(max(rates) / min(rates), 2),
        "best_to_worst_cut": round(max(cut) / min(cut), 2),
        "hash_table_bytes": table.nbytes,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
