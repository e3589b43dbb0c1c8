"""Ways to get round permissions, all of them refused: one team tries everything to reach the topics of another.

`red` may produce and consume in `red/ns`, and `blue` in `blue/ns`; that namespace has topics, with a subscription
`kept`.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest

from sluice.actors.pulsar.codec.frames import U32, encode
from sluice.actors.pulsar.codec.protocol import ServerError, command
from sluice.cluster.base import audit
from sluice.cluster.base.audit import audited_lines
from sluice.cluster.gateway.ports import WEB, port_of, service_url
from sluice.cluster.launch.embedded import running
from sluice.cluster.settings.options import ClusterOptions
from tests.actors.pulsar.made import frame, single
from tests.cluster.admin.asking import Answer, Tool
from tests.cluster.gateway.raw import Raw
from tests.cluster.helpers import eventually

pytestmark = pytest.mark.timeout(240)

PLAIN = "persistent://blue/ns/plain"
READER = {"type": 0, "durable": False, "subscription": "reader-x"}
MADE_UP = (ServerError.AUTHORIZATION, ServerError.NOT_ALLOWED)
"""What is said of names: that there is no right, or that nothing can be called so."""

TOPICS = {
    "another team's topic": PLAIN,
    "the short form": "blue/ns/plain",
    "a partition": "persistent://blue/ns/secret-partition-0",
    "a partition in the short form": "blue/ns/secret-partition-3",
    "a partition that there is not": "persistent://blue/ns/secret-partition-99",
    "a partition of a partition": "persistent://blue/ns/secret-partition-0-partition-0",
    "the name that Sluice has for it": "blue..ns..plain",
    "that name in the default namespace": "persistent://public/default/blue..ns..plain",
    "up and down again": "persistent://red/ns/../../blue/ns/plain",
    "letters in hexadecimal": "persistent://blue/ns/%70lain",
    "a slash in hexadecimal": "persistent://blue%2Fns/plain",
    "capital letters": "persistent://BLUE/NS/plain",
    "a letter that looks alike": "persistent://blu\u0435/ns/plain",
    "a NUL behind it": f"{PLAIN}\0",
    "a blank in front": f" {PLAIN}",
    "not persistent": "non-persistent://blue/ns/plain",
    "a slash twice": "persistent://blue/ns//plain",
    "a slash in front": "persistent:///blue/ns/plain",
    "no namespace": "persistent://blue/plain",
    "a quoted name": "persistent://blue/ns/q--_70lain",
    "the dead letters": "persistent://blue/ns/plain-kept-DLQ",
    "the retries": "persistent://blue/ns/plain-kept-RETRY",
    "a KeyedQueue": "persistent://blue/ns/jobs",
    "a topic that is not there": "persistent://blue/ns/new",
}
COMMANDS: dict[str, tuple[str, dict[str, Any]]] = {
    "a consumer": ("subscribe", {"topic": PLAIN, "subscription": "s", "type": 1}),
    "a consumer of what is there": ("subscribe", {"topic": PLAIN, "subscription": "kept", "type": 3}),
    "a reader": ("subscribe", {"topic": PLAIN, **READER}),
    "a reader of a partition": ("subscribe", {"topic": "persistent://blue/ns/secret-partition-1", **READER}),
    "a compacted reader": ("subscribe", {"topic": PLAIN, "read_compacted": True, **READER}),
    "a reader of the dead letters": ("subscribe", {"topic": f"{PLAIN}-kept-DLQ", **READER}),
    "a subscription with a producer": (
        "producer", {"topic": PLAIN, "initial_subscription": "mine"},
    ),
    "an exclusive producer": ("producer", {"topic": PLAIN, "access_mode": 3}),
    "what a pattern finds": ("topics_of", {"namespace": "blue/ns", "pattern": ".*"}),
    "the topics of both kinds": ("topics_of", {"namespace": "blue/ns", "mode": 2}),
    "a namespace in hexadecimal": ("topics_of", {"namespace": "blue%2Fns"}),
    "up to another namespace": ("topics_of", {"namespace": "red/ns/../../blue/ns"}),
    "how many partitions": ("partition_metadata", {"topic": "persistent://blue/ns/secret", "allow_creation": False}),
    "a new topic": ("partition_metadata", {"topic": "persistent://blue/ns/new"}),
    "where it is": ("lookup", {"topic": PLAIN}),
    "its schema": ("get_schema", {"topic": PLAIN}),
    "a schema for it": ("put_schema", {"topic": PLAIN, "schema": {"type": 1}}),
    "somebody else's cursor": ("seek", {"consumer_id": 77, "publish_time": 0}),
    "somebody else's subscription": ("unsubscribe", {"consumer_id": 77, "force": True}),
}  # fmt: skip
AT = "/admin/v2/persistent/blue/ns/plain"
PATHS: dict[str, tuple[str, str, Any]] = {
    "a message": ("GET", f"{AT}/examinemessage", None),
    "a message of a subscription": ("GET", f"{AT}/subscription/kept/position/1", None),
    "a message by its id": ("GET", f"{AT}/ledger/1/entry/0", None),
    "two slashes": ("GET", "//admin//v2/persistent/blue/ns/plain/examinemessage", None),
    "letters of a path in hexadecimal": ("GET", "/admin/v2/persistent/%62lue/ns/plain/examinemessage", None),
    "the head alone": ("HEAD", f"{AT}/examinemessage", None),
    "another's cursor": ("POST", f"{AT}/subscription/kept/skip_all", None),
    "another's topic": ("DELETE", f"{AT}?force=true", None),
    "a right for oneself": ("POST", "/admin/v2/namespaces/blue/ns/permissions/red", ["consume"]),
    "more rights at home": ("POST", "/admin/v2/namespaces/red/ns/permissions/red", ["functions"]),
    "one's own tenant": ("POST", "/admin/v2/tenants/red", {"adminRoles": ["red"], "allowedClusters": ["sluice"]}),
    "another's tenant": ("POST", "/admin/v2/tenants/blue", {"adminRoles": ["red"], "allowedClusters": ["sluice"]}),
    "a namespace there": ("PUT", "/admin/v2/namespaces/blue/mine", None),
    "everything of a namespace": ("POST", "/admin/v2/namespaces/blue/ns/clearBacklog", None),
    "where a topic is": ("GET", "/lookup/v2/topic/persistent/blue/ns/plain", None),
    "who else there is": ("GET", "/admin/v2/tenants", None),
}
ELSEWHERE = {
    "up and down again": "/admin/v2/persistent/red/ns/../../blue/ns/plain/examinemessage",
    "up and down again in hexadecimal": "/admin/v2/persistent/red/ns/%2e%2e/%2e%2e/blue/ns/plain/examinemessage",
    "up within a name": "/admin/v2/persistent/red/ns/..%2f..%2fblue%2fns%2fplain/examinemessage",
    "a slash of a namespace in hexadecimal": "/admin/v2/persistent/blue%2fns/plain/examinemessage",
    "hexadecimal of hexadecimal": "/admin/v2/persistent/blue/ns/%2570lain/examinemessage",
    "hexadecimal of UTF-8 that is none": "/admin/v2/persistent/bl%c1%b5e/ns/plain/examinemessage",
    "a parameter of a path": "/admin/v2/persistent/red;/../blue/ns/plain/examinemessage",
    "the name that Sluice has for it": "/admin/v2/persistent/red/ns/blue..ns..plain/examinemessage",
    "a partition of what has none": "/admin/v2/persistent/blue/ns/plain-partition-0/examinemessage",
    "paths as they were before namespaces": "/admin/persistent/blue/sluice/ns/plain/stats",
    "lookups as they were": "/lookup/v2/destination/persistent/blue/sluice/ns/plain",
    "the other kind of topic": "/admin/v2/non-persistent/blue/ns/plain/stats",
    "the live page": "/watch/events?topic=blue..ns..plain&subscription=kept",
    "the past of the live page": "/watch/past?topic=blue..ns..plain&subscription=kept&at=1",
    "metrics": "/metrics",
    "transactions": "/admin/v3/transactions/coordinatorStats",
    "functions": "/admin/v3/functions/blue/ns",
}


@dataclass(frozen=True)
class Teams:
    """A cluster of two teams."""

    tool: Tool
    key: bytes
    folder: Path

    def token(self, role: object, key: bytes | None = None, **claims: Any) -> str:
        """One that a client may present."""
        return str(jwt.encode({"roles": role, "aud": "here", **claims}, key or self.key, "HS256"))

    def ask(self, method: str, path: str, body: Any = None, role: str = "red", **headers: str) -> Answer:
        """As Pulsar's tools do."""
        return self.tool.ask(method, path, body, Authorization=f"Bearer {self.token(role)}", **headers)

    def enter(self, token: str, **more: Any) -> tuple[Raw, Any]:
        """A connection that presents a token, and the answer."""
        raw = Raw(self.tool.service_url)
        raw.send(
            encode(command("connect", client_version="raw", protocol_version=20, auth_method_name="token",
                           auth_data=token.encode(), **more))
        )  # fmt: skip
        return raw, raw.read()

    def told(self, role: str, name: str, **values: Any) -> int | None:
        """The code by which a command is refused; None if it is not."""
        raw, _ = self.enter(self.token(role))
        with raw:
            more = {"subscribe": {"consumer_id": 1}, "producer": {"producer_id": 1}}.get(name, {})
            raw.say(name, request_id=1, **{**more, **values})
            answer = raw.read()
            [(_, body)] = [(field, value) for field, value in answer.ListFields() if field.name != "type"]
            return int(body.error) if body.DESCRIPTOR.fields_by_name.get("error") and body.HasField("error") else None


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teams]:
    folder = tmp_path_factory.mktemp("teams")
    key: Path = folder / "token.key"
    key.write_bytes(secrets.token_bytes(32))
    key.chmod(0o600)
    options = ClusterOptions(
        folder / "data",
        pulsar_port=0,
        pulsar_web_port=0,
        pulsar_token_key_file=str(key),
        pulsar_token_audience="here",
        pulsar_token_auth_claim="roles",
        authorization_enabled=True,
        super_user_roles="root",
        viewer_roles="watcher",
    )
    with running(options):
        made = Teams(
            Tool(port_of(options.data_dir, WEB), service_url(options.data_dir, 0)), key.read_bytes(), options.data_dir
        )
        for team in ("red", "blue"):
            body = {"adminRoles": [f"{team}-chief"], "allowedClusters": ["sluice"]}
            assert made.ask("PUT", f"/admin/v2/tenants/{team}", body, "root").status == 204
            assert made.ask("PUT", f"/admin/v2/namespaces/{team}/ns", None, f"{team}-chief").status == 204
            granted = f"/admin/v2/namespaces/{team}/ns/permissions/{team}"
            assert made.ask("POST", granted, ["produce", "consume"], f"{team}-chief").status == 204
        assert made.ask("PUT", "/admin/v2/persistent/blue/ns/secret/partitions", 4, "blue-chief").status == 204
        for topic in (PLAIN, f"{PLAIN}-kept-DLQ", f"{PLAIN}-kept-RETRY", "persistent://blue/ns/jobs"):
            assert made.told("blue", "subscribe", topic=topic, subscription="kept", type=1) is None
        yield made


