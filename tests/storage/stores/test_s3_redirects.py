"""An S3 endpoint that redirects is told in one line, and what the library raises is an answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from sluice.storage.errors import Invalid, Unavailable
from sluice.storage.stores.s3 import S3Objects
from tests.s3server import s3_credentials  # noqa: F401 (fixture)
from tests.storage.stores.test_s3 import _scripted

BUCKET = "sluice"

pytestmark = pytest.mark.usefixtures("s3_credentials")


@pytest.fixture
def redirecting() -> Iterator[Callable[[int], str]]:
    """A maker of endpoints that answer everything with a redirect to https, as a proxy before MinIO does."""
    servers: list[HTTPServer] = []

    def start(status: int) -> str:
        class Redirects(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(status)
                self.send_header("Location", f"https://user:word@minio.example{self.path}")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_PUT = do_HEAD = do_DELETE = _answer  # noqa: N815 (the library's names)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        servers.append(HTTPServer(("127.0.0.1", 0), Redirects))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirecting_endpoint_is_refused_in_one_line(redirecting: Callable[[int], str], status: int) -> None:
    endpoint = redirecting(status)
    store = S3Objects(BUCKET, "", endpoint)
    calls: list[Callable[[], Any]] = [
        lambda: store.get("a"), lambda: store.put("a", b"x"), lambda: store.names(""), lambda: store.delete("a"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(Invalid, match=f"{endpoint} redirects to https://minio.example") as caught:
            call()
        assert "\n" not in str(caught.value)
        assert "word" not in str(caught.value)


@pytest.mark.parametrize("error", [RecursionError("deep"), KeyError("odd"), RuntimeError("a secret")])
def test_unknown_errors_of_the_library_are_answers(error: Exception) -> None:
    store, _ = _scripted([error], [])
    with pytest.raises(Unavailable, match=type(error).__name__) as caught:
        store.put("a", b"x")
    assert "secret" not in str(caught.value)
