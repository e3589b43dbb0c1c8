"""Typed values of Sluice's client and Pulsar's Java client, in JSON and in Avro, either way."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

import sluice
from sluice.storage.errors import Invalid
from tests.cluster.gateway.java_client import play_java

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SOURCE = Path(__file__).parent / "java" / "TypedValues.java"
PATIENCE_MS = 60_000
Form = Literal["json", "avro"]
FORMS: tuple[Form, ...] = ("json", "avro")
SAID = {
    "reads": "k pen 3",
    "writes": "ok",
    "ours-added": "ok",
    "ours-removed": "refused",
    "theirs-added": "ok",
    "theirs-removed": "refused",
}
"""Outcomes of the Java client's steps."""


@dataclasses.dataclass
class Order:
    """An order; a text of Java's may be null."""

    count: int
    article: str | None = None


@dataclasses.dataclass
class Larger:
    """A later version: a field more."""

    count: int
    article: str | None = None
    note: str | None = None


@dataclasses.dataclass
class Smaller:
    """A version without a field that has no default."""

    article: str | None = None


@pytest.fixture(scope="module")
def server() -> Iterator[sluice.Client]:
    """A broker with one order of ours in each form."""
    with sluice.connect(embedded=True, pulsar_port=0) as client:
        for form in FORMS:
            client.create_topic(f"ours-{form}")
            client.create_topic(f"theirs-{form}")
            producer = client.create_producer(f"ours-{form}", schema=Order, schema_type=form)
            producer.send(Order(3, "pen"), partition_key="k")
        yield client


@pytest.fixture(scope="module")
def played(server: sluice.Client, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The steps of the Java client, and what came of each."""
    return play_java(SOURCE, tmp_path_factory.mktemp("java"), server.pulsar_service_url)


@pytest.mark.parametrize("step", SAID)
@pytest.mark.parametrize("form", FORMS)
def test_a_step_of_the_java_client(played: list[str], form: Form, step: str) -> None:
    assert f"{form} {step}: {SAID[step]}" in played


@pytest.mark.parametrize("form", FORMS)
def test_values_of_the_java_client_are_read_with_either_type(
    server: sluice.Client, played: list[str], form: Form
) -> None:
    topic = f"theirs-{form}"
    plain = server.subscribe(topic, "plain", initial_position="earliest", schema=Order, schema_type=form)
    assert [plain.receive(PATIENCE_MS).value() for _ in range(2)] == [Order(5, "tea"), Order(2, "ink")]
    larger = server.subscribe(topic, "larger", initial_position="earliest", schema=Larger, schema_type=form)
    assert [larger.receive(PATIENCE_MS).value() for _ in range(2)] == [Larger(5, "tea"), Larger(2, "ink", "blue")]


@pytest.mark.parametrize("topic", ["ours", "theirs"])
@pytest.mark.parametrize("form", FORMS)
def test_a_field_may_be_added_and_not_removed(server: sluice.Client, played: list[str], topic: str, form: Form) -> None:
    server.create_producer(f"{topic}-{form}", schema=Larger, schema_type=form).close()
    with pytest.raises(Invalid, match="does not go with that of topic"):
        server.create_producer(f"{topic}-{form}", schema=Smaller, schema_type=form)