@pytest.mark.parametrize("way", TOPICS)
@pytest.mark.parametrize("name", ["producer", "lookup"])
def test_no_name_leads_to_another_teams_topic(teams: Teams, name: str, way: str) -> None:
    assert teams.told("red", name, topic=TOPICS[way]) in MADE_UP


def test_a_name_that_looks_like_theirs_is_ones_own(teams: Teams) -> None:
    assert teams.told("red", "producer", topic="persistent://red/ns/blue..ns..plain") is None
    known = teams.ask("GET", "/admin/v2/persistent/red/ns", None, "red").body
    assert "persistent://red/ns/blue..ns..plain" in known
    assert teams.ask("GET", f"{AT}/stats", None, "blue").body["publishers"] == []


@pytest.mark.parametrize("way", COMMANDS)
def test_no_command_leads_there(teams: Teams, way: str) -> None:
    name, values = COMMANDS[way]
    codes = MADE_UP if "consumer_id" not in values else (ServerError.CONSUMER_NOT_FOUND,)
    assert teams.told("red", name, **values) in codes


@pytest.mark.parametrize("way", PATHS)
def test_no_path_leads_there(teams: Teams, way: str) -> None:
    method, path, body = PATHS[way]
    answer = teams.ask(method, path, body)
    assert answer.status == 403, answer
    if method != "HEAD":
        assert "role 'red' is not authorized: this needs " in answer.body["reason"]


