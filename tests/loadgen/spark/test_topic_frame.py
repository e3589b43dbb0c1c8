"""Which ledgers Spark reads itself, and where the data source goes on: no message comes twice, and none is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sluice
from sluice.cluster.history.log_read import LogRead, Present
from sluice.cluster.launch import embedded
from sluice.loadgen.spark.datasource import SluiceDataSource
from sluice.loadgen.spark.topic_frame import divided, is_gone, topic_frame
from sluice.storage.format.position import position
from tests.loadgen.offloaded import EACH, OffloadedTopic, numbers_in, read
from tests.s3server import S3Server, s3_credentials, s3_server  # noqa: F401 (fixtures)


class DataSourceAlone:
    """Stands for Spark where it can read by the data source and has no files; `load` gives the rows."""

    def __init__(self) -> None:
        self.read = self
        self._given: dict[str, str] = {}

    def format(self, name: str) -> DataSourceAlone:
        assert name == "sluice"
        return self

    def schema(self, words: str) -> DataSourceAlone:
        assert words == "`payload` binary"
        return self

    def options(self, **given: str) -> DataSourceAlone:
        self._given = given
        return self

    def load(self) -> Any:
        return read(SluiceDataSource(self._given).reader(None))


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[OffloadedTopic]:
    with sluice.connect(embedded=True, data_dir=tmp_path) as client:
        yield OffloadedTopic(client, tmp_path)


def present(topic: OffloadedTopic, **options: str) -> Present:
    """Return the content of the topic now."""
    log: LogRead = topic.reader(**options)._log
    return log.present()


def entries(pieces: list[Any]) -> dict[int, int]:
    """Messages by ledger."""
    found: dict[int, int] = {}
    for piece in pieces:
        found[piece.range.ledger] = found.get(piece.range.ledger, 0) + len(piece.range)
    return found


def test_spark_reads_up_to_the_first_ledger_on_bookies_alone(topic: OffloadedTopic) -> None:
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


def test_objects_in_s3_are_read_by_the_data_source(
    s3_server: S3Server,  # noqa: F811
    s3_credentials: None,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Spark has no files there, and every message is in the frame."""
    objects = f"s3://{s3_server.make_bucket('frames')}/{tmp_path.name}"
    with embedded.connect(tmp_path, objects=objects, s3_endpoint_url=s3_server.endpoint) as client:
        topic = OffloadedTopic(client, tmp_path)
        topic.publish(3)
        topic.offload()
        options = {"topic": "t", "dataDir": str(tmp_path), "objects": objects, "s3EndpointUrl": s3_server.endpoint}
        frame = topic_frame(DataSourceAlone(), {"payload": "binary"}, {**options, "history": "only"})
    assert numbers_in(frame) == list(range(3 * EACH))


def test_an_object_that_went_away_is_known_by_its_error() -> None:
    assert is_gone(RuntimeError("[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error"))
    assert not is_gone(RuntimeError("[TABLE_OR_VIEW_NOT_FOUND]"))
