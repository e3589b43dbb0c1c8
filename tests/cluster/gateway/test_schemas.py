"""Schemas: from clients, with JSON and Avro, and by the paths of Pulsar's tool; subscriptions that it makes."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, BytesSchema, Integer, JsonSchema, Record, String

from sluice.cluster.gateway.ports import service_url
from sluice.cluster.http.guard import PORT_FILE, TOKEN_FILE
from sluice.cluster.launch.embedded import WITH_ADMIN, running
from sluice.cluster.settings.options import ClusterOptions
from tests.cluster.gateway.clients import EARLIEST, PATIENCE

pytestmark = pytest.mark.timeout(240)


class Order(Record):  # type: ignore[misc]
    """A record with a schema."""

    article = String()
    count = Integer()


class Larger(Record):  # type: ignore[misc]
    """A later version of the schema."""

    article = String()
    count = Integer()
    colour = String()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster's data folder."""
    made = tmp_path_factory.mktemp("schemas")
    with running(ClusterOptions(data_dir=made, pulsar_port=0), boot=WITH_ADMIN):
        anything = ask(made, "PUT", "namespaces/public/default/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
        assert anything == (204, None)
        yield made


@pytest.fixture
def client(folder: Path) -> Iterator[pulsar.Client]:
    """A client of Pulsar's."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    one = pulsar.Client(service_url(folder, 0), logger=quiet, operation_timeout_seconds=60)
    yield one
    one.close()


def ask(folder: Path, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and answer of the admin interface."""
    connection = http.client.HTTPConnection("127.0.0.1", int((folder / PORT_FILE).read_text()), timeout=PATIENCE / 1000)
    token = {"Authorization": f"Bearer {(folder / TOKEN_FILE).read_text()}", "Content-Type": "application/json"}
    connection.request(method, f"/admin/v2/{path}", None if body is None else json.dumps(body), token)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if text else None


def test_the_admin_port_knows_who_is_connected(client: pulsar.Client, folder: Path) -> None:
    producer = client.create_producer("known", "p")
    _, stats = ask(folder, "GET", "persistent/public/default/known/stats")
    assert [each["producerName"] for each in stats["publishers"]] == ["p"]
    assert ask(folder, "DELETE", "persistent/public/default/known")[0] == 412
    producer.close()
    assert ask(folder, "DELETE", "persistent/public/default/known")[0] == 204


@pytest.mark.parametrize("kind", [JsonSchema, AvroSchema])
def test_records_come_as_they_were_sent(client: pulsar.Client, folder: Path, kind: Any) -> None:
    topic = f"records-{kind.__name__}"
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, schema=kind(Order))
    client.create_producer(topic, schema=kind(Order)).send(Order(article="pen", count=3))
    message = consumer.receive(PATIENCE)
    assert (message.value().article, message.value().count) == ("pen", 3)
    assert message.schema_version() == "\0" * 8
    client.create_producer(topic, schema=kind(Larger)).send(Larger(article="ink", count=1, colour="red"))
    message = consumer.receive(PATIENCE)
    assert (message.value().article, message.schema_version()) == ("ink", "\0" * 7 + "\1")
    _, known = ask(folder, "GET", f"schemas/public/default/{topic}/schemas")
    fields = [[one["name"] for one in json.loads(each["data"])["fields"]] for each in known["getSchemaResponses"]]
    assert [sorted(one) for one in fields] == [["article", "count"], ["article", "colour", "count"]]
    assert {each["type"] for each in known["getSchemaResponses"]} == {kind.__name__.removesuffix("Schema").upper()}