@pytest.mark.parametrize("way", ELSEWHERE)
def test_no_path_that_is_none_leads_there(teams: Teams, way: str) -> None:
    assert teams.ask("GET", ELSEWHERE[way]).status in (403, 404, 405, 412)


def test_no_proxy_says_who_one_is(teams: Teams) -> None:
    """Fields that clients leave to proxies: for whom the proxy asks, and with which credentials."""
    token = teams.token("root").encode()
    said = command(
        "connect", client_version="raw", auth_method_name="token", auth_data=teams.token("red").encode()
    ).SerializeToString()
    more = b"".join(bytes([number << 3 | 2, *varint(len(text))]) + text for number, text in
                    ((6, b"127.0.0.1:6650"), (7, b"root"), (8, token), (9, b"token")))  # fmt: skip
    said += bytes([2 << 3 | 2, *varint(len(more))]) + more  # of a message that comes twice both are taken together
    raw = Raw(teams.tool.service_url)
    with raw:
        raw.send(U32.pack(4 + len(said)) + U32.pack(len(said)) + said)
        assert raw.next("error").error == ServerError.AUTHORIZATION
        assert raw.closed()


def varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    return bytes([number & 0x7F | 0x80]) + varint(number >> 7) if number > 0x7F else bytes([number])


@pytest.mark.parametrize("name", ["auth_response", "connect"])
def test_token_of_another_role_ends_the_connection(teams: Teams, name: str) -> None:
    """Another one's token, on a connection that is open, ends it."""
    raw, _ = teams.enter(teams.token("red"))
    token = teams.token("root").encode()
    more = {"auth_response": {"response": {"method": "token", "data": token}}}
    with raw:
        raw.say(name, **more.get(name, {"client_version": "raw", "auth_method_name": "token", "auth_data": token}))
        raw.say("producer", request_id=1, producer_id=1, topic=PLAIN)
        assert raw.next("error").error == ServerError.UNSUPPORTED_VERSION
        assert raw.closed()


