"""The port of Pulsar's tools: who may ask, and what becomes of a port that is taken."""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import jwt
import pytest

from sluice.cluster.gateway.ports import PLAIN, TLS, WEB, WEB_TLS, port_of, wanted_ports
from sluice.cluster.launch import launch, standalone
from sluice.cluster.launch.embedded import running
from sluice.cluster.settings.options import ClusterOptions
from tests.cluster.admin.asking import BASE, Tool
from tests.cluster.helpers import values
from tests.kit.certificates import Authority

pytestmark = pytest.mark.timeout(240)


def test_no_page_in_a_browser_is_answered(tool: Tool) -> None:
    """Neither one of elsewhere, nor one that has pointed a name of its own here."""
    here = f"http://127.0.0.1:{tool.port}"
    assert tool.ask("PUT", f"{BASE}/framed", Origin="https://evil.example").status == 403
    assert tool.ask("PUT", f"{BASE}/framed", Origin="null").status == 403
    assert tool.ask("PUT", f"{BASE}/framed", Origin="http://127.0.0.1:1").status == 403
    assert tool.ask("PUT", f"{BASE}/framed", Host="evil.example").status == 421
    assert tool.ask("GET", f"{BASE}/framed/stats").status == 404
    assert tool.ask("PUT", f"{BASE}/framed", Origin=here).status == 204


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_a_picture_on_another_page_asks_nothing(tool: Tool, site: str, status: int) -> None:
    """A browser sends no Origin header with a picture, but the site that wants it."""
    asked = tool.ask("GET", "/admin/v2/clusters", **{"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"})
    assert asked.status == status


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1", "[::1]:8080"])
def test_the_loopback_has_several_names(tool: Tool, host: str) -> None:
    assert tool.ask("GET", "/admin/v2/clusters", Host=host).status == 200


def test_slashes_in_a_row_mean_one(tool: Tool) -> None:
    """As where a script joins the service's address, which ends with one, and a path."""
    assert tool.ask("PUT", f"/{BASE}//slashes").status == 204
    assert tool.get(f"//{BASE}/slashes/partitions?checkAllowAutoCreation=false")["partitions"] == 0
    assert tool.ask("GET", f"/{BASE}/nowhere/partitions").status == 404
    assert tool.ask("PUT", f"/{BASE}/slashes/persistence").status == 405
    assert tool.ask("GET", "//nothing").status == 404
    assert tool.ask("GET", "//").status == 404


@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
def test_metrics_are_at_the_place_of_pulsar(tool: Tool, path: str) -> None:
    tool.ask("PUT", f"{BASE}/measured")
    tool.ask("PUT", f"{BASE}/measured/subscription/s")
    answer = tool.ask("GET", path)
    assert (answer.status, answer.headers.get_content_type()) == (200, "text/plain")
    assert b'pulsar_subscription_back_log{topic="measured",partition="0",subscription="s"} 0\n' in answer.body


def test_missing_path_is_refused_at_once(tool: Tool) -> None:
    tool.ask("PUT", f"{BASE}/plain")
    for method, path in (
        ("POST", f"{BASE}/plain/persistence"),
        ("POST", "/admin/v2/namespaces/public/default/persistence"),
        ("GET", "/admin/v2/broker-stats/metrics"),
        ("GET", "/admin/v3/functions/public/default"),
        ("PUT", "/admin/v2/clusters/other"),
        ("GET", "/admin/v2/brokers/internal-configuration"),
        ("GET", "/admin/v2/brokers/backlog-quota-check"),
        ("GET", "/admin/v2/brokers/backlogQuotaCheck"),
    ):
        answer = tool.ask(method, path)
        assert answer.status == 405, path
        assert "Sluice does not offer" in answer.body["reason"]


def test_tools_that_need_an_answer_get_an_empty_one(tool: Tool) -> None:
    """With no answer at all some of Pulsar's commands end in a stack trace."""
    tool.ask("PUT", f"{BASE}/plain")
    space = "/admin/v2/namespaces/public/default"
    assert tool.get(f"{BASE}/plain/shadowTopics") == []
    assert tool.get(f"{BASE}/plain/schemaValidationEnforced") is False
    assert tool.get(f"{BASE}/plain/permissions") == tool.get(f"{space}/permissions/subscription") == {}
    assert tool.get(f"{space}/maxTopicsPerNamespace") == 0
    assert tool.get(f"{space}/dispatcherPauseOnAckStatePersistent") is False
    assert tool.get(f"{BASE}/plain/offload")["status"] == "NOT_RUN"
    assert tool.ask("POST", f"{BASE}/plain/createMissedPartitions").status == 204
    assert tool.ask("GET", f"{BASE}/nowhere/offload").status == 404
    assert tool.ask("POST", f"{space}/schemaValidationEnforced", True).status == 204
    assert tool.get(f"{BASE}/plain/schemaValidationEnforced?applied=true") is True
    assert tool.ask("DELETE", f"{space}/schemaValidationEnforced").status == 204


