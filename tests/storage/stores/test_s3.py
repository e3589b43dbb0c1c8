"""S3: both conformance kits over moto and over a real server process, its errors, lost answers, and kills."""

from __future__ import annotations

import copy
import itertools
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, FlexibleChecksumError, ReadTimeoutError
from botocore.stub import Stubber
from moto import mock_aws

from sluice.storage.errors import AccessDenied, Corrupt, Invalid, NotFound, SluiceError, Unavailable
from sluice.storage.format.frame import Buffer
from sluice.storage.stores.metadata import Record
from sluice.storage.stores.metadata_objects import KEEP, TRIM_EVERY, ObjectMetadata
from sluice.storage.stores.objects import ObjectStore, probe
from sluice.storage.stores.s3 import S3Objects
from tests.conformance import metadata as metadata_kit
from tests.conformance import objects as objects_kit
from tests.s3server import S3Server, available_kinds, s3_credentials, s3_server  # noqa: F401 (fixtures)

BUCKET = "sluice"
_numbers = itertools.count()

pytestmark = pytest.mark.usefixtures("s3_credentials")


# -- moto: in this process, keeps nothing --------------------------------------------------------------------------


@pytest.fixture(scope="class")
def moto_store() -> Iterator[S3Objects]:
    """A store on a bucket of moto; a client takes long to make, so there is one for a whole kit."""
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        patch.setenv("AWS_ACCESS_KEY_ID", "any")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        store = S3Objects(BUCKET)
        store._client.create_bucket(Bucket=BUCKET)
        yield store


def _below(store: S3Objects, prefix: str) -> S3Objects:
    """The same client on another prefix."""
    other = copy.copy(store)
    other._prefix = prefix + "/"
    return other


@pytest.fixture
def moto(moto_store: S3Objects) -> Callable[[], S3Objects]:
    """A maker of stores on an empty prefix."""
    store = _below(moto_store, f"a/prefix-{next(_numbers)}")
    return lambda: store


class TestMotoObjects(objects_kit.ObjectStoreKit):
    """The object kit over moto, but for races: moto checks and writes in two steps, with threads between them."""

    @pytest.fixture
    def maker(self, moto: Callable[[], S3Objects]) -> objects_kit.Maker:
        """One client."""
        return moto


class TestMotoMetadata(metadata_kit.MetadataKit):
    """The metadata kit over moto, but for races."""

    many = 30
    window = KEEP

    @pytest.fixture
    def maker(self, moto: Callable[[], S3Objects]) -> metadata_kit.Maker:
        """One client, separate memories."""
        objects = moto()
        return lambda: ObjectMetadata(objects)


def test_two_prefixes_of_one_bucket_do_not_see_one_another(moto_store: S3Objects) -> None:
    one, other = _below(moto_store, "one"), _below(moto_store, "one-more")
    assert one.put("a", b"1")
    assert other.put("a", b"2")
    assert one.names("") == other.names("") == ["a"]
    assert moto_store.names("one") == ["one-more/a", "one/a"]


def test_keys_of_others_in_the_same_bucket_are_not_listed(moto: Callable[[], S3Objects]) -> None:
    store = moto()
    assert store.put("a", b"1")
    store._client.put_object(Bucket=BUCKET, Key=store._prefix + "notes.txt", Body=b"by hand")
    assert store.names("") == ["a"]


# -- real servers --------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(s3_server: S3Server, s3_credentials: None) -> Callable[[], S3Objects]:  # noqa: F811
    """A maker of stores on a prefix of its own on a running server."""
    s3_server.make_bucket(BUCKET)
    prefix = f"test-{next(_numbers)}"
    return lambda: S3Objects(BUCKET, prefix, s3_server.endpoint)


@pytest.mark.s3
class TestServerObjects(objects_kit.ObjectStoreKit, objects_kit.ObjectStoreRaces):
    """The object kit over MinIO and ministack."""

    race_rounds = 12

    @pytest.fixture
    def maker(self, fresh: Callable[[], S3Objects]) -> objects_kit.Maker:
        """A client for each handle."""
        return fresh