def test_nothing_is_done_before_it_is_known_who_asks(teams: Teams) -> None:
    """Commands behind a CONNECT that is refused, and commands without a CONNECT, change nothing."""
    greeting = command("connect", client_version="raw", auth_method_name="token", auth_data=b"none")
    made = "persistent://red/ns/too-early"
    for first in (encode(greeting), b""):
        raw = Raw(teams.tool.service_url)
        with raw:
            raw.send(first + encode(command("producer", request_id=1, producer_id=1, topic=made)))
            assert raw.next("error").error in (ServerError.AUTHENTICATION, ServerError.UNSUPPORTED_VERSION)
            assert raw.closed()
    assert made not in teams.ask("GET", "/admin/v2/persistent/red/ns", None, "red").body


def test_ids_of_another_teams_messages_lead_nowhere(teams: Teams) -> None:
    """Numbers of ledgers are those of the whole cluster."""
    raw, _ = teams.enter(teams.token("blue"))
    with raw:
        raw.say("producer", request_id=1, producer_id=1, topic=PLAIN)
        raw.next("producer_success")
        sent = single(b"secret", sequence_id=1).body
        raw.send(frame(command("send", producer_id=1, sequence_id=1), bytes(sent.metadata), bytes(sent.payload)))
        at = raw.next("send_receipt").message_id
    own = "persistent://red/ns/own"
    assert teams.told("red", "producer", topic=own) is None
    path = f"/admin/v2/persistent/{{}}/ledger/{at.ledger}/entry/{at.entry}"
    assert teams.ask("GET", path.format("blue/ns/plain"), None, "blue").body == b"secret"
    assert teams.ask("GET", path.format("red/ns/own"), None, "red").status == 404
    raw, _ = teams.enter(teams.token("red"))
    with raw:
        asked = {**READER, "consumer_id": 1, "topic": own, "start_message_id": at}
        raw.say("subscribe", request_id=1, **asked)
        raw.next("success")
        raw.say("flow", consumer_id=1, permits=10)
        raw.say("ack", consumer_id=1, ack_type=1, message_id=[at], request_id=2)
        raw.next("ack_answer")
        raw.say("get_last_id", consumer_id=1, request_id=3)
        assert raw.next("last_id_answer").last.ledger != at.ledger
    backlog = teams.ask("GET", f"{AT}/stats", None, "blue").body["subscriptions"]["kept"]["msgBacklog"]
    assert backlog == 1