def test_option_without_effect_is_refused(tool: Tool) -> None:
    path = f"{BASE}/plain/subscription"
    tool.ask("PUT", f"{BASE}/plain")
    start = {"ledgerId": -1, "entryId": -1}
    assert tool.ask("PUT", f"{path}/one?replicated=true", start).status == 405
    assert tool.get(f"{BASE}/plain/subscriptions") == []
    assert tool.ask("PUT", f"{path}/one?replicated=false", {**start, "properties": {}}).status == 204
    assert tool.get(f"{path}/one/properties") == {}
    assert tool.ask("GET", f"{path}/nobody/properties").status == 404
    for where in (f"{BASE}/plain", "/admin/v2/namespaces/public/default"):
        for method in ("POST", "DELETE"):
            refused = tool.ask(method, f"{where}/permissions/till", ["produce"])
            assert (refused.status, refused.body["reason"][:28]) == (501, "Authorization is not enabled")
    refused = tool.ask("GET", "/proxy-stats/connections")
    assert (refused.status, refused.body) == (404, {"reason": "Not Found: GET /proxy-stats/connections"})


def test_a_subscription_keeps_properties(tool: Tool) -> None:
    """Properties are kept on every partition: those of its creation, and those that replace them."""
    tool.ask("PUT", f"{BASE}/kept/partitions", 2)
    path, start = f"{BASE}/kept/subscription/one", {"ledgerId": -1, "entryId": -1}
    assert tool.ask("PUT", path, {**start, "properties": {"a": "b"}}).status == 204
    assert tool.get(f"{path}/properties") == {"a": "b"}
    assert tool.ask("PUT", f"{path}/properties", {"c": "d", "e": ""}).status == 204
    assert tool.get(f"{path}/properties") == {"c": "d", "e": ""}
    stats = tool.get(f"{BASE}/kept/partitioned-stats?perPartition=true")
    shown = [stats, *stats["partitions"].values()]
    assert [each["subscriptions"]["one"]["subscriptionProperties"] for each in shown] == [{"c": "d", "e": ""}] * 3
    for wrong in ({"a": 1}, ["a"], {"a": "x" * (1 << 15)}):
        assert tool.ask("PUT", f"{path}/properties", wrong).status == 412
    assert tool.ask("PUT", f"{BASE}/kept/subscription/other", {**start, "properties": {"a": 1}}).status == 412
    assert tool.ask("PUT", f"{BASE}/kept/subscription/nobody/properties", {}).status == 404
    assert tool.ask("PUT", f"{path}/properties", {}).status == 204
    assert tool.get(f"{path}/properties") == {}


def test_policy_that_was_never_set_is_empty(tool: Tool) -> None:
    tool.ask("PUT", f"{BASE}/unset")
    assert tool.ask("GET", f"{BASE}/unset/retention").status == 204
    assert tool.ask("GET", f"{BASE}/unset/maxProducers").status == 204
    assert tool.ask("GET", f"{BASE}/nowhere/maxProducers").status == 404
    assert tool.get(f"{BASE}/unset/deduplicationEnabled") is False
    assert tool.get("/admin/v2/namespaces/public/default/backlogQuotaMap") == {}
    assert tool.get("/admin/v2/namespaces/public/default/replication") == tool.get("/admin/v2/clusters")


def test_there_is_one_of_each(tool: Tool) -> None:
    assert tool.get("/admin/v2/tenants") == ["public"]
    assert tool.get("/admin/v2/namespaces/public") == ["public/default"]
    assert tool.get("/admin/v2/brokers") == [f"127.0.0.1:{tool.port}"]
    assert tool.get("/admin/v2/brokers/health") == b"ok"
    [cluster] = tool.get("/admin/v2/clusters")
    assert tool.get(f"/admin/v2/clusters/{cluster}")["brokerServiceUrl"] == tool.service_url
    assert tool.get("/lookup/v2/topic/persistent/public/default/new")["brokerUrl"] == tool.service_url
    assert tool.ask("GET", "/admin/v2/tenants/other").status == 404


def test_a_body_that_is_too_large_is_refused(tool: Tool) -> None:
    assert tool.ask("POST", "/admin/v2/schemas/public/default/plain/schema", {"schema": "x" * 100_000}).status == 413


