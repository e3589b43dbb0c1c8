"""The ids of the last message of a topic, and of what lies before a reader's start, as clients know them."""

from __future__ import annotations

from sluice.actors.consumer.payload import DecodedRun
from sluice.actors.messages import Ends
from sluice.actors.pulsar.codec.fields import UNSIGNED
from sluice.actors.pulsar.codec.unread_batches import unread_messages
from sluice.storage.format.position import entry_of, ledger_of


def id_before(start: int, ends: Ends, last: dict[str, int]) -> dict[str, int]:
    """The id before the place where a reader began. Of clients that begin behind the last message that is its id."""
    if start > ends.last:
        return {"ledger": last["ledger"], "entry": last["entry"]}
    start = max(start, ends.first)
    return {"ledger": ledger_of(start), "entry": (entry_of(start) - 1) & UNSIGNED}


def place_of(run: DecodedRun, at: int) -> dict[str, int]:
    """The entry and the batch index by which clients know a row: -1 if it came alone. Of a batch that nobody reads here
    it is the index of the last message.
    """
    rows, row = run.rows, entry_of(at) - run.first_entry
    index = rows.column("batch_index")[row].as_py() if "batch_index" in rows.schema.names else None
    if index is not None:
        return {"entry": entry_of(at) - int(index), "batch_index": int(index)}
    count = int(unread_messages(rows.column("pulsar").slice(row, 1))[0]) if "pulsar" in rows.schema.names else 1
    return {"entry": entry_of(at), "batch_index": count - 1 if count > 1 else -1}
