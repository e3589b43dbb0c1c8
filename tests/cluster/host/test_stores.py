"""The stores as actors see them: URLs, repetition of what is harmless, and the ports they implement."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from sluice.actors.ports import Meta, Objects, Version
from sluice.cluster.host import store_ports
from sluice.cluster.host.store_ports import ATTEMPTS, MOST_TOGETHER, AsyncMeta, AsyncObjects
from sluice.cluster.host.stores import check_stores, open_metadata, open_objects
from sluice.storage.errors import AccessDenied, Corrupt, Invalid, NotFound, Unavailable
from sluice.storage.format.frame import Buffer
from sluice.storage.stores.metadata import MemoryMetadata, NewVersion, Record
from sluice.storage.stores.metadata_objects import ObjectMetadata
from sluice.storage.stores.metadata_sqlite import SqliteMetadata
from sluice.storage.stores.objects import LocalObjects, MemoryObjects
from sluice.storage.stores.s3 import S3Objects
from tests.s3server import S3Server, s3_credentials, s3_server  # noqa: F401  # fixtures

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_ports, "FIRST_PAUSE_MS", 0)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("memory:", MemoryObjects),
        ("file://{folder}/a b", LocalObjects),
        ("file://{folder}/a%20b", LocalObjects),
        ("{folder}/plain", LocalObjects),
        ("s3://some-bucket", S3Objects),
        ("s3://some-bucket/some/prefix/", S3Objects),
    ],
)
def test_a_url_names_an_object_store(tmp_path: Path, url: str, kind: type) -> None:
    objects = open_objects(url.format(folder=tmp_path), "http://127.0.0.1:9")
    assert type(objects.store) is kind
    if isinstance(objects.store, LocalObjects):
        assert objects.store.folder.parent == tmp_path
        assert objects.store.folder.name in ("a b", "plain")
    objects.close()


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("memory:", MemoryMetadata),
        ("sqlite://{folder}/m.db", SqliteMetadata),
        ("{folder}/plain", SqliteMetadata),
        ("file://{folder}/plain", SqliteMetadata),
        ("s3://some-bucket/meta", ObjectMetadata),
    ],
)
def test_a_url_names_a_metadata_store(tmp_path: Path, url: str, kind: type) -> None:
    metadata = open_metadata(url.format(folder=tmp_path), "http://127.0.0.1:9")
    assert type(metadata.store) is kind
    metadata.close()
    if kind is SqliteMetadata:
        assert (tmp_path / "m.db").exists() or (tmp_path / "plain" / "metadata.db").exists()


@pytest.mark.parametrize(
    "url",
    [
        *("", "gopher://x", "s3://", "s3:///prefix", "file://", "file://host/path", "memory://x", "sqlite://"),
        *("s3://key:secret@bucket/prefix", "s3://bucket/a?b=c", "s3://Bad_Bucket", "s3://bucket/../up"),
    ],
)
def test_other_urls_are_refused_with_the_expected_forms(url: str) -> None:
    for opener in (open_objects, open_metadata):
        with pytest.raises(Invalid) as caught:
            opener(url, "http://127.0.0.1:9")
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "endpoint", "error", "told"),
    [
        ("ftp://somewhere", None, Invalid, "names no store"),
        ("s3://some-bucket", "127.0.0.1:9", Invalid, "the S3 endpoint is http://HOST:PORT"),
        ("s3://S", "http://127.0.0.1:9", Invalid, "'S' is not a bucket name"),
    ],
)
def test_bad_stores_are_named_before_anything_starts(
    url: str, endpoint: str | None, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        check_stores(("", url), endpoint)


def test_objects_do_not_live_in_sqlite() -> None:
    with pytest.raises(Invalid, match="SQLite"):
        open_objects("sqlite:///tmp/x")


async def test_the_ports_are_those_that_actors_expect(tmp_path: Path) -> None:
    metadata = open_metadata(str(tmp_path))
    objects = open_objects(str(tmp_path / "objects"))
    meta_port: Meta = metadata
    objects_port: Objects = objects
    await metadata.probe()
    await objects.probe()
    assert await meta_port.read("a") is None
    assert await meta_port.create("a", 1, b"x")
    assert not await meta_port.create("a", 1, b"y")
    assert await meta_port.read("a") == Version(1, b"x")
    assert await meta_port.keys("") == ["a"]
    await meta_port.remove("a")
    assert await meta_port.read("a") is None
    assert await objects_port.put("a/b", memoryview(b"hello"))
    assert not await objects_port.put("a/b", b"other")
    assert await objects_port.get("a/b", 1, 3) == b"ell"
    assert await objects_port.names("a") == ["a/b"]
    await objects_port.delete("a/b")
    with pytest.raises(NotFound):
        await objects_port.get("a/b")
    metadata.close()
    objects.close()


async def test_many_calls_run_at_once_and_one_of_them_wins(tmp_path: Path) -> None:
    metadata = open_metadata(str(tmp_path))
    won = await asyncio.gather(*[metadata.create("a", 1, b"%d" % racer) for racer in range(20)])
    assert sum(won) == 1
    assert await metadata.read("a") == Version(1, b"%d" % won.index(True))
    metadata.close()


class _Flaky(MemoryObjects):
    """Unavailable for the first `failures` calls of each kind."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.calls: dict[str, int] = {}

    def _call(self, kind: str) -> None:
        self.calls[kind] = self.calls.get(kind, 0) + 1
        if self.calls[kind] <= self.failures:
            raise Unavailable("not now")

    def put(self, name: str, data: Buffer) -> bool:
        self._call("put")
        return super().put(name, data)

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self._call("get")
        return super().get(name, start, length)

    def names(self, prefix: str) -> list[str]:
        self._call("names")
        return super().names(prefix)

    def delete(self, name: str) -> None:
        self._call("delete")
        super().delete(name)


