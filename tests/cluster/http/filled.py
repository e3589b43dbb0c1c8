"""A cluster in a process of its own with much to tell by HTTP, and every path that it answers there."""

from __future__ import annotations

import itertools
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psutil

import sluice
from sluice.cluster.client.client import Client
from sluice.cluster.gateway.ports import WEB, port_of
from sluice.cluster.gateway.tokens import make_key, make_token
from sluice.cluster.http.guard import PORT_FILE, TOKEN_FILE
from sluice.cluster.http.responses import large
from sluice.cluster.launch import launch, standalone
from sluice.cluster.launch.discovery import process_of
from sluice.cluster.node.folder import read_state
from tests.cluster.admin.asking import Tool
from tests.cluster.admin.test_rights import application
from tests.cluster.helpers import values

ROLES = ("root", "second", "third", "fourth")
"""Roles that may do everything."""
PARTITIONS, SCHEMAS, NAMES, MESSAGES = 200, 40, 800, 2_000
NAME, ROLE = "x" * 120, "é" * 250
NAMESPACE = "wide/wide"
VALUES = {
    "tenant": ["public", "wide"],
    "namespace": ["default", "wide"],
    "topic": ["orders", "large"],
    "subscription": ["billing"],
    "kind": ["persistent"],
    "cluster": ["sluice"],
    "ledger": ["1"],
    "entry": ["0"],
    "number": ["1"],
    "time": ["0"],
    "version": ["0"],
}
WATCHED = "?topic=orders&subscription=billing"
QUERIES = {"explain": "?key=k", "events": WATCHED, "past": f"{WATCHED}&at={1 << 42}"}
_PARAMETER, _WORDS = re.compile(r"{(\w+)}"), re.compile(r"\(\?P<(\w+)>([\w\\|-]+)\)")


class Filled(NamedTuple):
    """web: the port of Pulsar's tools, which each of the roles has a token for. admin: the port of the operator."""

    process: psutil.Process
    client: Client
    web: int
    admin: int
    token: str
    roles: tuple[str, ...]

    def size(self, path: str) -> int:
        """The bytes of the answer to the operator, 0 if that is a refusal."""
        while True:
            request = urllib.request.Request(f"http://127.0.0.1:{self.admin}{path}")
            request.add_header("Authorization", f"Bearer {self.token}")
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return len(answer.read())
            except urllib.error.HTTPError as refused:
                if refused.code not in (429, 503):  # an owner that has just come knows little yet
                    return 0

    def do(self, method: str, path: str, body: Any = None) -> None:
        """Change something, which succeeds."""
        sent = None if body is None else json.dumps(body, ensure_ascii=False)
        answer = Tool(self.admin, "").ask_raw(method, path, sent, Authorization=f"Bearer {self.token}")
        assert answer.status in (202, 204), (method, path[:80], answer.status, answer.body)


@contextmanager
def filled(folder: Path) -> Iterator[Filled]:
    """Start a cluster whose answers have up to several MB."""
    key = folder.parent / "token.key"
    make_key(key)
    standalone.up(
        values(
            folder,
            pulsar_port=0,
            pulsar_web_port=0,
            pulsar_token_key_file=str(key),
            authorization_enabled=True,
            super_user_roles=",".join(ROLES),
        )
    )
    try:
        state = read_state(folder)
        process = None if state is None else process_of(state)
        assert process is not None
        admin, token = int((folder / PORT_FILE).read_text()), (folder / TOKEN_FILE).read_text()
        roles = tuple(make_token(key, {"sub": role}) for role in ROLES)
        with sluice.connect(data_dir=folder) as client:
            cluster = Filled(process, client, port_of(folder, WEB), admin, token, roles)
            _fill_topics(cluster)
            _fill_policies(cluster)
            with ExitStack() as consumers:
                consumers.enter_context(client.subscribe("busy", "billing"))
                for number in range(3):  # each has room for a message of each partition, so the others wait
                    joining = client.subscribe(
                        "orders", "billing", consumer_name=f"{number}-{NAME}", receiver_queue_size=PARTITIONS
                    )
                    consumers.enter_context(joining).receive(timeout_millis=60_000)
                yield cluster
    finally:
        launch.down(folder)


def _fill_topics(cluster: Filled) -> None:
    client = cluster.client
    client.create_topic("orders", PARTITIONS)
    client.create_topic("large")
    client.create_topic("busy", PARTITIONS)
    for number in range(NAMES):
        client.create_topic(f"{number:03d}-{NAME}", 2)
    for topic in ("orders", "large"):
        client.subscribe(topic, "billing", initial_position="earliest").close()
    with client.create_producer("large") as producer:
        producer.send(bytes(4 << 20), partition_key="k")
    with client.create_producer("orders") as producer:
        for number in range(MESSAGES):
            later = timedelta(hours=1) if number % 2 else None
            producer.send_async(b"much", partition_key=f"{number}-{NAME}", deliver_after=later)
        producer.flush()
    for number in range(SCHEMAS):
        body = {"type": "BYTES", "schema": f"{number:03d}{'é' * 30_000}", "properties": {}}
        cluster.do("POST", "/admin/v2/schemas/public/default/orders/schema", body)


def _fill_policies(cluster: Filled) -> None:
    roles = [f"{number:03d}{ROLE}" for number in range(100)]
    for number in range(NAMES):
        cluster.do("PUT", f"/admin/v2/tenants/{number:03d}{NAME}", {})
    cluster.do("PUT", "/admin/v2/tenants/wide", {"adminRoles": roles})
    for number in range(NAMES):
        cluster.do("PUT", f"/admin/v2/namespaces/wide/{number:03d}{NAME}")
    granted = {"auth_policies": {"namespace_auth": {role: ["produce"] for role in roles}}}
    cluster.do("PUT", f"/admin/v2/namespaces/{NAMESPACE}", granted)
    cluster.do("POST", f"/admin/v2/namespaces/{NAMESPACE}/permissions/subscription/billing", roles)
    cluster.do("PUT", f"/admin/v2/persistent/{NAMESPACE}/orders", None)


def shapes() -> dict[str, bool]:
    """Every path that answers a GET, with its parameters in braces, but for those of few words; whether it is one of
    those whose answers may be large.
    """
    found = dict[str, bool]()
    for route in application().router.routes():
        if route.method == "GET" and route.resource is not None:
            pattern = getattr(route.resource.get_info().get("pattern"), "pattern", "")
            chosen = [(name, words.replace("\\", "").split("|")) for name, words in _WORDS.findall(pattern)]
            for taken in itertools.product(*(words for _, words in chosen)):
                path = route.resource.canonical
                for (name, _), value in zip(chosen, taken, strict=True):
                    path = path.replace(f"{{{name}}}", value)
                found.setdefault(path, getattr(route.handler, "__qualname__", "").startswith(f"{large.__name__}."))
    return found


def addresses(shape: str) -> Iterator[str]:
    """Return the paths of a shape that exist here."""
    names = _PARAMETER.findall(shape)
    for chosen in itertools.product(*(VALUES[name] for name in names)):
        path = shape
        for name, value in zip(names, chosen, strict=True):
            path = path.replace(f"{{{name}}}", value)
        yield path + QUERIES.get(shape.rpartition("/")[2], "")
