"""Which ledgers Spark reads itself, and where the data source goes on: no message comes twice, and none is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cluster
from loadgen.log_read import LogRead, Present
from loadgen.topic_frame import divided, is_gone
from storage.position import position
from tests.loadgen.offloaded import EACH, OffloadedTopic


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[OffloadedTopic]:
    with cluster.connect(embedded=True, data_dir=tmp_path) as client:
        yield OffloadedTopic(client, tmp_path)


def present(topic: OffloadedTopic, **options: str) -> Present:
    """What there is."""
    log: LogRead = topic.reader(**options)._log
    return log.present()


def entries(pieces: list[Any]) -> dict[int, int]:
    """Messages by ledger."""
    found: dict[int, int] = {}
    for piece in pieces:
        found[piece.range.ledger] = found.get(piece.range.ledger, 0) + len(piece.range)
    return found


def test_what_is_on_bookies_alone_ends_what_spark_reads_itself(topic: OffloadedTopic) -> None:
    topic.publish(3)
    assert divided(present(topic), only=False) == ([], {0: position(1, 0)})
    topic.offload()
    pieces, rest = divided(present(topic), only=False)
    assert (entries(pieces), rest) == ({1: EACH, 2: EACH, 3: EACH}, {0: position(3, EACH)})
    topic.publish(2)
    pieces, rest = divided(present(topic), only=False)
    assert (entries(pieces), rest) == ({1: EACH, 2: EACH, 3: EACH}, {0: position(4, 0)})
    pieces, _ = divided(present(topic, history="only"), only=True)
    assert entries(pieces) == {1: EACH, 2: EACH, 3: EACH}
    assert divided(present(topic, history="off"), only=False) == ([], {})


def test_an_object_that_went_away_is_known_by_its_error() -> None:
    assert is_gone(RuntimeError("[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error"))
    assert not is_gone(RuntimeError("[TABLE_OR_VIEW_NOT_FOUND]"))
