"""Asking as Pulsar's tools do."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from email.message import Message
from typing import Any, NamedTuple

BASE = "/admin/v2/persistent/public/default"


class Answer(NamedTuple):
    """Status, body (JSON where it is some) and headers."""

    status: int
    body: Any
    headers: Message


@dataclass(frozen=True)
class Tool:
    """port: where tools connect. service_url: where clients do. sealed: what TLS is spoken with; None in clear text."""

    port: int
    service_url: str
    sealed: ssl.SSLContext | None = None

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """The answer to a request, whose body goes as JSON."""
        return self.ask_raw(method, path, None if body is None else json.dumps(body), **headers)

    def ask_raw(self, method: str, path: str, sent: str | None, **headers: str) -> Answer:
        """The same with a body as it is."""
        if self.sealed is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        else:
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=120, context=self.sealed)
        connection.request(
            method, path, None if sent is None else sent.encode(), {"Content-Type": "application/json", **headers}
        )
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        kind = answer.headers.get_content_type()
        return Answer(answer.status, json.loads(data) if kind == "application/json" and data else data, answer.headers)

    def get(self, path: str) -> Any:
        """The body of what is there."""
        answer = self.ask("GET", path)
        assert answer.status in (200, 204), answer
        return answer.body
