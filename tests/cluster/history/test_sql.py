"""SQL over a topic with DuckDB: part of it in the object store, part of it on bookies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sluice
from sluice.cluster.history import sql
from sluice.cluster.history.log_read import ATTEMPTS, LogRead
from sluice.cluster.launch import embedded
from sluice.storage.errors import Invalid, NotFound
from tests.cluster.helpers import eventually, unpacked
from tests.loadgen.offloaded import EACH, HOUR, OffloadedTopic, unreachable
from tests.s3server import S3Server, s3_credentials, s3_server  # noqa: F401 (fixtures)

COUNT = "SELECT count(*) AS rows, count(key) AS keyed FROM t"


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[OffloadedTopic]:
    with sluice.connect(embedded=True, data_dir=tmp_path) as client:
        yield OffloadedTopic(client, tmp_path)


def asked(topic: OffloadedTopic, text: str, connect: Any = None, **options: str) -> list[dict[str, Any]]:
    """The rows of an answer; the options are those of a read."""
    given = {"dataDir": str(topic.folder)} | options
    return sql.query(text, ["t"], lambda name: LogRead.from_options(given, name, connect or topic.connected))


def numbers(topic: OffloadedTopic, **options: Any) -> list[int]:
    """The messages of an answer, in its order."""
    return [int(row["payload"]) for row in asked(topic, "SELECT payload FROM t", **options)]


def test_both_sides_of_the_seam_are_one_table(topic: OffloadedTopic) -> None:
    topic.publish(4)
    by_brokers = asked(topic, "FROM t ORDER BY position", history="off")
    topic.offload()
    topic.publish(2)
    both = asked(topic, "FROM t ORDER BY position")
    assert both[: 4 * EACH] == by_brokers
    assert [int(row["payload"]) for row in both] == list(range(topic.next))
    assert both[7]["properties"] == {"n": "7"}
    assert len(asked(topic, "SELECT a.entry FROM t a JOIN t b USING (position)")) == topic.next, "each scan has all"


def test_the_store_alone_is_read_without_a_broker(topic: OffloadedTopic) -> None:
    topic.publish(3)
    topic.offload()
    assert numbers(topic, history="only", connect=unreachable) == list(range(3 * EACH))


def test_objects_in_s3_are_read_by_their_columns(
    s3_server: S3Server,  # noqa: F811
    s3_credentials: None,  # noqa: F811
    tmp_path: Path,
) -> None:
    objects = f"s3://{s3_server.make_bucket('queries')}/{tmp_path.name}"
    with embedded.connect(tmp_path, objects=objects, s3_endpoint_url=s3_server.endpoint) as client:
        topic = OffloadedTopic(client, tmp_path)
        topic.publish(2)
        topic.offload()
        options = {"objects": objects, "s3EndpointUrl": s3_server.endpoint, "history": "only"}
        rows = asked(
            topic, "SELECT t.entry AS entry, count(*) AS n FROM t GROUP BY ALL", connect=unreachable, **options
        )
    assert sorted((row["entry"], row["n"]) for row in rows) == [(entry, 2) for entry in range(EACH)]


def test_partitions_are_told_of_files_and_brokers(topic: OffloadedTopic) -> None:
    topic.again(partitions=3)
    topic.publish(8)
    topic.client.offload("t")
    eventually(lambda: not any(one["asked"] for one in topic.client.offload_status("t")), "what is closed has left")
    assert asked(topic, "SELECT count(*) AS n FROM t", history="only", connect=unreachable) != [{"n": 0}]
    count = "SELECT partition, count(*) AS n, min(entry) AS first FROM t GROUP BY partition ORDER BY partition"
    by_brokers = asked(topic, count, history="off")
    assert asked(topic, count) == by_brokers
    assert (len(by_brokers), sum(row["n"] for row in by_brokers)) == (3, topic.next)


def test_options_narrow_files_and_brokers_alike(topic: OffloadedTopic) -> None:
    topic.publish(3)
    topic.offload()
    topic.publish(2)
    narrow = {"startingTimestamp": str(HOUR + 7), "endingTimestamp": str(4 * HOUR + 9), "key": "k3"}
    wanted = [number for number in range(3, topic.next, 7) if EACH + 7 <= number < 4 * EACH + 9]
    assert sorted(numbers(topic, **narrow)) == wanted
    assert sorted(numbers(topic, history="off", **narrow)) == wanted


def test_query_with_a_limit_reads_no_further(topic: OffloadedTopic) -> None:
    topic.publish(6)
    read: list[Any] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(topic.client, name)

        def read(self, name: str, wanted: Any) -> Any:
            read.append(wanted)
            return topic.client.read(name, wanted)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    assert len(asked(topic, "SELECT key FROM t LIMIT 3", Counting)) == 3
    assert len(read) == 1


@pytest.mark.parametrize("times", [ATTEMPTS - 1, ATTEMPTS])
def test_a_query_is_asked_anew_when_objects_went_away(
    topic: OffloadedTopic, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr("sluice.actors.topic.background.erasing.FORGOTTEN_MS", 0)
    topic.publish(2)
    topic.offload()
    plan = sql._divided
    made: list[LogRead] = []

    def erasing(log: LogRead) -> Any:
        found = plan(log)
        if len(made) < times:
            topic.client.erase("t", f"k{len(made)}")
            eventually(
                lambda: not topic.client.erase_status("t")[0]["keys"], lambda: str(topic.client.erase_status("t"))
            )
        made.append(log)
        return found

    monkeypatch.setattr(sql, "_divided", erasing)
    if times < ATTEMPTS:
        gone = len([number for number in range(2 * EACH) if number % 7 < times])
        assert asked(topic, COUNT, history="only") == [{"rows": 2 * EACH, "keyed": 2 * EACH - gone}]
    else:
        with pytest.raises(Invalid, match="no answer: objects went away in 3 tries; ask again"):
            asked(topic, COUNT, history="only")
    assert len(made) == ATTEMPTS


def test_messages_trimmed_after_the_plan_are_said(topic: OffloadedTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic.publish(2)
    plan = sql._divided

    def trimming(log: LogRead) -> Any:
        found = plan(log)
        topic.client.delete_topic("t", force=True)
        return found

    monkeypatch.setattr(sql, "_divided", trimming)
    with pytest.raises(NotFound, match=r"trimmed|no topic|deleted"):
        asked(topic, COUNT)


def test_bytes_cast_to_text_are_utf8(topic: OffloadedTopic) -> None:
    topic.producer.send_batch(pa.table({"key": ["grün".encode(), b"\xff"], "payload": [b"", b""]})).result(60)
    rows = asked(topic, "SELECT cast(key AS string) AS key, entry::text AS entry, 'ü'::string AS word FROM t")
    assert rows == [{"key": "grün", "entry": "0", "word": "ü"}, {"key": "?", "entry": "1", "word": "ü"}]


def test_times_in_milliseconds_are_read_as_the_others(tmp_path: Path) -> None:
    folder = unpacked("history-in-milliseconds.tar.gz", tmp_path)
    options = {"dataDir": str(folder), "history": "only"}

    def answer(where: str) -> list[tuple[int, int, int | None]]:
        text = (
            "SELECT cast(cast(payload AS string) AS int) AS number, unix_millis(publish_time) AS published, "
            f"unix_millis(deliver_at) AS due FROM orders {where}"
        )
        rows = sql.query(text, ["orders"], lambda name: LogRead.from_options(options, name, unreachable))
        return [(row["number"], row["published"], row["due"]) for row in rows]

    found = answer("")
    assert len(found) == 37, "three are still on bookies"
    assert found == [(one, one * HOUR, one * HOUR + 1 if one % 10 == 7 else None) for one, *_ in found]
    hour = f"publish_time >= timestamp_millis({8 * HOUR}) AND publish_time < timestamp_millis({9 * HOUR})"
    assert answer(f"WHERE {hour}") == [(8, 8 * HOUR, None)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT nope FROM t", 'Referenced column "nope" not found'),
        ("SELECT 1 FROM T2", "there is no topic 'T2'; did you mean t?"),
        ("SELECT 1 FROM orders", "there is no topic 'orders'; there are t"),
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("SELECT 1; SELECT 2", "it is one SELECT"),
        ("", "it is one SELECT"),
        ("DROP TABLE t", "Only SELECT"),
        ("SELECT error(E'two\\nlines')", "two lines"),
    ],
)
def test_a_wrong_query_is_told_in_one_line(topic: OffloadedTopic, text: str, said: str) -> None:
    with pytest.raises(Invalid, match="the query has no answer: ") as caught:
        asked(topic, text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
