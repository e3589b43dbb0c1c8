"""A small driver for tests of the dispatcher: it publishes by key, names consumers, and shows what came out."""

from __future__ import annotations

from typing import Any

import numpy as np

from sluice.actors.key_shared import KeySharedDispatcher
from sluice.actors.messages import NO_POSITIONS, SubscriptionSettings
from sluice.storage.format.hashing import masked_hash
from sluice.storage.format.position import position, run_positions, show


def ints(values: list[int]) -> np.ndarray:
    """Return a column of positions."""
    return np.array(values, np.int64)


class Driver:
    """A dispatcher with consumers by name. Messages are named `ledger:entry`."""

    def __init__(self, *, ledger: int = 1, entry: int = 0, **settings: Any) -> None:
        self.dispatch = KeySharedDispatcher(SubscriptionSettings(**settings))
        self.ledger, self.entry = ledger, entry
        self.numbers: dict[str, int] = {}
        self.permits: dict[str, int] = {}
        self.keys: dict[int, str] = {}
        self.now = 1_000

    # -- consumers --------------------------------------------------------------------------------------------------

    def join(self, name: str, permits: int = 1000, *, called: str | None = None, **options: Any) -> int:
        """Connect a consumer under `name` (its own name may be `called` differently) and give it permits."""
        number = self.dispatch.join(called or name, now=self.now, **options)
        self.numbers[name], self.permits[name] = number, 0
        self.grant(name, permits)
        return number

    def leave(self, name: str) -> None:
        """Disconnect."""
        self.dispatch.leave(self.numbers.pop(name), now=self.now)

    def grant(self, name: str, more: int) -> None:
        """Grant more permits."""
        self.permits[name] += more
        self.dispatch.grant(self.numbers[name], self.permits[name])

    def key_of(self, name: str, avoid: tuple[str, ...] = ()) -> str:
        """Return a key that the selector gives to this consumer now."""
        for number in range(100_000):
            key = f"k{number}"
            if key not in avoid and self.owner_of(key) == name:
                return key
        raise AssertionError(f"no key for {name}")

    def owner_of(self, key: str) -> str | None:
        """Return the name under which the owner of a key joined."""
        return self.owners_of([key])[0]

    def owners_of(self, keys: list[str]) -> list[str | None]:
        """Return the owners' names of many keys."""
        names = {number: name for name, number in self.numbers.items()}
        at = {member.slot: names[member.number] for member in self.dispatch.consumers() if member.number in names}
        hashes = self.dispatch.reduce(np.array([masked_hash(key.encode()) for key in keys], np.uint32))
        return [at.get(int(slot)) for slot in self.dispatch.tables.owner[hashes]]

    def hash_of(self, key: str) -> int:
        """Return the hash of a key as the selector sees it."""
        return int(self.dispatch.reduce(np.array([masked_hash(key.encode())], np.uint32))[0])

    # -- messages ---------------------------------------------------------------------------------------------------

    def publish(self, *keys: str) -> list[str]:
        """Publish one message a key, and read them at once. Return their names."""
        at = run_positions(self.ledger, self.entry, len(keys))
        self.entry += len(keys)
        self.keys.update(zip(at.tolist(), keys, strict=True))
        self.dispatch.append(at, np.array([masked_hash(key.encode()) for key in keys], np.uint32))
        return [show(int(p)) for p in at]

    def due(self, *keys: str) -> list[str]:
        """Make delayed messages due, with a place in the log, though not read forward. Return their names."""
        at = run_positions(self.ledger, self.entry, len(keys))
        self.entry += len(keys)
        self.keys.update(zip(at.tolist(), keys, strict=True))
        self.dispatch.due(at, np.array([masked_hash(key.encode()) for key in keys], np.uint32))
        return [show(int(p)) for p in at]

    def route(self) -> dict[str, list[str]]:
        """Route once. Return the messages that each consumer got, in order."""
        names = {number: name for name, number in self.numbers.items()}
        got: dict[str, list[str]] = {}
        for part in self.dispatch.route(self.now):
            got.setdefault(names[part.consumer], []).extend(show(int(p)) for p in part.positions)
        self.dispatch.check()
        return got

    def send(self, *keys: str) -> dict[str, list[str]]:
        """Publish and route. Return the messages that each consumer got."""
        self.publish(*keys)
        return self.route()

    def ack(self, *names: str, by: str | None = None) -> list[str]:
        """Acknowledge messages by name. Return those that were here."""
        done = self.dispatch.acknowledge(at(*names), self.numbers[by] if by else None)
        self.dispatch.check()
        return [show(int(p)) for p in done]

    def bring(self, name: str, keys: dict[str, str]) -> None:
        """Hand in the keys of unread messages that a consumer holds."""
        hashes = np.array([masked_hash(key.encode()) for key in keys.values()], np.uint32)
        self.dispatch.bring(self.numbers[name], at(*keys), hashes)

    def nack(self, name: str, *messages: str, **options: Any) -> int:
        """Negatively acknowledge messages, or everything if none are named."""
        number = self.numbers[name]
        if not messages:
            return self.dispatch.redeliver_all(number, self.dispatch.pending(number), unseen=0, now=self.now)
        return self.dispatch.negative_acknowledge(number, at(*messages), now=self.now, **options)

    def pending(self, name: str) -> list[str]:
        """Return the messages that a consumer holds."""
        return [show(int(p)) for p in self.dispatch.pending(self.numbers[name])]

    def consumer_stats(self, name: str) -> dict[str, Any]:
        """Return the statistics of one consumer."""
        consumers = self.dispatch.stats(self.now)["consumers"]
        found: dict[str, Any] = next(c for c in consumers if c["consumerNumber"] == self.numbers[name])
        return found

    def why(self, **about: Any) -> list[str]:
        """Return the gates of an explanation, the most important first."""
        return [reason["gate"] for reason in self.dispatch.explain(now=self.now, **about)["reasons"]]


def at(*names: str) -> np.ndarray:
    """Return positions of messages named `ledger:entry`."""
    if not names:
        return NO_POSITIONS
    return ints([position(int(name.split(":")[0]), int(name.split(":")[1])) for name in names])


def keys_by_owners(*stages: tuple[str, ...], **settings: Any) -> dict[tuple[str | None, ...], list[str]]:
    """Return keys by their owners at each stage of membership. stages: the consumers that join at each, in order."""
    trial = Driver(**settings)
    keys = [f"key-{number}" for number in range(3000)]
    owners: list[list[str | None]] = []
    for stage in stages:
        for name in stage:
            trial.join(name)
        owners.append(trial.owners_of(keys))
    found: dict[tuple[str | None, ...], list[str]] = {}
    for key, history in zip(keys, zip(*owners, strict=True), strict=True):
        found.setdefault(history, []).append(key)
    return found