@pytest.mark.s3
class TestServerMetadata(metadata_kit.MetadataKit, metadata_kit.MetadataRaces):
    """The metadata kit over MinIO and ministack."""

    race_rounds = 8
    increments = 3
    many = 40
    window = KEEP

    @pytest.fixture(scope="class")
    def clients(self, s3_server: S3Server) -> list[S3Objects]:  # noqa: F811
        """Three for the whole kit, which its first test makes: that takes long."""
        return []

    @pytest.fixture
    def maker(self, fresh: Callable[[], S3Objects], clients: list[S3Objects]) -> metadata_kit.Maker:
        """Three clients in turn on an empty prefix, separate memories."""
        clients += [fresh() for _ in range(3 - len(clients))]
        prefix = f"kit-{next(_numbers)}"
        turns = itertools.cycle([_below(client, prefix) for client in clients])
        return lambda: ObjectMetadata(next(turns))


def _lose_answer(store: S3Objects, times: int) -> list[int]:
    """Let the next `times` requests have their effect, and lose the answers. Returns a list of what was sent."""
    session = store._client._endpoint.http_session
    send, sent = session.send, []

    def lossy(request: Any) -> Any:
        answer = send(request)
        sent.append(answer.status_code)
        if len(sent) <= times:
            raise ReadTimeoutError(endpoint_url=request.url)
        return answer

    session.send = lossy
    return sent


@pytest.mark.s3
def test_a_put_whose_answer_was_lost_is_not_told_that_it_lost(fresh: Callable[[], S3Objects]) -> None:
    store = fresh()
    sent = _lose_answer(store, 1)
    assert store.put("epoch/1", b"mine"), "it was created by this very put"
    assert sent == [200, 412, 200], "created; refused to the repetition; looked up"
    assert not store.put("epoch/1", b"mine"), "another put of the same content is another put"
    other = fresh()
    assert other.put("epoch/2", b"theirs")
    _lose_answer(store, 1)
    assert not store.put("epoch/2", b"mine")


@pytest.mark.s3
def test_a_server_that_stands_still_is_unavailable(s3_server: S3Server, fresh: Callable[[], S3Objects]) -> None:  # noqa: F811
    prefix = fresh()._prefix.strip("/")
    store = S3Objects(BUCKET, prefix, s3_server.endpoint, connect_seconds=0.3, read_seconds=0.3, attempts=1)
    assert store.put("a", b"x")
    s3_server.pause()
    try:
        for call in (lambda: store.get("a"), lambda: store.put("b", b"x"), lambda: store.names("")):
            with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
                call()
    finally:
        s3_server.resume()
    assert store.get("a") == b"x"


@pytest.mark.s3
def test_settings_that_are_wrong_are_named_in_one_line(
    s3_server: S3Server,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    fresh: Callable[[], S3Objects],
) -> None:
    with pytest.raises(AccessDenied, match="no bucket 'no-such-bucket'"):
        S3Objects("no-such-bucket", "", s3_server.endpoint).put("a", b"x")
    with pytest.raises(AccessDenied, match="no bucket 'no-such-bucket'"):
        probe(S3Objects("no-such-bucket", "", s3_server.endpoint))
    if s3_server.kind == "ministack":
        return  # it accepts any credentials
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    with pytest.raises(AccessDenied, match="credentials are not accepted") as caught:
        fresh().names("")
    assert "wrong-secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


# -- kills ---------------------------------------------------------------------------------------------------------


class _KillsAt:
    """An object store whose server is killed at effect number `at`, just before or just after it happens."""

    def __init__(self, server: S3Server, store: ObjectStore, at: int, *, after: bool) -> None:
        self.server, self.store, self.at, self.after = server, store, at, after
        self.count, self.size = 0, store.size
        self.armed = False

    def _effect(self, call: Callable[[], Any]) -> Any:
        self.count += self.armed
        if not self.armed or self.count != self.at:
            return call()
        if self.after:
            call()
        self.server.kill()
        try:
            return call() if not self.after else self._lost()
        finally:
            self.server.start()

    def _lost(self) -> Any:
        raise Unavailable("the server was killed before it could answer")

    def put(self, name: str, data: Buffer) -> bool:
        return bool(self._effect(lambda: self.store.put(name, data)))

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return bytes(self._effect(lambda: self.store.get(name, start, length)))

    def names(self, prefix: str) -> list[str]:
        return list(self._effect(lambda: self.store.names(prefix)))

    def delete(self, name: str) -> None:
        self._effect(lambda: self.store.delete(name))


@pytest.fixture(params=available_kinds() or ["none"])
def mortal(request: pytest.FixtureRequest, tmp_path: Path, s3_credentials: None) -> Iterator[S3Server]:  # noqa: F811
    """A server of its own for a test that kills it."""
    if request.param == "none":
        pytest.skip("neither MinIO nor ministack is installed")
    server = S3Server(request.param, tmp_path)
    server.start()
    try:
        server.make_bucket(BUCKET)
        server.client().put_object(Bucket=BUCKET, Key="marker")  # ministack forgets an empty bucket when it is killed
        yield server
    finally:
        server.kill()


