"""A program's mistakes on a real cluster: they are told to the program, and end neither its client nor its waits."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import re
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray.cloudpickle

import sluice
from sluice.cluster.client.client import Client
from sluice.cluster.client.message import MessageId
from sluice.cluster.client.receiver_queue import NothingArrived
from sluice.storage.errors import Invalid, SluiceError, Unavailable
from tests.cluster.helpers import PATIENCE_MS, PATIENCE_S, batch

LATE_S = 20.0


class Told:
    """The error of a callback on the client's thread. A callback that waits for ever is not waited for."""

    def __init__(self, client: Client, ask: Callable[[], object]) -> None:
        self._ask, self._done = ask, threading.Event()
        self.error: BaseException | None = None
        client.create_producer("orders").send_async(b"x", self._callback)

    def _callback(self, *_: object) -> None:
        try:
            self._ask()
        except BaseException as error:
            self.error = error
        self._done.set()

    def words(self) -> str:
        assert self._done.wait(LATE_S), "the callback waits for ever"
        return str(self.error)


def test_a_callback_that_would_wait_for_itself_is_told_so(client: Client) -> None:
    """Nothing is half closed by it either: the same calls do in a thread of the program's own."""
    client.create_topic("quiet", 1)
    consumer, producer = client.subscribe("quiet", "billing"), client.create_producer("quiet")
    waits: list[Callable[[], object]] = [
        consumer.receive,
        consumer.receive_batch,
        lambda: consumer.receive_several(3),
        lambda: consumer.receive(PATIENCE_MS),
        lambda: producer.send_async(b"y", deliver_after=timedelta(days=1)).result(),
        consumer.close,
        producer.close,
        client.close,
    ]
    for wait in waits:
        assert "do it in a thread of your own" in Told(client, wait).words()
    assert "no message within 0 ms" in Told(client, lambda: consumer.receive(0)).words()
    assert "not confirmed" in Told(client, lambda: producer.send_async(b"y").message_id()).words()
    assert consumer.receive(PATIENCE_MS).data() == b"y"
    producer.send(b"z")
    assert consumer.receive(PATIENCE_MS).data() == b"z"


def test_ranges_that_a_program_fails_on_end_no_polls(client: Client) -> None:
    """The partition was polled no more: nothing came to this consumer, and to no other one."""
    told = threading.Event()

    def on_ranges(*_: object) -> None:
        told.set()
        raise SystemExit(3)

    with client.subscribe("orders", "billing", on_ranges=on_ranges) as consumer:
        assert told.wait(LATE_S)
        client.create_producer("orders").send(b"x")
        assert consumer.receive(round(LATE_S * 1000)).data() == b"x"


def test_rows_as_a_list_are_acknowledged(client: Client) -> None:
    with client.subscribe("orders", "billing", initial_position="earliest") as consumer:
        client.create_producer("orders").send_batch(batch(1, 4)).result(PATIENCE_S)
        received = consumer.receive_batch(PATIENCE_MS)
        assert received is not None
        odd: list[Any] = [[7], [0.5], np.array([True, False, True, False])]
        for rows in odd:
            with pytest.raises(Invalid, match="0 to 3"):
                consumer.acknowledge(received, rows=rows)
        consumer.acknowledge(received, rows=[0, 1, 3], ack_receipt=True)
        assert consumer.held() == 1
        client.create_producer("orders").send(b"next")
        assert consumer.receive(PATIENCE_MS).data() == b"next"