DEEP = [
    ("PUT", "/admin/v2/persistent/public/default/deep"),
    ("PUT", "/admin/v2/namespaces/public/default/schemaCompatibilityStrategy"),
    ("POST", "/admin/v2/namespaces/public/default/retention"),
    ("POST", "/admin/v2/namespaces/public/default/backlogQuota"),
    ("POST", "/admin/v2/schemas/public/default/deep/schema"),
    ("POST", "/admin/v2/schemas/public/default/deep/compatibility"),
    ("PUT", "/admin/v2/persistent/public/default/deep/subscription/s"),
    ("POST", "/admin/v2/persistent/public/default/deep/subscription/s/resetcursor"),
]


@pytest.mark.parametrize("depth", [200, 2_000, 30_000])
@pytest.mark.parametrize(("method", "path"), DEEP)
def test_json_of_any_depth_is_refused(tool: Tool, method: str, path: str, depth: int) -> None:
    """An earlier version answered with 500, and with a traceback in the log."""
    for begin in ("[", '{"a":'):
        inner = begin * min(depth, 60_000 // len(begin) // 2)
        body = (
            inner
            + "1"
            + inner[::-1].translate({ord("["): "]", ord("{"): "}", ord(":"): None, ord('"'): None, 97: None})
        )
        assert 400 <= tool.ask_raw(method, path, body).status < 500


HALF = '"\\ud800"'


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *DEEP,
        ("PUT", "/admin/v2/persistent/public/default/deep/subscription/s/properties"),
        ("PUT", "/admin/v2/tenants/t"),
    ],
)
def test_half_of_a_letter_in_json_is_refused(tool: Tool, method: str, path: str) -> None:
    """Nothing that is kept can be written with it; where it came as far as that, the answer was 500."""
    tool.ask("PUT", "/admin/v2/persistent/public/default/deep")
    for value in (HALF, f'{{"properties": {{{HALF}: "a"}}}}', f'{{"adminRoles": [{HALF}], "schema": {HALF}}}'):
        answer = tool.ask_raw(method, path, value)
        assert 400 <= answer.status < 500, answer