def test_no_pattern_leads_out_of_a_namespace(teams: Teams) -> None:
    raw, _ = teams.enter(teams.token("red"))
    with raw:
        for pattern in (".*", "persistent://blue/ns/.*", "persistent://.*/.*/.*"):
            raw.say("topics_of", request_id=1, namespace="red/ns", pattern=pattern)
            assert not any("/blue/" in name for name in raw.next("topics_of_answer").topics)


@pytest.mark.parametrize(
    "name", ["X-Original-Principal", "X-HTTP-Method-Override", "X-Forwarded-User", "X-Pulsar-Role"]
)
def test_no_header_says_who_one_is(teams: Teams, name: str) -> None:
    assert teams.ask("GET", f"{AT}/examinemessage", None, "red", **{name: "root"}).status == 403


def test_tokens_that_are_none(teams: Teams) -> None:
    other = secrets.token_bytes(32)
    unsigned = ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "none"}, {"roles": "root", "aud": "here"})
    )
    wrong = {
        "of another key": teams.token("root", other),
        "that has ended": teams.token("root", exp=int(time.time()) - 60),
        "without a signature": f"{unsigned}.",
        "for another audience": teams.token("root", aud="there"),
        "for no audience": str(jwt.encode({"roles": "root"}, teams.key, "HS256")),
        "without roles": teams.token([]),
        "with a role that is none": teams.token(["root", 7]),
        "that was cut": teams.token("root")[:-4],
        "of nothing": "",
    }
    for way, token in wrong.items():
        raw, answer = teams.enter(token)
        with raw:
            assert answer.error.error == ServerError.AUTHENTICATION, way
        assert teams.tool.ask("GET", "/admin/v2/tenants", Authorization=f"Bearer {token}").status == 401, way


@pytest.mark.parametrize("role", ["Root", "root ", " root", "root,red", "ro\u043et", "*", "red-chief,blue-chief"])
def test_no_role_looks_like_another_one(teams: Teams, role: str) -> None:
    assert teams.told(role, "producer", topic=PLAIN) == ServerError.AUTHORIZATION
    assert teams.ask("GET", "/admin/v2/tenants", None, role).status == 403


def test_several_roles_of_one_token_add_up(teams: Teams) -> None:
    raw, answer = teams.enter(teams.token(["red", "blue"]))
    with raw:
        assert answer.HasField("connected")
        for number, topic in enumerate((PLAIN, "persistent://red/ns/plain")):
            raw.say("producer", request_id=number, producer_id=number, topic=topic)
            assert raw.next("producer_success").request_id == number


def test_a_token_lasts_longer_than_the_right(teams: Teams) -> None:
    """A connected client is sent away, a client that comes back is refused, and the token is as valid as before."""
    granted = "/admin/v2/namespaces/blue/ns/permissions/guest"
    assert teams.ask("POST", granted, ["produce"], "blue-chief").status == 204
    raw, _ = teams.enter(teams.token("guest"))
    with raw:
        raw.say("producer", request_id=1, producer_id=1, topic=PLAIN)
        assert raw.next("producer_success").request_id == 1
        assert teams.ask("DELETE", granted, None, "blue-chief").status == 204
        assert raw.next("close_producer").producer_id == 1
        raw.say("producer", request_id=2, producer_id=1, topic=PLAIN)
        assert raw.next("error").error == ServerError.AUTHORIZATION
    assert teams.told("guest", "producer", topic=PLAIN) == ServerError.AUTHORIZATION