def test_schemas_by_the_paths_of_the_tool(client: pulsar.Client, folder: Path) -> None:
    """A client that then registers the same definition gets the same version."""
    client.create_producer("tool").close()
    base = "schemas/public/default/tool"
    assert ask(folder, "GET", f"{base}/schema")[0] == 404
    posted = {"type": "AVRO", "schema": AvroSchema(Order).schema_info().schema(), "properties": {"owner": "till"}}
    assert ask(folder, "POST", f"{base}/schema", posted) == (202, {"version": {"version": 0}})
    assert ask(folder, "POST", f"{base}/version", posted) == (200, {"version": 0})
    other = {"type": "STRING", "schema": "", "properties": {}}
    assert ask(folder, "POST", f"{base}/version", other)[0] == 404
    compatible = {"compatibility": True, "schemaCompatibilityStrategy": "ALWAYS_COMPATIBLE"}
    assert ask(folder, "POST", f"{base}/compatibility", other) == (200, compatible)
    client.create_producer("tool", schema=AvroSchema(Order)).close()
    status, newest = ask(folder, "GET", f"{base}/schema")
    assert (status, newest["version"], newest["properties"]) == (200, 0, {"owner": "till"})
    assert newest["data"] == posted["schema"]
    assert ask(folder, "POST", f"{base}/schema", other)[1] == {"version": {"version": 1}}
    assert ask(folder, "GET", f"{base}/schema/0") == (200, newest)
    wrongs: list[Any] = [{}, [], {"type": "WRONG", "schema": ""}, {"type": "AVRO"}, {"type": "AVRO", "schema": 5}]
    for wrong in wrongs:
        assert ask(folder, "POST", f"{base}/schema", wrong)[0] == 412
    assert ask(folder, "GET", f"{base}/schema/x")[0] == 412
    assert ask(folder, "GET", "schemas/public/default/nothing/schema")[0] == 404


def test_a_deleted_schema_is_found_no_more(client: pulsar.Client, folder: Path) -> None:
    """By no number, as with Pulsar; registered again it is a new version."""
    client.create_producer("deleted", schema=JsonSchema(Order)).close()
    base = "schemas/public/default/deleted"
    assert ask(folder, "DELETE", f"{base}/schema?force=false") == (200, {"version": 1})
    assert ask(folder, "GET", f"{base}/schema")[0] == 404
    assert ask(folder, "DELETE", f"{base}/schema")[0] == 404
    assert [ask(folder, "GET", f"{base}/schema/{number}")[0] for number in (0, 1)] == [404, 404]
    assert ask(folder, "GET", f"{base}/schemas")[1] == {"getSchemaResponses": []}
    client.create_producer("deleted", schema=JsonSchema(Order)).close()
    versions = ask(folder, "GET", f"{base}/schemas")[1]["getSchemaResponses"]
    assert [each["version"] for each in versions] == [2]
    assert ask(folder, "GET", f"{base}/schema/2")[1]["type"] == "JSON"
    assert ask(folder, "GET", f"{base}/schema/0")[0] == 404


def test_a_subscription_begins_where_it_is_told(client: pulsar.Client, folder: Path) -> None:
    producer = client.create_producer("begun", schema=BytesSchema())
    ids = [producer.send(b"%d" % number) for number in range(3)]
    path = "persistent/public/default/begun/subscription"
    latest = (1 << 63) - 1
    middle = {"ledgerId": ids[1].ledger_id(), "entryId": ids[1].entry_id(), "partitionIndex": -1}
    starts = {
        "first": {"ledgerId": -1, "entryId": -1, "partitionIndex": -1},
        "middle": middle,
        "last": {"ledgerId": latest, "entryId": latest, "partitionIndex": -1},
        "unsaid": None,
    }
    for name, start in starts.items():
        assert ask(folder, "PUT", f"{path}/{name}", start) == (204, None)
    assert ask(folder, "PUT", f"{path}/first", starts["first"])[0] == 409
    producer.send(b"3")
    firsts = {}
    for name in starts:
        consumer = client.subscribe("begun", name, consumer_type=pulsar.ConsumerType.KeyShared)
        firsts[name] = consumer.receive(PATIENCE).data()
        consumer.close()
    assert firsts == {"first": b"0", "middle": b"1", "last": b"3", "unsaid": b"3"}


@pytest.mark.parametrize("body", [5, [], {"ledgerId": "a", "entryId": 1}, {"ledgerId": -5, "entryId": 1}, {}])
def test_a_wrong_position_is_refused(client: pulsar.Client, folder: Path, body: Any) -> None:
    client.create_producer("wrong").close()
    assert ask(folder, "PUT", "persistent/public/default/wrong/subscription/s", body)[0] == 412
    assert ask(folder, "GET", "persistent/public/default/wrong/subscriptions") == (200, [])
    assert ask(folder, "PUT", "persistent/public/default/nothing/subscription/s", body)[0] == 404
