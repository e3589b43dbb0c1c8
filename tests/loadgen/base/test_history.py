"""Histories on disk: what was appended survives a kill, and confirmations find their acknowledgements."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.loadgen.base.history import (
    ACKS,
    CONFIRMED,
    EVENTS,
    EXPIRED,
    HistoryClock,
    Journal,
    bucket_hashes,
    confirm_acks,
    read_journal,
    seal,
    write_parquet,
)
from sluice.storage.format.hashing import masked_hash, reduce_hash
from tests.loadgen.histories import Story


def event_rows(count: int) -> pa.RecordBatch:
    row = {"consumer": "c", "session": 1, "partition": 0, "event": "attach", "upto": 0}
    return pa.RecordBatch.from_pylist([row | {"at": at} for at in range(count)], EVENTS)


def test_journal_becomes_parquet(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", EVENTS) as journal:
        journal.append(event_rows(3))
        journal.append(event_rows(2))
    assert seal(tmp_path / "j", EVENTS, tmp_path / "e.parquet") == 5
    assert not (tmp_path / "j").exists()
    assert pq.read_table(tmp_path / "e.parquet").column("at").to_pylist() == [0, 1, 2, 0, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["e.parquet"]


@pytest.mark.parametrize("cut", [1, 7, 100])
def test_torn_tail_is_dropped(tmp_path: Path, cut: int) -> None:
    journal = Journal(tmp_path / "j", EVENTS)
    journal.append(event_rows(3))
    whole = (tmp_path / "j").stat().st_size
    journal.append(event_rows(4))
    os.truncate(tmp_path / "j", (tmp_path / "j").stat().st_size - cut)
    assert read_journal(tmp_path / "j", EVENTS).num_rows == 3
    os.truncate(tmp_path / "j", whole)
    assert read_journal(tmp_path / "j", EVENTS).num_rows == 3


def test_appended_rows_survive_sigkill(tmp_path: Path) -> None:
    code = (
        "import sys, signal, os; from pathlib import Path\n"
        "from sluice.loadgen.base.history import Journal, EVENTS\n"
        "from tests.loadgen.base.test_history import event_rows\n"
        f"journal = Journal(Path({str(tmp_path / 'j')!r}), EVENTS)\n"
        "journal.append(event_rows(5)); journal.append(event_rows(6))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL
    assert read_journal(tmp_path / "j", EVENTS).num_rows == 11


def test_empty_journal_has_a_schema(tmp_path: Path) -> None:
    Journal(tmp_path / "j", EVENTS).close()
    assert read_journal(tmp_path / "j", EVENTS).schema.names == EVENTS.names


def test_clock_goes_forward_and_agrees_between_holders() -> None:
    clock = HistoryClock.start()
    first = clock.now()
    second = HistoryClock(clock.shift_ns).now()
    assert first <= second < first + 60_000_000


def test_bucket_hash_is_the_sticky_hash() -> None:
    keys = [b"a", b"key-0", b"", None]
    hashes = bucket_hashes(pa.array(keys, pa.binary()), np.array([0, 1, 2, 65536 * 3]))
    sticky = [int(reduce_hash(np.array([masked_hash(key)], np.uint32))[0]) for key in keys if key is not None]
    assert hashes[:3].tolist() == sticky
    assert hashes[0] == 42456
    assert hashes[3] == 65536 * 3 % 65535 + 1
    assert bucket_hashes(pa.nulls(2, pa.binary()), np.array([5, 6])).tolist() == [6, 7]


def test_confirmation_covers_what_was_acknowledged_before() -> None:
    story = Story()
    for entry, at in enumerate((10, 20, 30, 40)):
        story.ack("c", entry, at)
    story.ack("other", 9, 10)
    for upto, at in ((20, 55), (25, 50), (30, 70)):
        story.event("c", CONFIRMED, at, upto=upto)
    acks = confirm_acks(pa.Table.from_pylist(story.acks, ACKS), pa.Table.from_pylist(story.events, EVENTS))
    assert acks.column("confirmed_at").to_pylist() == [50, 50, 70, 0, 0]


def test_unconfirmed_acks_of_a_lost_session_stay_unconfirmed() -> None:
    story = Story()
    for entry, at in enumerate((10, 20)):
        story.ack("c", entry, at)
    story.ack("other", 9, 10)
    story.event("c", CONFIRMED, 15, upto=12)
    story.event("c", EXPIRED, 14, session=1, partition=0, upto=30)
    for consumer in ("c", "other"):  # c means its next session
        story.event(consumer, CONFIRMED, 50, upto=45)
    acks = confirm_acks(pa.Table.from_pylist(story.acks, ACKS), pa.Table.from_pylist(story.events, EVENTS))
    assert acks.column("confirmed_at").to_pylist() == [15, 0, 50]


def test_acks_sent_again_under_a_session_are_lost_with_it() -> None:
    """A new owner has another session for the same consumer, which sends the unconfirmed acks again under it."""
    story = Story()
    for session, at in ((1, 10), (2, 20), (3, 40)):
        story.ack("c", session, at, session=session)
    story.ack("c", 9, 10, partition=1)
    story.event("c", EXPIRED, 14, session=2, partition=0, upto=30)
    story.event("c", CONFIRMED, 50, upto=45)
    acks = confirm_acks(pa.Table.from_pylist(story.acks, ACKS), pa.Table.from_pylist(story.events, EVENTS))
    assert acks.column("confirmed_at").to_pylist() == [0, 0, 50, 50]


def test_parquet_appears_whole(tmp_path: Path) -> None:
    write_parquet(pa.Table.from_batches([event_rows(2)]), tmp_path / "a.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_journal_of_a_writer_that_was_killed_at_once_is_empty(tmp_path: Path) -> None:
    (tmp_path / "j").touch()
    assert seal(tmp_path / "j", EVENTS, tmp_path / "e.parquet") == 0
    assert pq.read_schema(tmp_path / "e.parquet").names == EVENTS.names
