"""How a time is shown to people."""

from __future__ import annotations

from datetime import UTC, datetime


def iso_time(milliseconds: int) -> str:
    """A time in milliseconds since 1970 as ISO-8601 in UTC; as the number that it is if no calendar has it."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