@pytest.mark.s3
@pytest.mark.parametrize("after", [False, True])
def test_a_server_killed_between_two_effects_loses_no_version(mortal: S3Server, after: bool) -> None:
    """Version 20 is put, list and four deletes of old versions; the server dies around each of the six."""
    for at in range(1, 7):
        store = S3Objects(BUCKET, f"kill-{at}", mortal.endpoint, attempts=2, connect_seconds=1)
        dying = _KillsAt(mortal, store, at, after=after)
        metadata = ObjectMetadata(dying)
        for number in range(1, KEEP + TRIM_EVERY + 2):
            dying.armed = number >= KEEP + TRIM_EVERY
            value = b"%d" % number * 500
            try:
                assert metadata.create("owner", number, value)
            except Unavailable:
                newest = ObjectMetadata(store).read("owner")
                if newest != Record(number, value):
                    assert (0 if newest is None else newest.number) == number - 1
                    assert metadata.create("owner", number, value)
            assert ObjectMetadata(store).read("owner") == Record(number, value)
        assert dying.count >= at, "the server was not killed"


@pytest.mark.s3
def test_a_server_killed_under_load_keeps_confirmed_objects(mortal: S3Server) -> None:
    """Four writers put as fast as they can while the server is killed and restarted."""
    store = S3Objects(BUCKET, "load", mortal.endpoint, attempts=1, connect_seconds=1)
    stop = threading.Event()

    def content(name: str) -> bytes:
        return (name.encode() + b" ") * 3000

    def write(writer: int) -> list[str]:
        confirmed: list[str] = []
        for number in itertools.count():
            if stop.is_set():
                return confirmed
            name = f"{writer}/{number:06d}"
            try:
                if store.put(name, content(name)):
                    confirmed.append(name)
            except Unavailable:
                continue
        raise AssertionError

    with ThreadPoolExecutor(4) as threads:
        writers = [threads.submit(write, writer) for writer in range(4)]
        try:
            for goal in (40, 80, 120):
                _wait_for(lambda goal=goal: len(mortal_names(store)) >= goal)  # type: ignore[misc]
                mortal.kill()
                mortal.start()
        finally:
            stop.set()
        confirmed = [name for writer in writers for name in writer.result()]
    assert len(confirmed) >= 100
    for name in confirmed:
        assert store.get(name) == content(name)
    assert set(confirmed) <= set(store.names(""))


def mortal_names(store: S3Objects) -> list[str]:
    """Return the names of the objects, or none while the server is down."""
    try:
        return store.names("")
    except Unavailable:
        return []


def _wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
    raise AssertionError("the writers make no progress")


# -- errors, one by one --------------------------------------------------------------------------------------------


def _stubbed() -> tuple[S3Objects, Stubber]:
    store = S3Objects(BUCKET, "", "http://127.0.0.1:9")
    return store, Stubber(store._client)


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("InternalError", 500, Unavailable),
        ("ServiceUnavailable", 503, Unavailable),
        ("SlowDown", 503, Unavailable),
        ("", 502, Unavailable),
        ("TooManyRequests", 429, Unavailable),
        ("RequestTimeout", 400, Unavailable),
        ("NoSuchKey", 404, NotFound),
        ("404", 404, NotFound),
        ("NoSuchBucket", 404, AccessDenied),
        ("AccessDenied", 403, AccessDenied),
        ("403", 403, AccessDenied),
        ("InvalidAccessKeyId", 403, AccessDenied),
        ("SignatureDoesNotMatch", 403, AccessDenied),
        ("ExpiredToken", 400, AccessDenied),
        ("PermanentRedirect", 301, Invalid),
        ("MethodNotAllowed", 405, Invalid),
        ("NotImplemented", 501, Invalid),
    ],
)
def test_answers_of_the_server_become_errors_of_ours(code: str, status: int, error: type[SluiceError]) -> None:
    store, stubber = _stubbed()
    stubber.add_client_error("get_object", code, "some words", status)
    with stubber, pytest.raises(SluiceError) as caught:
        store.get("a")
    assert type(caught.value) is error
    assert BUCKET in str(caught.value)
    assert "\n" not in str(caught.value)


def _conflict() -> ClientError:
    response = {
        "Error": {"Code": "ConditionalRequestConflict", "Message": ""},
        "ResponseMetadata": {"HTTPStatusCode": 409, "RetryAttempts": 0},
    }
    return ClientError(response, "PutObject")  # type: ignore[arg-type]


