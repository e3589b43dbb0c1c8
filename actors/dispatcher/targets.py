"""Which position an operator's words name: a message id, a time, so many messages further."""

from __future__ import annotations

from actors.messages import Ends
from storage.cursor import Cursor
from storage.errors import Invalid
from storage.position import ledger_of, parse, position, show

CLOCKS_DIFFER = 60_000
"""By how much an operator's clock may be ahead of the broker's, in milliseconds."""
_SHOWN = 5


def place(wanted: str, ends: Ends) -> int:
    """The position that a message id, `earliest` or `latest` names in a topic as it is now.

    What was trimmed away means the oldest message that is kept. Raises Invalid for a place that never was: a seek to it
    would silently be one to the end.
    """
    if wanted in ("earliest", "latest"):
        return ends.first if wanted == "earliest" else ends.next
    at = parse(wanted)
    if at <= ends.first or at == ends.next:
        return max(at, ends.first)
    last = dict(ends.ledgers).get(ledger_of(at), -2)
    if last == -2 or at > (ends.next if last is None else position(ledger_of(at), max(last, 0)) + 1):
        kept = ", ".join(str(ledger) for ledger, _ in ends.ledgers[-_SHOWN:])
        raise Invalid(
            f"there is no message {wanted} here: the last ledgers are {kept}, the last message is {show(ends.last)}; "
            "`latest` names the end"
        )
    return at


def check_time(time: int, now: int) -> None:
    """Raises Invalid for a time in the future, which a time in micro- or nanoseconds is as well."""
    if time > now + CLOCKS_DIFFER:
        raise Invalid(
            f"the time {time} lies in the future: times are milliseconds since 1970, now is {now}; "
            "`latest` names the end"
        )


def behind(cursor: Cursor, ends: Ends, messages: int) -> int:
    """The position behind the next so many messages that are not done; the end of the topic if there are fewer."""
    for ledger, last_entry in ends.ledgers:
        first = max(position(ledger, 0), cursor.mark_delete + 1)
        last = min(
            position(ledger, last_entry) if last_entry is not None and last_entry >= 0 else ends.next - 1, ends.last
        )
        if last < first or ledger_of(last) != ledger:
            continue
        there = cursor.unacknowledged_in(first, last)
        if there < messages:
            messages -= there
            continue
        low, high = first, last
        while low < high:  # the smallest position up to which there are enough
            middle = (low + high) // 2
            if cursor.unacknowledged_in(first, middle) < messages:
                low = middle + 1
            else:
                high = middle
        return low + 1
    return ends.next
