"""The policies of a namespace as words: how `sluice namespaces set` reads them, and how `get` shows them.

A value is shown in the words by which it is set. `unlimited` is Pulsar's -1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.storage.errors import Invalid

UNLIMITED = "unlimited"
_TIMES = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_SIZES = (("TB", 1 << 40), ("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10), ("", 1))


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a value. name: for people. read: raises ValueError."""

    name: str
    read: Callable[[str], Any]
    show: Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class NamespacePolicy:
    """path: below the namespace. fields: of the JSON object, one for each word; none if the body is the word itself.

    kind: the kind of a backlog quota, which has a path of its own for reading.
    """

    path: str
    words: tuple[Word, ...]
    fields: tuple[str, ...] = ()
    method: str = "POST"
    kind: str = ""

    @property
    def to_set(self) -> str:
        """The path by which it is set and unset."""
        return f"backlogQuota?backlogQuotaType={self.kind}" if self.kind else self.path

    def found(self, answer: Any) -> Any:
        """The part of an answer that tells of this policy; None if it is not set."""
        return (answer or {}).get(self.kind) if self.kind else answer

    def body(self, name: str, given: Sequence[str]) -> Any:
        """The JSON for these words. Raises Invalid."""
        if len(given) != len(self.words):
            raise Invalid(f"{name} is set with {' '.join(word.name for word in self.words)}")
        values = []
        for word, text in zip(self.words, given, strict=True):
            try:
                values.append(word.read(text))
            except ValueError as error:
                raise Invalid(f"{word.name} of {name}: {error}") from None
        return dict(zip(self.fields, values, strict=True)) if self.fields else values[0]


def shown(name: str, document: Any) -> str:
    """A policy in the words by which it is set; `-` if it is not."""
    policy = POLICIES[name]
    if document is None:
        return "-"
    values = [document.get(field) for field in policy.fields] if policy.fields else [document]
    return " ".join(word.show(value) for word, value in zip(policy.words, values, strict=True))


def _amount(name: str, parse: str, units: Sequence[tuple[str, int]], unit: int) -> Word:
    """A time or a size that is a whole number of units. unit: milliseconds or bytes of the number that is sent."""

    def read(text: str) -> int:
        from sluice.cluster.settings import config

        if text == UNLIMITED:
            return -1
        amount: int = getattr(config, parse)(text)
        if amount % unit:
            raise ValueError(f"{text} is not a whole number of {_in_units(unit, units)}")
        return amount // unit

    return Word(name, read, lambda value: UNLIMITED if value < 0 else _in_units(value * unit, units))


def _in_units(amount: int, units: Sequence[tuple[str, int]]) -> str:
    """Return an amount in the largest unit that divides it."""
    name, size = next((each for each in units if amount and amount % each[1] == 0), units[-1])
    return f"{amount // size}{name}"


def _time(name: str, unit_ms: int) -> Word:
    return _amount(name, "parse_duration", _TIMES, unit_ms)


def _size(name: str, unit: int = 1) -> Word:
    return _amount(name, "parse_size", _SIZES, unit)


def _count(text: str) -> int:
    if text == UNLIMITED:
        return -1
    if not text.isdecimal():
        raise ValueError(f"{text[:40]!r} is not a number")
    return int(text[:20])


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text[:40]!r} is neither true nor false")
    return text == "true"


_FLAG = Word("true|false", _flag, lambda value: "true" if value else "false")
_COUNT = Word("NUMBER", _count, lambda value: UNLIMITED if value < 0 else str(value))
_STRATEGY = Word("STRATEGY", str.upper, str)
_HOLD = Word("producer_request_hold|producer_exception|consumer_backlog_eviction", str, str)


def _rate(kind: str) -> NamespacePolicy:
    fields = (f"{kind}ThrottlingRateInMsg", f"{kind}ThrottlingRateInByte")
    return NamespacePolicy(f"{kind}Rate", (Word("MESSAGES", _COUNT.read, _COUNT.show), _size("SIZE")), fields)


POLICIES: dict[str, NamespacePolicy] = {
    "schema-compatibility": NamespacePolicy("schemaCompatibilityStrategy", (_STRATEGY,)),
    "schema-enforced": NamespacePolicy("schemaValidationEnforced", (_FLAG,)),
    "deduplication": NamespacePolicy("deduplication", (_FLAG,)),
    "retention": NamespacePolicy(
        "retention",
        (_time("TIME", 60_000), _size("SIZE", 1 << 20)),
        ("retentionTimeInMinutes", "retentionSizeInMB"),
    ),
    "message-ttl": NamespacePolicy("messageTTL", (_time("TIME", 1_000),)),
    "backlog-quota": NamespacePolicy(
        "backlogQuotaMap", (_size("SIZE"), _HOLD), ("limitSize", "policy"), kind="destination_storage"
    ),
    "backlog-age": NamespacePolicy(
        "backlogQuotaMap", (_time("TIME", 1_000), _HOLD), ("limitTime", "policy"), kind="message_age"
    ),
    "publish-rate": _rate("publish"),
    "dispatch-rate": _rate("dispatch"),
    "max-producers-per-topic": NamespacePolicy("maxProducersPerTopic", (_COUNT,)),
    "max-consumers-per-topic": NamespacePolicy("maxConsumersPerTopic", (_COUNT,)),
    "max-consumers-per-subscription": NamespacePolicy("maxConsumersPerSubscription", (_COUNT,)),
    "offload-threshold": NamespacePolicy("offloadThreshold", (_size("SIZE"),), method="PUT"),
    "offload-age": NamespacePolicy("offloadThresholdInSeconds", (_time("TIME", 1_000),), method="PUT"),
    "offload-deletion-lag": NamespacePolicy("offloadDeletionLagMs", (_time("TIME", 1),), method="PUT"),
    "compaction-threshold": NamespacePolicy("compactionThreshold", (_size("SIZE"),), method="PUT"),
}
"""By the words of the command line. Rates are for each second."""