async def test_harmless_calls_are_repeated_and_a_put_is_not() -> None:
    flaky = _Flaky(ATTEMPTS - 1)
    objects = AsyncObjects(flaky)
    MemoryObjects.put(flaky, "a", b"x")
    assert await objects.get("a") == b"x"
    assert await objects.names("") == ["a"]
    await objects.delete("a")
    assert flaky.calls == {"get": ATTEMPTS, "names": ATTEMPTS, "delete": ATTEMPTS}
    with pytest.raises(Unavailable):
        await objects.put("b", b"x")
    assert flaky.calls["put"] == 1
    objects.close()


async def test_repetition_is_bounded_and_for_unavailable_alone() -> None:
    flaky = _Flaky(ATTEMPTS)
    objects = AsyncObjects(flaky)
    with pytest.raises(Unavailable):
        await objects.get("a")
    assert flaky.calls["get"] == ATTEMPTS
    flaky.calls["get"] = flaky.failures
    with pytest.raises(NotFound):
        await objects.get("a")
    assert flaky.calls["get"] == ATTEMPTS + 1
    objects.close()


async def test_a_store_that_says_invalid_is_unavailable_to_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor would hand it to a client, who takes its request for wrong; only what is asked can be Invalid."""

    def refuse(*_: object) -> None:
        raise Invalid("wrong bucket (HTTP 301)")

    metadata, objects = AsyncMeta(MemoryMetadata()), AsyncObjects(MemoryObjects())
    for name in ("read", "create", "keys", "remove"):
        monkeypatch.setattr(metadata.store, name, refuse)
    for name in ("put", "get", "names", "delete"):
        monkeypatch.setattr(objects.store, name, refuse)
    for call in (
        lambda: metadata.read("a"), lambda: metadata.create("a", 1, b""), lambda: metadata.keys(""),
        lambda: metadata.remove("a"), lambda: objects.put("a", b""), lambda: objects.get("a"),
        lambda: objects.names(""), lambda: objects.delete("a"),
    ):  # fmt: skip
        with pytest.raises(Unavailable, match="the store refuses: wrong bucket"):
            await call()
    for call in (
        lambda: metadata.read("../a"), lambda: metadata.create("../a", 1, b""), lambda: metadata.keys("!"),
        lambda: metadata.remove("../a"), lambda: objects.put("../a", b""), lambda: objects.get("a", -1),
        lambda: objects.names("!"), lambda: objects.delete("../a"),
    ):  # fmt: skip
        with pytest.raises(Invalid):
            await call()
    metadata.close()
    objects.close()


async def test_metadata_reads_are_repeated_and_creates_are_not() -> None:
    class Flaky(MemoryMetadata):
        reads = creates = 0

        def read(self, key: str) -> Record | None:
            self.reads += 1
            return self._maybe(self.reads, lambda: super(Flaky, self).read(key))

        def create(self, key: str, number: int, value: bytes) -> bool:
            self.creates += 1
            return bool(self._maybe(self.creates, lambda: super(Flaky, self).create(key, number, value)))

        def _maybe(self, count: int, call: Callable[[], T]) -> T:
            if count == 1:
                raise Unavailable("not now")
            return call()

    flaky = Flaky()
    metadata = AsyncMeta(flaky)
    assert await metadata.read("a") is None
    assert flaky.reads == 2
    with pytest.raises(Unavailable):
        await metadata.create("a", 1, b"x")
    assert flaky.creates == 1
    metadata.close()


@pytest.mark.parametrize(
    ("endpoint", "warned"),
    [
        ("http://10.1.2.3:9000", True), ("http://minio.internal:9000", True), ("https://10.1.2.3:9000", False),
        ("http://127.0.0.1:9000", False), ("http://localhost:9000", False), ("http://[::1]:9000", False), (None, False),
    ],
)  # fmt: skip
def test_plain_http_beyond_this_machine_is_warned_of(
    endpoint: str | None, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning comes before anything is sent, whether an option or the environment names the server."""
    monkeypatch.setattr("sluice.storage.stores.objects.probe", lambda store: None)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    check_stores(("", "s3://bucket/prefix"), endpoint)
    if endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
        check_stores(("s3://bucket/prefix",), None)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (2 * warned)
    assert all("without TLS" in record.message for record in caplog.records)


