"""The heaviest keys of a subscription on a partition, in bounded memory.

Messages that are read are counted by the hash of their key, in groups of many thousand: one sort of a column a group,
and two summaries of a fixed size, by messages and by bytes. The index columns know hashes alone, and the key itself
stands in the message. So one message of each of the heaviest hashes is remembered, and read when an operator asks.
Every million messages these counts are halved, so that a key which was heavy once fades.

A third summary is by the time for which consumers hold a key's messages, from their delivery until they are
acknowledged. It is estimated: at every look, every few seconds, each message that is held then counts for the time
since the look before. That costs nothing on the way of a message, and every look sees a message that is held for long.
Looks that find little are counted together, because a broker has many partitions with a few messages each.

**A key that holds a partition back** is noticed and reported where operators look. One consumer works through the
messages of a key in order. If that consumer does not keep up with a key, the key's messages gather until they fill the
look-ahead, and messages of other keys behind them come late. The key is reported when two things were true at every
look for HELD_BACK_MS. The same key had more than half of all unfinished messages, at least FEWEST of them. A consumer
had some of them while others waited for it, or it had one message for all that time. A stream that flows looks
different, however large the share of one key is: no message waits then.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.actors.dispatcher.delivery.context import SubscriptionContext
from sluice.actors.dispatcher.delivery.unacked_runs import parts_to_ask_for
from sluice.actors.key_shared import Heaviest
from sluice.actors.messages import Part
from sluice.actors.messages.limits import KEPT_MS
from sluice.storage.errors import SluiceError
from sluice.storage.format.hashing import Hashes
from sluice.storage.format.heavy_hitters import HeavyHitters
from sluice.storage.format.position import Positions, position, show

GROUP = 65_536
"""The number of messages that are counted together; until then 12 bytes of each are kept."""
HELD_GROUP = 1_024
"""The same, for messages that looks found to be held."""
FADE = 1_000_000
FADE_MS = 600_000
"""The time of looking after which the times held are halved."""
LOOK_MS = 2_000
"""The least time between two looks."""
HELD_BACK_MS = 10_000
FEWEST = 100
NAMED = 256
"""The number of heavy hashes with a message by which their key can be looked up."""


class HotKeys:
    """The counts of keys, in memory alone; a new owner starts counting from zero."""

    def __init__(self, context: SubscriptionContext) -> None:
        self._ports, self._core, self._payloads = context.ports, context.core, context.payloads
        self._messages, self._bytes, self._held = HeavyHitters(), HeavyHitters(), HeavyHitters()
        self._looked = self._ports.clock.monotonic()
        self._looked_for = 0
        self._looks: list[tuple[Hashes, Positions, int]] = []
        """The messages that each look found, with the time since the look before."""
        self._seen = 0
        self._hashes: list[Hashes] = []
        self._positions: list[Positions] = []
        self._sizes: list[tuple[int, int]] = []
        """Bytes of one message, and how many, for each column."""
        self._gathered = 0
        self._counted = 0
        self._examples: dict[int, int] = {}
        self._names_read: dict[int, tuple[int, str | None]] = {}
        """Keys by the position of a message, and when they were read; kept for KEPT_MS at most."""

    def read(self, hashes: Hashes, positions: Positions, size: int) -> None:
        """Count messages that were read, uint32 and int64 (n,); `size` is about the bytes of one."""
        if not len(hashes):
            return
        self._hashes.append(hashes.copy())  # else the whole answer that it lies in would stay
        self._positions.append(positions)
        self._sizes.append((size, len(hashes)))
        self._gathered += len(hashes)
        if self._gathered >= GROUP:
            self._count()

    def sample(self) -> None:
        """Sample the messages that consumers hold; called from time to time."""
        now = self._ports.clock.monotonic()
        passed = now - self._looked
        if passed < LOOK_MS:
            return
        self._looked = now
        hashes, positions = self._core.held_keys()
        if not len(hashes):
            return
        self._looks.append((hashes, positions, passed))
        self._seen += len(hashes)
        self._looked_for += passed
        fades = self._looked_for >= FADE_MS
        if fades or self._seen >= HELD_GROUP:
            self._count_held()
        if fades:
            self._looked_for = 0
            self._held.halve()

    async def top(self, top: int) -> dict[str, Any]:
        """Return the `top` heaviest keys, by messages, by bytes and by time held, and the hashes that wait longest."""
        self._count()
        self._count_held()
        found = [(self._messages, "count"), (self._bytes, "count"), (self._held, "millis")]
        wanted = {one for summary, _ in found for one, _ in summary.top(top)}
        names = await self._names(wanted)
        messages, size, held = (self._rows(summary, top, names, unit) for summary, unit in found)
        return {
            "messages": messages,
            "bytes": size,
            "held": held,
            "waiting": self._core.blocked_keys(top, self._ports.clock.now()),
            "counted": self._messages.total,
            "countedBytes": self._bytes.total,
            "heldMillis": self._held.total,
            "memoryBytes": sum(summary.nbytes() for summary, _ in found),
        }

    def stats(self) -> dict[str, Any]:
        """Return how much of all messages the heaviest key has; `top` says which one it is."""
        self._count()
        first = self._messages.top(1)
        share = first[0][1] / self._messages.total if first and self._messages.total else 0.0
        return {"hottestKeyShare": round(share, 4)}

    def _rows(self, found: HeavyHitters, top: int, names: dict[int, str | None], unit: str) -> list[dict[str, Any]]:
        return [
            {
                "key": names.get(wanted),
                "hash": self.reduced(wanted),
                unit: weight,
                "share": round(weight / found.total, 4),
                f"{unit}AtMost": weight + found.error,
            }
            for wanted, weight in found.top(top)
        ]

    def reduced(self, masked: int) -> int:
        """Return a masked hash as the subscription's selector sees it."""
        return int(self._core.reduce(np.array([masked], np.uint32))[0])

    async def _names(self, wanted: set[int]) -> dict[int, str | None]:
        """Return the keys behind hashes, as far as they are found.

        Keys that were not read lately are read in one go: one by one they cost the topic's owner a question each.
        """
        now = self._ports.clock.monotonic()
        self._names_read = {at: read for at, read in self._names_read.items() if now - read[0] < KEPT_MS}
        at = {one: self._examples[one] for one in sorted(wanted) if one in self._examples}
        missing = [here for here in at.values() if here not in self._names_read]
        found = {here: name for here, (_, name) in self._names_read.items()}
        for part in parts_to_ask_for(np.unique(np.array(missing, np.int64))) if missing else ():
            names = await self._read_names(part)
            found |= names
            self._names_read |= {here: (now, name) for here, name in names.items()}
        return {one: found.get(here) for one, here in at.items()}

    async def name_at(self, at: int) -> str | None:
        """Return the key of the message at a position; None if it cannot be read now, or has none."""
        (part,) = parts_to_ask_for(np.array([at], np.int64))
        return (await self._read_names(part)).get(at)

    async def _read_names(self, part: Part) -> dict[int, str | None]:
        """Return the keys of messages by their positions; of none if they cannot be read now."""
        try:
            received = await self._payloads.resolve(part, 0, 0)
        except SluiceError as error:
            first = position(part.ledger, int(part.rows[0]))
            self._ports.log("key_not_read", position=show(first), error=str(error))
            return {}
        found: dict[int, str | None] = {}
        for one in received:
            columns = [name for name in ("ordering_key", "key") if name in one.rows.schema.names]
            keys = [one.rows.column(name).to_pylist() for name in columns]
            for row, at in enumerate(one.positions.tolist()):
                key = next((column[row] for column in keys if column[row] is not None), None)
                found[at] = None if key is None else bytes(key).decode("utf-8", "replace")
        return found

    def _count(self) -> None:
        if not self._gathered:
            return
        hashes, positions = np.concatenate(self._hashes), np.concatenate(self._positions)
        sizes = np.array(self._sizes, np.int64)
        size = np.repeat(sizes[:, 0], sizes[:, 1])
        self._hashes, self._positions, self._sizes, self._gathered = [], [], [], 0
        # The row rides along in the low bits, so that one plain sort gives hashes and rows.
        packed = hashes.astype(np.uint64) << np.uint64(32) | np.arange(len(hashes), dtype=np.uint64)
        packed.sort()
        rows = (packed & np.uint64(0xFFFFFFFF)).astype(np.int64)
        ordered = (packed >> np.uint64(32)).astype(np.uint32)
        first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        distinct, number = ordered[first], np.diff(first, append=len(ordered))
        self._messages.add(distinct, number.astype(np.int64))
        self._bytes.add(distinct, np.add.reduceat(size[rows], first))
        self._remember(distinct, positions[rows[first]], number)
        self._counted += len(hashes)
        if self._counted >= FADE:
            self._counted = 0
            self._messages.halve()
            self._bytes.halve()

    def _count_held(self) -> None:
        looks, self._looks, self._seen = self._looks[::-1], [], 0  # the newest messages come first, to be remembered
        if not looks:
            return
        hashes, positions = (np.concatenate([look[column] for look in looks]) for column in (0, 1))
        passed = np.repeat([look[2] for look in looks], [len(look[0]) for look in looks])
        distinct, first, which, number = np.unique(hashes, return_index=True, return_inverse=True, return_counts=True)
        self._held.add(distinct, np.bincount(which, passed).astype(np.int64))
        self._remember(distinct, positions[first], number)

    def _remember(self, hashes: Hashes, positions: Positions, number: npt.NDArray[np.intp]) -> None:
        """Keep the newest message of each of the heaviest hashes: older ones are trimmed first."""
        top = np.argsort(-number, kind="stable")[:NAMED]
        heavy = {wanted for found in (self._messages, self._bytes, self._held) for wanted, _ in found.top(NAMED)}
        seen = dict(zip(hashes[top].tolist(), positions[top].tolist(), strict=True))
        known = {wanted: at for wanted, at in self._examples.items() if wanted in heavy}
        self._examples = known | {wanted: at for wanted, at in seen.items() if wanted in heavy}