def test_wait_for_a_lost_broker_ends_with_the_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing the client ended the question, and a thread that waited for its answer waited for ever."""
    asked, answered, told = threading.Event(), threading.Event(), list[Any]()

    def ask(*_: object) -> None:
        asked.set()

    def wait() -> None:
        try:
            sent.result()
        except SluiceError as error:
            told.append(error)
            answered.set()

    def heard(error: SluiceError | None, at: MessageId | None) -> None:
        told.append(error)

    with sluice.connect(embedded=True, data_dir=tmp_path / "data") as client:
        client.create_topic("orders", 1)
        producer = client.create_producer("orders")
        monkeypatch.setattr("sluice.actors.producer.producer.ask", ask)
        sent = producer.send_async(b"x", heard)
        assert asked.wait(PATIENCE_S)
        threading.Thread(target=wait, daemon=True).start()
        with contextlib.suppress(Unavailable):
            producer.close(timeout_s=0.01)
        assert not told
    assert answered.wait(LATE_S)
    assert len(told) == 2
    assert all(isinstance(one, Unavailable) and "its outcome is unknown" in str(one) for one in told)


@pytest.mark.parametrize("value", [0, -1, 1.5, 1e3, float("nan"), True, None, "5"])
def test_a_queue_of_odd_size_is_refused(client: Client, value: Any) -> None:
    """Such a consumer was opened, and received nothing: each of its polls was refused."""
    with pytest.raises(Invalid, match="receiver_queue_size is a whole number, 1 to 2147483647, not"):
        client.subscribe("orders", "billing", receiver_queue_size=value)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "gzip"},
        {"compression": "none"},
        {"initial_sequence_id": 1.5},
        {"initial_sequence_id": "1"},
        {"initial_sequence_id": True},
        {"batching_max_messages": None},
    ],
)
def test_a_producer_that_could_send_nothing_is_refused(client: Client, options: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=next(iter(options))):
        client.create_producer("orders", **options)


@pytest.mark.parametrize("delay", [1.5, "5", -1, float("nan"), None, True])
def test_a_redelivery_delay_is_known_when_subscribing(client: Client, delay: Any) -> None:
    with pytest.raises(Invalid, match="negative_ack_redelivery_delay_ms is a whole number"):
        client.subscribe("orders", "billing", negative_ack_redelivery_delay_ms=delay)


def test_an_argument_that_a_verb_does_not_have_is_refused(client: Client) -> None:
    """An unknown argument was ignored, so a call that it should have limited reached everything."""
    with client.subscribe("orders", "billing", initial_position="earliest"):
        client.create_producer("orders").send_batch(batch(1, 4)).result(PATIENCE_S)
    with pytest.raises(Invalid, match="unknown argument of clear_backlog 'dry_run'"):
        client.admin("orders", "billing", "clear_backlog", dry_run=True)
    with pytest.raises(Invalid, match="unknown argument of seek 'timestamp'; there are message_id, time"):
        client.admin("orders", "billing", "seek", timestamp=1)
    (row,) = client.stats("orders", "billing")
    assert row["msgBacklog"] == 4


@pytest.mark.parametrize("dumps", [pickle.dumps, ray.cloudpickle.dumps])
def test_object_bound_to_its_process_names_the_way_out(client: Client, dumps: Callable[[object], bytes]) -> None:
    """Not what of it has no pickle: that is what a task of Ray was refused with."""
    with client.subscribe("orders", "billing") as consumer, client.create_producer("orders") as producer:
        at = producer.send(b"x")
        message = consumer.receive(PATIENCE_MS)
        for one, words in (
            (client, "a Client stays in the process that it is of; another one calls sluice.connect"),
            (producer, "a Producer stays in the process that it is of; another one connects"),
            (consumer, "a Consumer stays in the process that it is of; another one connects"),
            (message, "a Message stays in the process that it is of; send what it carries"),
            (message.batch, "a Batch stays in the process that it is of; send what it carries"),
        ):
            with pytest.raises(TypeError, match=words):
                dumps(one)
        assert pickle.loads(dumps(message.message_id())) == at


def test_a_wait_for_nothing_is_a_time_out_of_its_own(client: Client) -> None:
    """A broker that cannot be reached is another matter, and is no time-out."""
    assert not issubclass(sluice.Timeout, sluice.Unavailable)
    with client.subscribe("orders", "billing") as consumer:
        for error in (sluice.Timeout, NothingArrived):
            with pytest.raises(error, match="no message within 1 ms"):
                consumer.receive(1)
        with pytest.raises(sluice.Timeout, match="no message within 1 ms"):
            asyncio.run(consumer.receive_async(1))


ODD_CALLS: dict[str, Callable[[Any], object]] = {
    "a topic name is text, not list": lambda client: client.create_producer(["orders"]),
    "a topic name is text, not int": lambda client: client.subscribe(["orders", 5], "billing"),
    "the list of topics is empty": lambda client: client.subscribe([], "billing"),
    "a pattern of topics is made of text, not of bytes": lambda client: client.subscribe(re.compile(b"a"), "billing"),
    "a topic name is text, not NoneType": lambda client: client.create_topic(None),
    "a subscription name is text, not int": lambda client: client.subscribe("orders", 5),
    "a producer name is text, not int": lambda client: client.create_producer("orders", 5),
    "consumer_name is text, not 5": lambda client: client.subscribe("orders", "billing", consumer_name=5),
    "timeout_ms is a number, not nan": lambda client: client.subscribe("orders", "billing", timeout_ms=float("nan")),
    "timeout_ms is a number, not '5'": lambda client: client.subscribe("orders", "billing", timeout_ms="5"),
    "on_ranges is a function, not 5": lambda client: client.subscribe("orders", "billing", on_ranges=5),
    "a batch is a pyarrow.RecordBatch or Table, not str": lambda client: client.create_producer("orders").send_batch(
        "x"
    ),
    "callback is a function, not 5": lambda client: client.create_producer("orders").send_async(b"x", 5),
    "timeout_s is a number, not nan": lambda client: client.create_producer("orders").flush(float("nan")),
    "timeout_s is a number, not '1'": lambda client: client.create_producer("orders").send_async(b"x").result("1"),
}


@pytest.mark.parametrize("words", ODD_CALLS)
def test_an_argument_of_another_kind_is_refused(client: Client, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        ODD_CALLS[words](client)


def test_a_topic_with_other_settings_names_them(client: Client) -> None:
    client.create_topic("named", 2)
    with pytest.raises(sluice.Conflict, match=r"topic named exists with other settings: partitions is 2, not 3$"):
        client.create_topic("named", 3)
