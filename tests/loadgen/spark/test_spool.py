"""The spool of a streaming read survives restarts and knows what it holds."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sluice.cluster.client.bulk import ROWS
from sluice.loadgen.spark.spool import Spool
from sluice.storage.errors import Invalid
from sluice.storage.format.position import MAX_LEDGER, position


def rows(first: int, count: int = 3, partition: int = 0) -> pa.Table:
    row = {"key": b"k", "payload": b"p", "publish_time": 1, "deliver_at": 0, "redelivery": 0, "partition": partition}
    return pa.Table.from_pylist([row | {"position": at} for at in range(first, first + count)], ROWS)


def test_files_are_numbered_and_read_back(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    assert [spool.append(rows(0)), spool.append(rows(3))] == [0, 1]
    assert spool.end() == 2
    assert Spool.read(spool.path(1)).column("position").to_pylist() == [3, 4, 5]


def test_reopened_spool_goes_on_and_recognises_what_it_holds(tmp_path: Path) -> None:
    Spool(tmp_path).append(rows(0))
    spool = Spool(tmp_path)
    assert spool.end() == 1
    assert spool.owners(rows(1, 4)).tolist() == [0, 0, -1, -1]
    assert spool.owners(rows(1, 2, partition=1)).tolist() == [-1, -1]
    assert spool.append(rows(9)) == 1


def test_message_of_another_partition_is_another_in_any_ledger(tmp_path: Path) -> None:
    """A message that is taken for one that is held is acknowledged, and never read."""
    spool = Spool(tmp_path)
    spool.append(rows(position(3, 0), partition=1))
    for ledger in (3, 3 + (1 << 19), 3 - (1 << 19) + (1 << 20), MAX_LEDGER):
        assert spool.owners(rows(position(ledger, 0))).tolist() == [-1] * 3
    assert spool.owners(rows(position(3, 1), partition=1)).tolist() == [0, 0, -1]
    assert Spool(tmp_path).owners(rows(position(3, 1), partition=1)).tolist() == [0, 0, -1]


def test_half_written_file_is_not_there(tmp_path: Path) -> None:
    (tmp_path / ".0.partial").write_bytes(b"torn")
    spool = Spool(tmp_path)
    assert spool.end() == 0
    assert spool.append(rows(0)) == 0


def test_forgotten_files_and_their_numbers_never_come_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for first in (0, 3, 6):
        spool.append(rows(first))
    spool.delete_below(2, keep={1})
    assert sorted(path.name for path in tmp_path.glob("*.arrow")) == ["000000000001.arrow", "000000000002.arrow"]
    spool.delete_below(3, keep=set())
    again = Spool(tmp_path)
    assert (again.floor(), again.end()) == (3, 3)
    assert again.owners(rows(0)).tolist() == [-1] * 3


def test_unusable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Invalid, match="cannot be used"):
        Spool(tmp_path / "file")
