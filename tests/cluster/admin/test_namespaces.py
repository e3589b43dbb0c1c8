"""Tenants and namespaces besides the first, and the policies that a namespace has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from pulsar.schema import AvroSchema, JsonSchema, Record, String, StringSchema
from pulsar.schema import Integer as Number

from sluice.actors.policies.permissions import Permissions
from sluice.actors.policies.retention import Lifetimes
from sluice.cluster.gateway.ports import WEB, port_of, service_url
from sluice.cluster.launch.embedded import running
from sluice.cluster.settings.options import ClusterOptions
from sluice.storage.errors import Unavailable
from tests.cluster.admin.asking import Tool
from tests.cluster.gateway.clients import EARLIEST, nothing_comes, received

pytestmark = pytest.mark.timeout(240)

FIRST = "/admin/v2/namespaces/public/default"
STRATEGY = "schemaCompatibilityStrategy"


class Order(Record):  # type: ignore[misc]
    article = String()


class Counted(Record):  # type: ignore[misc]
    article = Number()


class Larger(Record):  # type: ignore[misc]
    article = String()
    colour = String(required=True)


@pytest.fixture
def strategy(tool: Tool) -> Iterator[None]:
    """Whatever a test sets holds for it alone."""
    yield
    assert tool.ask("DELETE", f"{FIRST}/{STRATEGY}").status == 204


def test_a_namespace_that_is_half_removed_can_be_removed_again(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next one of its name would have its policies, and its permissions."""
    half = "/admin/v2/namespaces/half/one"

    async def away(self: object, target: str) -> None:
        raise Unavailable("the store is away")

    assert tool.ask("PUT", "/admin/v2/tenants/half").status == 204
    assert tool.ask("PUT", half).status == 204
    assert tool.ask("POST", f"{half}/messageTTL", 60).status == 204
    for kept, forget in ((Lifetimes, "remove"), (Permissions, "forget_space")):
        with monkeypatch.context() as patched:
            patched.setattr(kept, forget, away)
            assert tool.ask("DELETE", half).status == 503
        assert tool.get("/admin/v2/namespaces/half") == ["half/one"]
    assert tool.ask("DELETE", half).status == 204
    assert tool.ask("DELETE", half).status == 404
    assert tool.ask("PUT", half).status == 204
    assert tool.ask("GET", f"{half}/messageTTL").status == 204, "nothing is said of it"
    assert tool.ask("DELETE", half).status == 204
    assert tool.ask("DELETE", "/admin/v2/tenants/half").status == 204


def test_the_first_namespace_keeps_what_is_said_of_it(tmp_path: Path) -> None:
    """The first namespace is always there, so it cannot be removed."""
    with running(ClusterOptions(data_dir=tmp_path, pulsar_port=0, pulsar_web_port=0)):
        tool = Tool(port_of(tmp_path, WEB), service_url(tmp_path, 0))
        assert tool.ask("POST", f"{FIRST}/messageTTL", 60).status == 204
        assert tool.ask("DELETE", FIRST).status == 409
        assert tool.get(f"{FIRST}/messageTTL") == 60


def test_clients_make_topics_in_a_namespace_that_is_there(tool: Tool, client: pulsar.Client) -> None:
    topic = "persistent://sales/eu/orders"
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(topic)
    assert tool.ask("PUT", "/admin/v2/namespaces/sales/eu", {}).status == 404
    assert tool.ask("PUT", "/admin/v2/tenants/sales", {"allowedClusters": ["sluice"]}).status == 204
    assert tool.ask("PUT", "/admin/v2/tenants/sales").status == 409
    assert tool.ask("PUT", "/admin/v2/namespaces/sales/eu", {}).status == 204
    assert tool.ask("PUT", "/admin/v2/namespaces/sales/eu").status == 409
    assert tool.get("/admin/v2/tenants") == ["public", "sales"]
    assert tool.get("/admin/v2/namespaces/sales") == ["sales/eu"]
    here = client.subscribe("orders", "s", initial_position=EARLIEST)
    there = client.subscribe(topic, "s", initial_position=EARLIEST)
    client.create_producer(topic).send(b"of the other")
    [message] = received(there, 1)
    assert (message.data(), message.topic_name()) == (b"of the other", topic)
    assert nothing_comes(here)
    assert tool.get("/admin/v2/persistent/sales/eu") == [topic]
    assert topic not in tool.get("/admin/v2/persistent/public/default")
    assert tool.get("/admin/v2/persistent/sales/eu/orders/subscriptions") == ["s"]
    there.close()
    here.close()


def test_a_namespace_goes_when_it_is_empty(tool: Tool, client: pulsar.Client) -> None:
    for path in ("tenants/short", "namespaces/short/lived"):
        assert tool.ask("PUT", f"/admin/v2/{path}").status == 204
    assert tool.ask("PUT", "/admin/v2/persistent/short/lived/parts/partitions", 3).status == 204
    names = [f"persistent://short/lived/parts-partition-{number}" for number in range(3)]
    assert client.get_topic_partitions("short/lived/parts") == names
    assert tool.get("/admin/v2/persistent/short/lived") == names
    other = "/admin/v2/persistent/short/lived/other/partitions"
    assert tool.ask("PUT", other, "2").status == 204  # some clients send the number as a word
    assert tool.get(other)["partitions"] == 2
    assert tool.ask("DELETE", other).status == 204
    assert tool.ask("DELETE", "/admin/v2/namespaces/short/lived").status == 409
    assert tool.ask("DELETE", "/admin/v2/tenants/short").status == 409
    assert tool.ask("DELETE", "/admin/v2/persistent/short/lived/parts/partitions").status == 204
    assert tool.ask("DELETE", "/admin/v2/namespaces/short/lived").status == 204
    assert tool.ask("DELETE", "/admin/v2/tenants/short").status == 204
    assert tool.ask("GET", "/admin/v2/persistent/short/lived").status == 404
    assert tool.ask("DELETE", FIRST).status == 409
    assert tool.ask("PUT", "/admin/v2/namespaces/public/two..dots").status == 412


