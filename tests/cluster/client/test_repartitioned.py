"""A producer whose topic turns out to have another number of partitions: what came back goes first."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sluice.storage.errors import Fenced, NotFound
from sluice.storage.format.hashing import masked_hash
from tests.cluster.client.test_producer import Stage

KEYS = [f"k{number}" for number in range(9)]


def sent_to(stage: Stage) -> dict[str, list[tuple[int, str]]]:
    """Return for each key the partitions that have its messages, with the payloads, in order."""
    found: dict[str, list[tuple[int, str]]] = {key: [] for key in KEYS}
    for number, part in enumerate(stage.parts):
        for one in part.got:
            for row in one.batch.rows.select(["key", "payload"]).to_pylist():
                found[row["key"].decode()].append((number, row["payload"].decode()))
    return found


@pytest.mark.parametrize("remade", [1, 5])
def test_messages_that_a_remade_topic_gives_back_go_first(remade: int) -> None:
    """By its new number of partitions, as everything that was sent meanwhile."""
    stage = Stage(partitions=2)
    sent = [stage.producer.send_async("1", partition_key=key) for key in KEYS]
    stage.loop.turn()
    columns = pa.table({"key": [key.encode() for key in KEYS], "payload": [b"2"] * len(KEYS)})
    receipt = stage.producer.send_batch(columns)
    stage.parts[0].give_back()
    stage.loop.turn()
    later = [stage.producer.send_async("3", partition_key=key) for key in KEYS]
    stage.loop.turn()
    kept = [part.got.copy() for part in stage.parts]
    assert [len(got) for got in kept] == [1, 1], "what is in flight ends before more is sent"
    stage.give_back(remade)
    for part, given_back in zip(stage.parts, kept, strict=False):
        assert part.got[: len(given_back)] == given_back
        del part.got[: len(given_back)]
        part._confirmed = 0
    stage.confirm()
    stage.confirm()
    homes = {key: masked_hash(key.encode()) % remade for key in KEYS}
    assert sent_to(stage) == {key: [(home, payload) for payload in "123"] for key, home in homes.items()}
    assert [one.result().message_id().partition_index for one in sent] == list(homes.values())
    assert [one.result().message_id().partition_index for one in later] == list(homes.values())
    assert [receipt.message_id(row).partition_index for row in range(len(KEYS))] == list(homes.values())
    first = {part.got[0].first_sequence for part in stage.parts[2:] if part.got}
    assert first == ({100} if remade > 2 else set()), "behind what the partition has of this name already"


def test_partitions_that_refuse_at_once_are_counted_once() -> None:
    """A producer that has its topic to itself may learn of another one before it sends. Others are in flight then."""
    stage = Stage(partitions=2)
    stage.remade, refusing = 5, stage.parts[0]
    refusing.gives_back = True
    sent = [stage.producer.send_async("1", partition_key=key) for key in KEYS]
    stage.loop.turn()
    assert stage.counted == 0, "what is in flight ends first"
    refusing.gives_back = False
    stage.give_back(5)
    stage.confirm()
    stage.confirm()
    assert (stage.counted, stage.producer.partitions) == (1, 5)
    assert [one.result().message_id().partition_index for one in sent] == [masked_hash(k.encode()) % 5 for k in KEYS]


def test_a_topic_that_is_not_made_again_refuses_what_came_back() -> None:
    """A message that is sent later asks once more."""
    stage = Stage(partitions=2)
    sent = stage.producer.send_async("a", partition_key="k0")
    stage.loop.turn()
    stage.missing = NotFound("there is no topic 'orders'")
    stage.give_back(5)
    with pytest.raises(NotFound, match="there is no topic"):
        sent.result()
    assert not stage.producer._pending_messages
    again = stage.producer.send_async("b", partition_key="k0")
    stage.loop.turn()
    stage.missing = None
    stage.give_back(5)
    stage.confirm()
    assert again.result().message_id().partition_index == masked_hash(b"k0") % 5


def test_a_producer_that_closes_meanwhile_refuses_what_came_back() -> None:
    stage = Stage(partitions=2)
    sent = [stage.producer.send_async("a", partition_key=key) for key in KEYS]
    stage.loop.turn()
    stage.remade = 5
    for part in stage.parts:
        part.give_back()
    stage.producer._end()
    stage.loop.turn()
    for one in sent:
        with pytest.raises(Fenced, match="closed"):
            one.result()
    assert not stage.producer._pending_messages
