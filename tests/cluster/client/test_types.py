"""Type checkers find mistakes in a user's program, and the call itself finds the rest."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

import sluice
from sluice.actors.messages.settings import CHOICES, SubscriptionSettings, TopicSettings
from sluice.actors.producer.batches import HASHING_SCHEMES
from sluice.cluster.client.client import Client
from sluice.cluster.client.options import ConsumerOptions, producer_options
from sluice.cluster.client.typed_settings import (
    OwnConsumerSettings,
    ProducerSettings,
    SubscriptionOptions,
    TopicOptions,
)
from sluice.cluster.workers.options import WorkersOptions
from sluice.cluster.workers.typed_options import WorkersSettings
from sluice.storage.errors import Invalid
from tests.cluster.helpers import PATIENCE_MS, ROOT

MISTAKES = Path(__file__).with_name("mistakes.txt")


@pytest.mark.timeout(600)
def test_mypy_finds_every_mistake(tmp_path: Path) -> None:
    lines = MISTAKES.read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# mistake")}
    program = tmp_path / "program.py"
    program.write_text("\n".join(lines))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), str(program)]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False).stdout
    found = {int(number) for number in re.findall(r"program\.py:(\d+): error", said)}
    assert found == wrong, said
    assert len(wrong) == 40


MISTAKEN = [line.split("  # ")[0].strip() for line in MISTAKES.read_text().splitlines() if line.endswith("# mistake")]


@pytest.fixture(scope="module")
def names() -> Iterator[dict[str, Any]]:
    """The names of the program with mistakes, with a message for each line that receives one."""
    with sluice.connect(embedded=True) as client:
        client.create_topic("orders")
        with client.create_producer("orders") as producer:
            for number in range(len(MISTAKEN)):
                producer.send(b"%d" % number)
            found: dict[str, Any] = {}
            program = MISTAKES.read_text().split("def main")[0]
            exec(program, found)
            with client.subscribe("orders", "mistaken", initial_position="earliest") as consumer:
                yield {**found, "client": client, "producer": producer, "consumer": consumer}


@pytest.mark.parametrize("line", MISTAKEN)
def test_a_mistake_is_one_line_at_run_time(names: dict[str, Any], line: str) -> None:
    with pytest.raises((Invalid, TypeError, AttributeError)) as refused:
        exec(line, names)
    assert len(str(refused.value).splitlines()) == 1


def words(kind: Any) -> tuple[Any, ...]:
    """The words of a choice, without None; none of what is no choice."""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return tuple(word for part in parts if get_origin(part) is Literal for word in get_args(part))


def plain(kind: Any) -> set[Any]:
    """The types of a setting, words as text."""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return {str if get_origin(part) is Literal else get_origin(part) or part for part in parts}


@pytest.mark.parametrize(
    ("typed", "table"),
    [(TopicOptions, TopicSettings), (SubscriptionOptions, SubscriptionSettings), (WorkersSettings, WorkersOptions)],
)
def test_typed_settings_are_those_of_the_table(typed: type, table: type) -> None:
    fields = {field.name: field for field in msgspec.structs.fields(table)}
    hints = get_type_hints(typed)
    assert set(hints) == set(fields) - {"partitions"}
    assert {name: plain(hints[name]) for name in hints} == {name: plain(get_type_hints(table)[name]) for name in hints}
    for name, choices in CHOICES.items():
        if table is SubscriptionSettings:
            assert words(hints[name]) == choices


@pytest.mark.parametrize(
    ("typed", "check"), [(ProducerSettings, producer_options), (OwnConsumerSettings, ConsumerOptions)]
)
def test_typed_settings_are_those_of_the_call(typed: type, check: Callable[..., object]) -> None:
    named = {one.name for one in inspect.signature(check).parameters.values() if one.kind is one.KEYWORD_ONLY}
    assert set(get_type_hints(typed)) == named - {"topic", "subscription", "by_pattern", "shared"}
    assert set(words(get_type_hints(ProducerSettings)["hashing_scheme"])) == set(HASHING_SCHEMES)


ODD: list[tuple[str, Mapping[str, Any]]] = [
    ("subscribe", {"initial_position": "earliesst"}),
    ("subscribe", {"lease": 10}),
    ("subscribe", {"receiver_queue_size": 0}),
    ("subscribe", {"lease_ms": 1}),
    ("subscribe", {"grace_ms": 10}),
    ("subscribe", {"on_ranges": 3}),
    ("create_producer", {"compression": "gzip"}),
    ("create_producer", {"hashing_scheme": "murmur3"}),
    ("create_producer", {"access_mode": "alone"}),
    ("create_producer", {"batching_max_message": 1}),
    ("create_producer", {"batching_max_messages": 0}),
    ("create_producer", {"initial_sequence_id": -1}),
]


@pytest.mark.parametrize(("call", "settings"), ODD)
def test_a_wrong_setting_is_one_line_at_run_time(client: Client, call: str, settings: Mapping[str, Any]) -> None:
    names = ("orders", "s") if call == "subscribe" else ("orders",)
    with pytest.raises(Invalid) as refused:
        getattr(client, call)(*names, **settings)
    assert "\n" not in str(refused.value)
    assert next(iter(settings)) in str(refused.value)


def test_every_public_name_can_be_imported() -> None:
    assert [name for name in sluice.__all__ if getattr(sluice, name, None) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'Mesage'"):
        _ = sluice.Mesage  # type: ignore[attr-defined]


def test_inner_names_are_not_shown(client: Client) -> None:
    consumer = client.subscribe("orders", "s", initial_position="earliest")
    producer = client.create_producer("orders")
    inner = {"visit", "wake", "taking_back", "received", "abandon", "owners", "batch", "row", "inner"}
    sent = producer.send(b"paid", partition_key="k")
    message = consumer.receive(PATIENCE_MS)
    for shown in (client, consumer, producer, message):
        assert inner.isdisjoint(dir(shown))
    assert {"receive", "acknowledge"} <= set(dir(consumer))
    name = consumer.consumer_name()
    assert (repr(producer), repr(consumer)) == (
        f"Producer(orders, {producer.producer_name()})",
        f"Consumer(orders, s, {name})",
    )
    assert repr(message) == f"Message(orders {sent}, key=b'k', 4 bytes)"
    assert repr(message.batch) == f"Batch(orders, 1 messages from {sent} on)"


def test_message_ids_have_ends() -> None:
    some = sluice.MessageId.parse("7:3:1")
    assert sluice.MessageId.earliest < some < sluice.MessageId.latest
    assert [str(one) for one in (sluice.MessageId.earliest, some, sluice.MessageId.latest)] == [
        "earliest",
        "7:3:1",
        "latest",
    ]


@pytest.mark.parametrize("kind", ["Client", "Producer", "Consumer", "Reader", "Message", "MessageId"])
def test_each_method_of_pulsars_client_is_here_or_on_the_page(kind: str) -> None:
    theirs = {name for name in dir(getattr(pytest.importorskip("pulsar"), kind)) if not name.startswith("_")}
    page = (ROOT / "docs" / "python-client.md").read_text(encoding="utf-8")
    told = set(re.findall(rf"^\| `{kind}\.(\w+)` \|", page, re.MULTILINE))
    blocking = set(dir(getattr(sluice, kind)))
    tasks = set(dir(getattr(sluice, f"Async{kind}", getattr(sluice, kind))))
    assert theirs - told - blocking == set()
    assert theirs - told - tasks == set()
    assert told & blocking & theirs == set()