async def test_many_connections_hold_nothing_for_ever(tool: Tool) -> None:
    """A connection that comes when all places are taken is closed, and so the port answers when places are free
    again.
    """
    opened = [await asyncio.open_connection("127.0.0.1", tool.port) for _ in range(230)]
    ends = [asyncio.ensure_future(reader.read()) for reader, _ in opened]
    done, _ = await asyncio.wait(ends, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert done
    for _, writer in opened:
        writer.close()
    await asyncio.wait(ends)
    assert await asyncio.wait_for(_answered(tool), 60) == 200


async def _answered(tool: Tool) -> int:
    """The status of the first request that is let in: the port hears after its clients that they have left."""
    while True:
        with suppress(ConnectionError):
            return (await asyncio.to_thread(tool.ask, "GET", "/admin/v2/clusters")).status


def test_a_token_is_wanted_where_clients_need_one(tmp_path: Path) -> None:
    key = tmp_path / "token.key"
    key.write_bytes(secrets.token_bytes(32))
    key.chmod(0o600)
    token = jwt.encode({"sub": "till"}, key.read_bytes(), "HS256")
    options = ClusterOptions(
        tmp_path / "data",
        pulsar_port=0,
        pulsar_web_port=0,
        pulsar_token_key_file=str(key),
        pulsar_advertised_address="a.b",
    )
    with running(options):
        tool = Tool(port_of(options.data_dir, WEB), "")
        assert tool.ask("GET", "/admin/v2/clusters").status == 401
        assert tool.ask("GET", "/admin/v2/clusters", Authorization="Bearer x").status == 401
        assert tool.ask("GET", "/admin/v2/clusters", Authorization=f"Bearer {token}").status == 200
        named = tool.ask("GET", "/admin/v2/clusters", Authorization=f"Bearer {token}", Host="a.b:8080")
        assert named.status == 200


def sealed(folder: Path, *, trust: str = "", key: str = "") -> tuple[ClusterOptions, Authority]:
    """A cluster that speaks nothing but TLS, and whose certificate is to be trusted. trust: of its clients' authority.

    key: the file with that of their tokens.
    """
    authority = Authority(folder)
    pair = authority.issue("broker")
    options = ClusterOptions(
        folder / "data",
        pulsar_tls_port=0,
        pulsar_web_tls_port=0,
        pulsar_tls_certificate_file=pair.certificate,
        pulsar_tls_key_file=pair.key,
        pulsar_tls_trust_certs_file=trust,
        pulsar_token_key_file=key,
    )
    return options, authority


def test_with_a_certificate_tools_connect_by_tls(tmp_path: Path) -> None:
    options, authority = sealed(tmp_path)
    with running(options):
        context = ssl.create_default_context(cafile=authority.trust)
        tool = Tool(port_of(options.data_dir, WEB_TLS), "", context)
        [name] = tool.get("/admin/v2/clusters")
        told = tool.get(f"/admin/v2/clusters/{name}")
        assert (told["serviceUrl"], told["serviceUrlTls"]) == ("", f"https://127.0.0.1:{tool.port}")
        assert tool.get("/admin/v2/brokers") == [f"127.0.0.1:{tool.port}"]
        assert tool.ask("PUT", f"{BASE}/sealed/partitions", 2).status == 204
        at = tool.get("/lookup/v2/topic/persistent/public/default/sealed-partition-0")
        assert at["httpUrlTls"] == told["serviceUrlTls"]
        assert at["brokerUrlTls"] == f"pulsar+ssl://127.0.0.1:{port_of(options.data_dir, TLS)}"
        with pytest.raises(OSError):  # noqa: PT011 - closed in one of the ways that there are
            Tool(tool.port, "").ask("GET", "/admin/v2/clusters")


def test_tools_show_a_certificate_where_clients_do(tmp_path: Path) -> None:
    """A client without a certificate cannot connect; the name in a certificate is as good as a token."""
    key = tmp_path / "token.key"
    key.write_bytes(secrets.token_bytes(32))
    key.chmod(0o600)
    trust = Authority(tmp_path, "tills")
    options, authority = sealed(tmp_path, trust=trust.trust, key=str(key))
    with running(options):
        port = port_of(options.data_dir, WEB_TLS)
        context = ssl.create_default_context(cafile=authority.trust)
        with pytest.raises(OSError):  # noqa: PT011 - TLS 1.3 ends it after its handshake, TLS 1.2 in it
            Tool(port, "", context).ask("GET", "/admin/v2/clusters")
        context.load_cert_chain(*trust.issue("till"))
        assert Tool(port, "", context).ask("GET", "/admin/v2/clusters").status == 200


def test_gateway_without_clients_serves_no_tools() -> None:
    assert wanted_ports({"pulsar_port": -1, "pulsar_web_port": 8080}) == {}
    assert WEB not in wanted_ports({"pulsar_port": 0, "pulsar_web_port": -1})
    both = {"pulsar_port": 1, "pulsar_web_port": 2, "pulsar_tls_port": 3, "pulsar_web_tls_port": 4}
    shown = {"pulsar_tls_certificate_file": "broker.pem"}
    assert WEB_TLS not in wanted_ports(both)
    assert wanted_ports(both | shown) == {PLAIN: 1, WEB: 2, TLS: 3, WEB_TLS: 4}
    assert wanted_ports(both | shown | {"pulsar_tls_port": -1}) == {PLAIN: 1, WEB: 2}
    assert wanted_ports(both | shown | {"pulsar_port": -1}) == {TLS: 3, WEB_TLS: 4}


def test_a_taken_port_keeps_nothing_from_starting(tmp_path: Path) -> None:
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            said = standalone.up(values(tmp_path, pulsar_port=0, pulsar_web_port=port))["pulsar"]
        assert "clients of Apache Pulsar connect to pulsar://" in said
        assert f"no tool of Apache Pulsar can connect: port {port} is in use" in said
        assert "\n" not in said
    finally:
        launch.down(tmp_path)


def test_a_taken_port_of_tls_is_said_as_well(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("broker")
    files = {"pulsar_tls_certificate_file": pair.certificate, "pulsar_tls_key_file": pair.key, "pulsar_tls_port": 0}
    data = tmp_path / "data"
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            said = standalone.up(values(data, **files, pulsar_web_tls_port=port))["pulsar"]
        assert "clients of Apache Pulsar connect to pulsar+ssl://" in said
        assert f"port {port} is in use; choose another with --set pulsar_web_tls_port=PORT" in said
        assert "\n" not in said
    finally:
        launch.down(data)


def test_up_prints_the_address_for_tools(tmp_path: Path) -> None:
    try:
        said = standalone.up(values(tmp_path, pulsar_port=0, pulsar_web_port=0))["pulsar"]
        assert f"its tools to http://127.0.0.1:{port_of(tmp_path, WEB)}" in said
    finally:
        launch.down(tmp_path)