@pytest.mark.s3
def test_an_s3_server_is_tried_before_anything_starts(
    s3_server: S3Server,  # noqa: F811
    s3_credentials: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s3_server.make_bucket("tried")
    check_stores(("", "s3://tried/prefix"), s3_server.endpoint)
    assert "Contents" not in s3_server.client().list_objects_v2(Bucket="tried"), "nothing of the trial stays"
    with pytest.raises(AccessDenied, match="there is no bucket 'nothere' at"):
        check_stores(("s3://nothere",), s3_server.endpoint)
    if s3_server.kind == "minio":  # ministack accepts everybody
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
        with pytest.raises(AccessDenied, match="credentials are not accepted for bucket 'tried'"):
            check_stores(("s3://tried",), s3_server.endpoint)


class _Counting(SqliteMetadata):
    """Counts the transactions that write; the first one waits until the test lets it go."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.groups: list[int] = []
        self.first_began, self.first_may_end = threading.Event(), threading.Event()

    def create_many(self, versions: Sequence[NewVersion]) -> list[bool]:
        self.groups.append(len(versions))
        self.first_began.set()
        self.first_may_end.wait(10)
        return super().create_many(versions)

    def read_many(self, keys: Sequence[str]) -> list[Record | Corrupt | None]:
        self.groups.append(len(keys))
        self.first_began.set()
        self.first_may_end.wait(10)
        return super().read_many(keys)


async def test_versions_written_together_have_outcomes_of_their_own(tmp_path: Path) -> None:
    store = _Counting(tmp_path / "meta.db")
    metadata = AsyncMeta(store)
    first = asyncio.create_task(metadata.create("first", 1, b"a"))
    assert await asyncio.to_thread(store.first_began.wait, 10)
    others = [asyncio.create_task(metadata.create(f"record/{number % 10}", 1, b"b")) for number in range(20)]
    given_up = asyncio.create_task(metadata.create("given-up", 1, b"c"))
    await asyncio.sleep(0)
    given_up.cancel()
    store.first_may_end.set()
    assert await first
    assert await asyncio.gather(*others) == [True] * 10 + [False] * 10
    assert store.groups == [1, 21]
    assert await metadata.read("given-up") == Version(1, b"c")
    with pytest.raises(Invalid, match="numbered from 1"):
        await metadata.create("first", 0, b"")
    store.close()
    with pytest.raises(Unavailable):
        await metadata.create("first", 2, b"d")
    metadata.close()


async def test_records_read_together_have_outcomes_of_their_own(tmp_path: Path) -> None:
    store = _Counting(tmp_path / "meta.db")
    store.first_may_end.set()
    assert store.create_many([("good", 1, b"g"), ("bad", 1, b"b")]) == [True, True]
    with contextlib.closing(sqlite3.connect(tmp_path / "meta.db")) as other, other:
        other.execute("UPDATE versions SET crc = crc + 1 WHERE key = 'bad'")
    store.first_may_end.clear()
    store.first_began.clear()
    store.groups.clear()
    metadata = AsyncMeta(store)
    first = asyncio.create_task(metadata.read("good"))
    assert await asyncio.to_thread(store.first_began.wait, 10)
    others = [asyncio.create_task(metadata.read(key)) for key in ["bad", "good", "absent"] * 400]
    store.first_may_end.set()
    assert await first == Version(1, b"g")
    answers = await asyncio.gather(*others, return_exceptions=True)
    assert [answer for answer in answers if not isinstance(answer, Corrupt)] == [Version(1, b"g"), None] * 400
    assert [isinstance(answer, Corrupt) for answer in answers] == [True, False, False] * 400
    assert store.groups == [1, MOST_TOGETHER, 200]
    metadata.close()