class _Client:
    """Answers puts with a script, and heads with another."""

    def __init__(self, puts: list[Exception | None], heads: list[dict[str, Any] | Exception]) -> None:
        self.puts, self.heads = puts, heads
        self.tags: list[str] = []

    def put_object(self, *, Metadata: dict[str, str], **_: Any) -> None:  # noqa: N803
        self.tags.append(Metadata["sluice-put"])
        outcome = self.puts.pop(0)
        if outcome is not None:
            raise outcome

    def head_object(self, **_: Any) -> dict[str, Any]:
        outcome = self.heads.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


_ABSENT = ClientError(
    {"Error": {"Code": "404", "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": 404}},  # type: ignore[typeddict-item]
    "HeadObject",
)


def _scripted(puts: list[Exception | None], heads: list[dict[str, Any] | Exception]) -> tuple[S3Objects, _Client]:
    store = S3Objects(BUCKET, "", "http://127.0.0.1:9")
    client = _Client(puts, heads)
    store._client = client
    return store, client


def test_a_conflict_is_asked_again_until_it_is_decided() -> None:
    store, client = _scripted([_conflict(), None], [_ABSENT])
    assert store.put("a", b"x")
    assert len(client.tags) == 2
    assert client.tags[0] == client.tags[1], "a repetition is the same put"
    store, _ = _scripted([_conflict()], [{"Metadata": {"sluice-put": "somebody else's"}}])
    assert not store.put("a", b"x")
    store, _ = _scripted([_conflict()] * 4, [_ABSENT] * 4)
    with pytest.raises(Unavailable, match="busy"):
        store.put("a", b"x")


def test_an_object_without_a_tag_is_somebody_elses() -> None:
    store, _ = _scripted([_conflict()], [{}])
    assert not store.put("a", b"x")


@pytest.mark.parametrize("name", ["AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID"])
def test_credentials_that_cannot_be_sent_stand_in_no_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A secret that was read from a file ends with a line's end; Python refuses the header, and says its value."""
    for each in ("AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(each, "hidden-value" + ("\n" if each == name else ""))
    store = S3Objects("bucket", endpoint_url="http://127.0.0.1:9", attempts=1)
    for ask in (lambda: store.put("a", b"x"), lambda: store.get("a"), lambda: store.names("a")):
        with pytest.raises(AccessDenied, match="a letter that no request can have") as refused:
            ask()
        assert "hidden-value" not in "".join(traceback.format_exception(refused.value))


def test_no_credentials_at_all_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AccessDenied, match="AWS_ACCESS_KEY_ID"):
        S3Objects(BUCKET, "", "http://127.0.0.1:9").get("a")


@pytest.mark.parametrize("endpoint", ["nonsense", "ftp://127.0.0.1", "http://", "http://user:secret@127.0.0.1:9"])
def test_an_endpoint_that_cannot_be_one_is_invalid(endpoint: str) -> None:
    with pytest.raises(Invalid, match="http") as caught:
        S3Objects(BUCKET, "", endpoint)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("bucket", ["", "UPPER", "a", "with space", "a/b"])
def test_a_bucket_that_cannot_be_one_is_invalid(bucket: str) -> None:
    with pytest.raises(Invalid, match="bucket"):
        S3Objects(bucket, "", "http://127.0.0.1:9")


def test_unreachable_endpoint_is_unavailable_and_named() -> None:
    store = S3Objects(BUCKET, "", "http://127.0.0.1:9", attempts=1, connect_seconds=0.5)
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:9"):
        store.get("a")


def test_a_checksum_that_the_store_itself_refuses_is_corrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Objects(BUCKET, "", "http://127.0.0.1:9")

    def damaged(**_: Any) -> Any:
        raise FlexibleChecksumError(error_msg="expected this, found that")

    monkeypatch.setattr(store._client, "get_object", damaged)
    with pytest.raises(Corrupt, match="a in bucket"):
        store.get("a")


def test_a_server_that_ignores_the_range_still_gives_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Objects(BUCKET, "", "http://127.0.0.1:9")

    class Body:
        def read(self) -> bytes:
            return b"0123456789"

    monkeypatch.setattr(
        store._client, "get_object", lambda **_: {"Body": Body(), "ResponseMetadata": {"HTTPStatusCode": 200}}
    )
    assert store.get("a", 3, 4) == b"3456"
    assert store.get("a", 3) == b"3456789"
