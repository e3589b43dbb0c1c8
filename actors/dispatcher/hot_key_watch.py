"""Notices when one key holds a partition back, and says so where operators look.

The messages of a key are one consumer's work, one after the other. If that consumer does not keep up with a key, the
key's messages gather until they fill what is read ahead, and the other keys behind them come late. This is told when,
for HELD_BACK_MS and at every look in between, the same key has had more than half of all unfinished messages, at least
FEWEST of them; a consumer had some, and others waited for it, or it had one for as long as that. A stream that flows
looks different, however much of it one key is: nothing waits then.
"""

from __future__ import annotations

from typing import Any

from actors.dispatcher.context import SubscriptionContext
from actors.dispatcher.hot_keys import HotKeys
from actors.key_shared.heaviest import Heaviest, heaviest

HELD_BACK_MS = 10_000
FEWEST = 100


class HotKeyWatch:
    """See the module. problem: the warning in one line, empty while there is none."""

    def __init__(self, context: SubscriptionContext, hot_keys: HotKeys) -> None:
        self._ports, self._identity, self._core = context.ports, context.identity, context.core
        self._hot_keys = hot_keys
        self._key = -1
        self._since = 0
        self._name = ""
        self.problem = ""

    def look(self, *, paused: bool) -> None:
        """Look again; called every now and then. paused: nothing is sent at all, so no key is in the way."""
        now = self._ports.clock.now()
        found = None if paused else heaviest(self._core.window, self._core.consumers())
        if found is None or not self._is_held_back(found, now):
            self._over()
            return
        if found.key != self._key:
            self._over()
            self._key, self._since = found.key, now
        if now - self._since >= HELD_BACK_MS and not self._name:
            self._name = f"with hash {self._hot_keys.reduced(found.key)}"
            self._ports.spawn(self._warn(found), "hot-key")

    def stats(self) -> dict[str, Any]:
        """Whether one key holds the partition back: 1 or 0, and which."""
        return {"heldBackByKey": int(bool(self.problem)), "heldBackBy": self._name}

    def _is_held_back(self, found: Heaviest, now: int) -> bool:
        if found.unfinished < FEWEST or not found.holder:
            return False
        return found.waiting > 0 or now - found.held_since >= HELD_BACK_MS

    def _over(self) -> None:
        if self.problem:
            self._ports.log("hot_key_over", key=self._name)
        self._key, self._name, self.problem = -1, "", ""

    async def _warn(self, found: Heaviest) -> None:
        """Look up what the key is called, and tell it. The line stays as it is, so that nobody is told twice."""
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
            f"./sluice subscriptions hot-keys {of.topic} {of.subscription}"
        )
        self._ports.log("hot_key", key=self._name, unfinished=found.unfinished, of=found.of, holder=found.holder)
