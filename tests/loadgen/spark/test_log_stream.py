"""A stream of the log: it begins in the object store, passes over to the brokers, and leaves nothing out in silence."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import sluice
from sluice.cluster.client.log_reader import StoredRange
from sluice.cluster.history.log_read import HistoryTask
from sluice.loadgen.base.broker import ClusterConnect
from sluice.loadgen.spark.log_stream import LogStreamReader
from sluice.storage.errors import NotFound
from sluice.storage.format.hashing import masked_hash
from tests.loadgen.offloaded import EACH, HOUR, OffloadedTopic, given_by, numbers_in, unreachable


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[OffloadedTopic]:
    with sluice.connect(embedded=True, data_dir=tmp_path / "data") as client:
        yield OffloadedTopic(client, tmp_path / "data")


def step(stream: LogStreamReader, start: dict[str, str], most: int) -> tuple[dict[str, str], list[int], set[type]]:
    """One micro-batch: where it ends, its messages, and the kinds of its tasks."""
    end = stream.latestOffset(start, ReadMaxRows(most))
    if end == start:
        return end, [], set()
    tasks = stream.partitions(start, end)
    rows = given_by(stream, tasks)
    return end, numbers_in(rows), {type(part) for task in tasks for part in task.value}


def test_stream_begins_in_the_store_and_goes_on_at_brokers(topic: OffloadedTopic) -> None:
    topic.publish(4)
    topic.offload()
    topic.publish(2)
    stream = topic.stream(maxMessagesPerTrigger="70")
    assert stream.getDefaultReadLimit() == ReadMaxRows(70)
    at, got, kinds = stream.initialOffset(), [], []
    while True:
        begun = at
        at, numbers, kind = step(stream, begun, 70)
        if at == begun:
            break
        assert len(numbers) <= 70
        got += numbers
        kinds.append(kind)
        if len(kinds) == 4:  # in the middle, what it has not read yet moves
            topic.offload()
            topic.publish(1)
    assert got == list(range(topic.next))
    assert kinds[0] == {HistoryTask}
    assert StoredRange in kinds[-1]
    topic.publish(1)
    end, numbers, _ = step(stream, at, 10_000)
    assert numbers == list(range(topic.next - EACH, topic.next))
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    stream.stop()


def test_workers_get_no_connection_of_the_planner(topic: OffloadedTopic) -> None:
    topic.publish(2)
    topic.offload()
    stream = topic.stream(history="only")
    start = stream.initialOffset()
    stream._client, stream._log = object(), replace(stream._log, client=ClusterConnect(None))
    there = pickle.loads(pickle.dumps(stream))
    assert there._client is None
    tasks = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
    assert len(numbers_in(given_by(there, pickle.loads(pickle.dumps(tasks))))) >= EACH


def test_a_micro_batch_is_the_same_after_its_messages_moved(topic: OffloadedTopic) -> None:
    """Spark plans it again from its checkpoint, in another process."""
    topic.publish(3)
    first = topic.stream()
    start = first.initialOffset()
    end, numbers, _ = step(first, start, 110)
    topic.offload()
    again = topic.stream()
    tasks = again.partitions(start, end)
    assert numbers_in(given_by(again, tasks)) == numbers == list(range(110))
    assert HistoryTask in {type(part) for task in tasks for part in task.value}


def test_micro_batch_reads_each_partition_in_one_task(topic: OffloadedTopic) -> None:
    """A sink publishes tasks side by side, so a key whose messages were in two of them would lose its order."""
    topic.publish(2)
    topic.offload()
    topic.publish(2)
    stream = topic.stream()
    start = stream.initialOffset()
    tasks = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
    numbers = [numbers_in(given_by(stream, [task])) for task in tasks]
    assert [len(task.value) > 1 for task in tasks] == [True] * len(start)
    assert all(found == sorted(found) for found in numbers)
    assert sorted(number for found in numbers for number in found) == list(range(topic.next))


def test_the_store_alone_is_followed_without_brokers(topic: OffloadedTopic) -> None:
    topic.publish(2)
    topic.offload()
    stream = topic.stream(history="only", connect=unreachable)
    at, numbers, _ = step(stream, stream.initialOffset(), 1_000)
    seen = len(numbers)
    assert seen >= EACH
    topic.publish(2)
    assert stream.latestOffset(at, ReadAllAvailable()) == at
    topic.offload()
    _, more, _ = step(stream, at, 1_000)
    assert numbers + more == list(range(seen + len(more)))
    assert len(more) >= EACH


def test_stream_begins_at_its_starting_offset_or_time(topic: OffloadedTopic) -> None:
    topic.publish(3)
    topic.offload()
    latest = topic.stream(startingOffsets="latest")
    at = latest.initialOffset()
    topic.publish(1)
    assert step(latest, at, 1_000)[1] == list(range(3 * EACH, 4 * EACH))
    timed = topic.stream(startingTimestamp=str(HOUR))
    assert step(timed, timed.initialOffset(), 1_000)[1] == list(range(EACH, 4 * EACH))


def test_available_now_query_ends_at_the_current_end(topic: OffloadedTopic) -> None:
    topic.publish(2)
    stream = topic.stream()
    stream.prepareForTriggerAvailableNow()
    topic.publish(2)
    at, numbers, _ = step(stream, stream.initialOffset(), 1_000)
    assert numbers == list(range(2 * EACH))
    assert stream.latestOffset(at, ReadMaxRows(1_000)) == at


def test_trimmed_messages_end_a_stream_that_has_not_read_them(topic: OffloadedTopic) -> None:
    topic.publish(2)
    stream = topic.stream()
    start = stream.initialOffset()
    half, _, _ = step(stream, start, 30)
    rest = stream.latestOffset(half, ReadAllAvailable())
    done = {"0": rest["0"]}
    consumer = topic.client.subscribe("t", "s", initial_position="earliest")
    for batch in iter(lambda: consumer.receive_batch(timeout_ms=2_000), None):
        consumer.acknowledge(batch)
    consumer.wait_acknowledged(30_000)
    topic.trimmed(2 * EACH)
    with pytest.raises(NotFound, match="were trimmed before the stream read them"):
        stream.partitions(half, rest)
    careless = topic.stream(failOnDataLoss="false")
    assert numbers_in(given_by(careless, careless.partitions(half, rest))) == []
    topic.publish(1)
    end, numbers, _ = step(stream, done, 1_000)
    assert numbers == list(range(2 * EACH, 3 * EACH)), "who has read everything has lost nothing"
    assert end != done


@pytest.mark.parametrize("history", ["auto", "off"])
def test_a_topic_made_again_ends_a_stream_of_the_earlier_one(topic: OffloadedTopic, history: str) -> None:
    topic.publish(2)
    stream = topic.stream(history=history)
    half, _, _ = step(stream, stream.initialOffset(), 30)
    topic.again()
    topic.publish(1)
    end = stream.latestOffset(half, ReadAllAvailable())
    with pytest.raises(NotFound, match="was deleted and made again" if history == "auto" else "were trimmed before"):
        stream.partitions(half, end)
    careless = topic.stream(history=history, failOnDataLoss="false")
    rows = numbers_in(given_by(careless, careless.partitions(half, end)))
    assert rows == list(range(2 * EACH, 3 * EACH))


@pytest.mark.parametrize("history", ["auto", "off"])
def test_fewer_partitions_end_a_stream_of_the_earlier_topic(topic: OffloadedTopic, history: str) -> None:
    topic.again(partitions=3)
    topic.publish(1)
    stream = topic.stream(history=history)
    start = stream.initialOffset()
    assert sorted(start) == ["0", "1", "2"]
    topic.again(partitions=1)
    topic.publish(1)
    with pytest.raises(NotFound, match="deleted and made again"):
        stream.partitions({"2": start["2"]}, stream.latestOffset(start, ReadAllAvailable()))


@pytest.mark.parametrize("history", ["auto", "off"])
def test_an_empty_partition_ends_a_stream_of_the_earlier_topic(topic: OffloadedTopic, history: str) -> None:
    """The messages of the other partitions are of the new topic, and the rest of the earlier one is lost."""
    home = {masked_hash(b"k%d" % number) % 2: f"k{number}" for number in range(20)}
    topic.again(partitions=2)
    topic.producer.send(b"0", partition_key=home[0])
    stream = topic.stream(history=history)
    done, _, _ = step(stream, stream.initialOffset(), 1_000)
    assert list(done) == ["0"]
    topic.again(partitions=2)
    assert stream.latestOffset(done, ReadAllAvailable()) == done
    topic.producer.send(b"1", partition_key=home[1])
    with pytest.raises(NotFound, match="deleted and made again"):
        stream.partitions(done, stream.latestOffset(done, ReadAllAvailable()))
    careless = topic.stream(history=history, failOnDataLoss="false")
    assert step(careless, done, 1_000)[1] == [1]


@pytest.mark.parametrize("history", ["auto", "off"])
def test_a_partition_whose_messages_were_all_read_is_no_loss(topic: OffloadedTopic, history: str) -> None:
    """Nothing of it is kept, and it tells of its last message all the same."""
    topic.publish(1)
    stream = topic.stream(history=history)
    done, _, _ = step(stream, stream.initialOffset(), 1_000)
    with topic.client.subscribe("t", "s", initial_position="earliest") as consumer:
        for batch in iter(lambda: consumer.receive_batch(timeout_ms=500), None):
            consumer.acknowledge(batch)
        consumer.wait_acknowledged(30_000)
    topic.trimmed(EACH)
    assert stream.partitions(done, stream.latestOffset(done, ReadAllAvailable())) == []


@pytest.mark.parametrize("history", ["auto", "off"])
def test_more_partitions_end_a_stream_of_the_earlier_topic(topic: OffloadedTopic, history: str) -> None:
    """A topic that grew is no other one: its stream goes on with the new partitions."""
    topic.again(partitions=2)
    topic.publish(1)
    stream = topic.stream(history=history)
    grown, numbers, _ = step(stream, stream.initialOffset(), 1_000)
    topic.client.add_partitions("t", 3)
    topic.producer = topic.client.create_producer("t", "later")
    topic.publish(2)
    done, more, _ = step(stream, grown, 1_000)
    assert sorted(numbers + more) == list(range(3 * EACH))
    assert sorted(done) == ["0", "1", "2"]
    topic.again(partitions=5)
    topic.publish(1)
    with pytest.raises(NotFound, match="was deleted and made again" if history == "auto" else "were trimmed before"):
        stream.partitions(done, stream.latestOffset(done, ReadAllAvailable()))


def test_an_emptied_ledger_of_a_topic_made_again_is_no_loss(topic: OffloadedTopic) -> None:
    """The first epoch alone does not say that the offset is of the earlier topic."""
    topic.again()
    topic.publish(1)
    stream = topic.stream()
    done = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    with topic.client.subscribe("t", "s", initial_position="earliest") as consumer:
        for batch in iter(lambda: consumer.receive_batch(timeout_ms=500), None):
            consumer.acknowledge(batch)
        consumer.wait_acknowledged(30_000)
    topic.publish(1)
    topic.trimmed(EACH)
    assert step(stream, done, 1_000)[1] == list(range(EACH, 2 * EACH))