class HotKeyWatch:
    """A watch for a key that holds the partition back. problem: the warning in one line, empty while there is none."""

    def __init__(self, context: SubscriptionContext, hot_keys: HotKeys) -> None:
        self._ports, self._identity, self._core = context.ports, context.identity, context.core
        self._hot_keys = hot_keys
        self._key = -1
        self._since = 0
        self._name = ""
        self.problem = ""

    def check(self, *, paused: bool) -> None:
        """Look again; called every now and then. paused: nothing is sent at all, so no key is in the way."""
        found = None if paused else self._core.heaviest(FEWEST)
        if found is None or not self._is_held_back(found, self._ports.clock.now()):
            self._over()
            return
        now = self._ports.clock.monotonic()
        if found.key != self._key:
            self._over()
            self._key, self._since = found.key, now
        if now - self._since >= HELD_BACK_MS and not self._name:
            self._name = f"with hash {self._hot_keys.reduced(found.key)}"
            self._ports.spawn(self._warn(found), "hot-key")

    def stats(self) -> dict[str, Any]:
        """Return whether one key holds the partition back: 1 or 0, and which."""
        return {"heldBackByKey": int(bool(self.problem)), "heldBackBy": self._name}

    @property
    def problem_without_key(self) -> str:
        """The warning with the key's hash in place of the key."""
        return self.problem.replace(f"key {self._name} holds", f"the key of hash {self._key} holds", 1)

    def _is_held_back(self, found: Heaviest, now: int) -> bool:
        if not found.holder:
            return False
        return found.waiting > 0 or now - found.held_since >= HELD_BACK_MS

    def _over(self) -> None:
        if self.problem:
            self._ports.log("hot_key_over", key=self._name)
        self._key, self._name, self.problem = -1, "", ""

    async def _warn(self, found: Heaviest) -> None:
        """Look up the key's name, and report it. The line does not change, so it is reported once."""
        name = await self._hot_keys.name_at(found.position)
        if self._key != found.key:
            return
        self._name = self._name if name is None else repr(name)
        of = self._identity
        holder = next((each.name for each in self._core.consumers() if each.number == found.holder), "")
        self.problem = (
            f"key {self._name} holds {of.subscription} back on partition {of.partition} of {of.topic}: "
            f"{found.unfinished} of {found.of} unfinished messages are its, and {holder}#{found.holder} alone may have "
            "them. More consumers do not help: make its work shorter, or give its messages several keys; see "
            f"sluice subscriptions hot-keys {of.topic} {of.subscription}"
        )
        self._ports.log("hot_key", key=self._name, unfinished=found.unfinished, of=found.of, holder=found.holder)