def test_a_subscription_is_for_those_who_are_named(teams: Teams) -> None:
    path = "/admin/v2/namespaces/blue/ns/permissions"
    assert teams.ask("POST", f"{path}/clerk", ["consume"], "blue-chief").status == 204
    assert teams.ask("POST", f"{path}/subscription/only%20clerks", ["clerk"], "blue-chief").status == 204
    asked = {"topic": PLAIN, "subscription": "only clerks", "type": 1}
    for name in ("only clerks", "q--only_20clerks"):
        assert teams.told("blue", "subscribe", **{**asked, "subscription": name}) == ServerError.AUTHORIZATION
    assert teams.told("clerk", "subscribe", **asked) is None
    assert teams.ask("GET", f"{path}/subscription", None, "blue-chief").body == {"only clerks": ["clerk"]}
    assert teams.ask("DELETE", f"{path}/only%20clerks/clerk", None, "blue-chief").status == 204
    assert teams.told("blue", "subscribe", **asked) is None


def test_watcher_sees_statistics_and_changes_nothing(teams: Teams) -> None:
    assert teams.ask("GET", f"{AT}/stats", None, "watcher").status == 200
    assert teams.ask("GET", "/admin/v2/tenants/blue", None, "watcher").body["adminRoles"] == ["blue-chief"]
    for method, path in (("DELETE", AT), ("POST", f"{AT}/subscription/kept/skip_all"), ("GET", f"{AT}/examinemessage")):
        assert teams.ask(method, path, None, "watcher").status == 403
    assert teams.told("watcher", "subscribe", topic=PLAIN, subscription="s", type=1) == ServerError.AUTHORIZATION


def test_everything_is_written_down_and_no_secret(teams: Teams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_REFUSALS", 1_000_000)  # the tests before were refused much in this second as well
    topic = "persistent://blue/ns/written"
    assert teams.told("blue", "producer", topic=topic) is None
    raw, _ = teams.enter(teams.token("blue"))
    with raw:
        raw.say("subscribe", request_id=1, consumer_id=1, topic=topic, subscription="mine", type=0)
        assert raw.next("success").request_id == 1
        raw.say("unsubscribe", request_id=2, consumer_id=1)
        assert raw.next("success").request_id == 2
    at = "/admin/v2/persistent/blue/ns/written"
    assert teams.ask("PUT", f"{at}/subscription/again", {"ledgerId": -1, "entryId": -1}, "blue").status == 204
    assert teams.ask("POST", f"{at}/subscription/again/skip_all", None, "red").status == 403
    assert teams.told("red", "lookup", topic=topic) == ServerError.AUTHORIZATION
    secret = teams.token("root", secrets.token_bytes(32))
    raw, answer = teams.enter(secret)
    with raw:
        assert answer.error.error == ServerError.AUTHENTICATION
    # A line is written beside the answer, and lines are in the order of what they tell.
    eventually(lambda: [*audited_lines(teams.folder)][-1]["what"] == "connect", "the audit has not all of it")
    lines = list(audited_lines(teams.folder))
    told = [
        (line["role"], line["what"], line["subscription"], line["outcome"])
        for line in lines
        if line["topic"] == "blue..ns..written"
    ]
    assert told == [
        ("blue", "create topic", "", "done"),
        ("blue", "unsubscribe", "mine", "done"),
        ("blue", "PUT subscription", "again", "done"),
        ("red", "POST subscription/skip_all", "again", "refused"),
        ("red", "lookup", "", "refused"),
    ]
    assert lines[-1]["what"] == "connect"
    text = json.dumps(lines)
    assert all(part not in text for part in secret.split("."))
    assert all(line["address"].startswith("127.0.0.1:") for line in lines)
    granted = {(line["role"], line["what"]) for line in lines if line["topic"] == "blue/ns"}
    assert ("blue-chief", "POST namespace/permissions/blue") in granted
