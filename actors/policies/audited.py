"""Audit entries of requests that were done, refused or failed: see cluster.base.audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

DONE, REFUSED, FAILED = "done", "refused", "failed"


@dataclass(frozen=True, slots=True)
class Audited:
    """role: of who asked; empty if that is not known. what: a few words. subscription: "" if it concerns none.

    topic: a topic, a namespace or a tenant. reason: why it was refused, or failed.
    """

    role: str
    address: str
    what: str
    topic: str = ""
    subscription: str = ""
    outcome: str = DONE
    reason: str = ""

    def told(self) -> dict[str, str]:
        """By field."""
        return asdict(self)


Audit = Callable[[Audited], None]
"""Writes one down. It does not block, and raises nothing."""


def nowhere(audited: Audited) -> None:
    """Writes nothing down."""