def test_topics_made_while_a_namespace_deduplicates_do_so(tool: Tool, client: pulsar.Client) -> None:
    assert tool.get(f"{FIRST}/deduplication") is False
    assert tool.ask("POST", f"{FIRST}/deduplication", True).status == 204
    client.create_producer("once").close()
    assert tool.ask("PUT", "/admin/v2/persistent/public/default/parts/partitions", 2).status == 204
    assert tool.ask("POST", f"{FIRST}/deduplication", False).status == 204
    client.create_producer("twice").close()
    for topic, expected in (("once", True), ("parts", True), ("twice", False)):
        assert tool.get(f"/admin/v2/persistent/public/default/{topic}/deduplicationEnabled") is expected
    assert tool.ask("POST", f"{FIRST}/deduplication", "yes").status == 412
    assert tool.ask("POST", f"{FIRST}/deduplication", {}).status == 412
    assert tool.ask("POST", "/admin/v2/namespaces/no/where/deduplication", True).status == 404


@pytest.mark.usefixtures("strategy")
def test_schemas_that_do_not_go_together_are_refused(tool: Tool, client: pulsar.Client) -> None:
    assert tool.get(f"{FIRST}/{STRATEGY}") == "FULL"
    client.create_producer("typed", schema=AvroSchema(Order)).close()
    for wrong in (AvroSchema(Counted), AvroSchema(Larger), JsonSchema(Order), StringSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer("typed", schema=wrong)
    for wrong in (AvroSchema(Counted), AvroSchema(Larger), StringSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.subscribe("typed", "s", schema=wrong)
    client.subscribe("typed", "s", schema=AvroSchema(Order)).close()
    client.subscribe("typed", "s").close()
    assert tool.ask("PUT", f"{FIRST}/{STRATEGY}", "FORWARD").status == 204
    assert tool.get(f"{FIRST}/{STRATEGY}") == "FORWARD"
    client.create_producer("typed", schema=AvroSchema(Larger)).close()
    assert tool.ask("PUT", f"{FIRST}/{STRATEGY}", "SOMETIMES").status == 412
    base = "/admin/v2/schemas/public/default/typed"
    posted = {"type": "STRING", "schema": "", "properties": {}}
    assert tool.get(f"{base}/schemas")["getSchemaResponses"][-1]["version"] == 1
    assert tool.ask("POST", f"{base}/schema", posted).status == 409
    known = {"compatibility": False, "schemaCompatibilityStrategy": "FORWARD"}
    assert tool.ask("POST", f"{base}/compatibility", posted).body == known


def test_a_namespace_may_want_schemas_of_who_produces(tool: Tool, client: pulsar.Client) -> None:
    enforced = f"{FIRST}/schemaValidationEnforced"
    client.create_producer("known", schema=AvroSchema(Order)).close()
    client.create_producer("known").close()
    assert tool.get(enforced) is False
    assert tool.ask("POST", enforced, True).status == 204
    assert tool.get(enforced) is tool.get(FIRST)["schema_validation_enforced"] is True
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("known")
    client.create_producer("known", schema=AvroSchema(Order)).close()
    client.create_producer("without").close()
    client.subscribe("known", "s").close()
    assert tool.ask("DELETE", enforced).status == 204
    client.create_producer("known").close()


def test_a_producer_that_is_refused_for_its_schema_is_gone(tool: Tool, client: pulsar.Client) -> None:
    client.create_producer("refused", schema=AvroSchema(Order)).close()
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("refused", "p", schema=StringSchema())
    assert tool.get("/admin/v2/persistent/public/default/refused/stats")["publishers"] == []
    client.create_producer("refused", "p", schema=AvroSchema(Order)).close()


def test_a_schema_of_keys_and_values_is_shown_as_json(tool: Tool, client: pulsar.Client) -> None:
    base = "/admin/v2/schemas/public/default/pairs"
    pair = '{"key":{"type":"string"},"value":""}'
    client.create_producer("pairs").close()
    assert tool.ask("POST", f"{base}/schema", {"type": "KEY_VALUE", "schema": pair, "properties": {}}).status == 202
    assert tool.get(f"{base}/schema")["data"] == pair
    wrong = {"type": "KEY_VALUE", "schema": '{"key": ""}', "properties": {}}
    assert tool.ask("POST", f"{base}/schema", wrong).status == 412


def test_policies_outlive_the_process(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("kept")
    for first in (True, False):
        with running(ClusterOptions(data_dir=data, pulsar_port=0, pulsar_web_port=0)):
            tool = Tool(port_of(data, WEB), service_url(data, 0))
            if first:
                assert tool.ask("PUT", "/admin/v2/namespaces/public/kept").status == 204
                assert tool.ask("POST", "/admin/v2/namespaces/public/kept/deduplication", True).status == 204
            assert tool.get("/admin/v2/namespaces/public") == ["public/default", "public/kept"]
            assert tool.get("/admin/v2/namespaces/public/kept/deduplication") is True
