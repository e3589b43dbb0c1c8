"""Unchanged clients over TLS: who is shown what, who must show something, and who is turned away."""

from __future__ import annotations

import http.client
import secrets
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import jwt
import pulsar
import pytest

import sluice
from sluice.actors.pulsar.codec.frames import Cutter, encode
from sluice.actors.pulsar.codec.protocol import Command, command, parse
from sluice.actors.pulsar.conversation.gateway.gateway import Gateway
from sluice.cluster.gateway.listener import _Socket
from sluice.cluster.gateway.ports import PLAIN, TLS, port_of, service_url
from sluice.cluster.gateway.tls import context_of, identity_of
from sluice.cluster.launch.embedded import running
from sluice.cluster.settings.connection_limits import OpenConnections
from sluice.cluster.settings.options import ClusterOptions
from tests.cluster.gateway.clients import EARLIEST, PATIENCE
from tests.cluster.gateway.raw import HELLO, Raw
from tests.kit.certificates import Authority

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for the certificates and keys of these tests."""
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    """Return the authority that both sides trust."""
    return Authority(folder)


@pytest.fixture(scope="module")
def shown(authority: Authority) -> dict[str, Any]:
    """The settings of a gateway that clients are to trust at 127.0.0.1."""
    pair = authority.issue("broker")
    return {"pulsar_tls_port": 0, "pulsar_tls_certificate_file": pair.certificate, "pulsar_tls_key_file": pair.key}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, shown: dict[str, Any]) -> Iterator[Path]:
    """The data folder of a cluster with both ports."""
    data = tmp_path_factory.mktemp("both")
    with running(ClusterOptions(data_dir=data, pulsar_port=0, **shown)):
        yield data


@pytest.fixture(scope="module")
def key(folder: Path) -> bytes:
    """The secret of tokens, which lies in the file `token.key`."""
    secret = secrets.token_bytes(32)
    (folder / "token.key").write_bytes(secret)
    (folder / "token.key").chmod(0o600)
    return secret


@pytest.fixture(scope="module")
def strict(
    tmp_path_factory: pytest.TempPathFactory, shown: dict[str, Any], authority: Authority, folder: Path, key: bytes
) -> Iterator[str]:
    """Yield the URL of a cluster that speaks nothing but TLS, and wants a certificate and one of two proofs."""
    data = tmp_path_factory.mktemp("strict")
    more: dict[str, Any] = {
        "pulsar_tls_trust_certs_file": authority.trust,
        "pulsar_token_key_file": str(folder / "token.key"),
    }
    with running(ClusterOptions(data_dir=data, pulsar_port=-1, **(shown | more))):
        assert port_of(data) == 0
        yield service_url(data, 0, TLS)


def joined(url: str, **options: Any) -> pulsar.Client:
    """A client that says only what is wrong."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(url, logger=quiet, **{"operation_timeout_seconds": 60, **options})


def round_trip(client: pulsar.Client, topic: str) -> bytes:
    """Send a message, and return the payload that comes back."""
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    client.create_producer(topic).send(b"paid")
    message = consumer.receive(PATIENCE)
    consumer.acknowledge(message)
    client.close()
    return bytes(message.data())


def refused(url: str, **options: Any) -> None:
    """This client produces nothing."""
    client = joined(url, operation_timeout_seconds=3, **options)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("refused")
    client.close()


def test_a_client_trusts_the_certificate_and_its_name(both: Path, authority: Authority) -> None:
    """Also what lookups answer with is TLS, and has the name of the certificate."""
    options = {"tls_trust_certs_file_path": authority.trust, "tls_validate_hostname": True}
    assert round_trip(joined(service_url(both, 0, TLS), **options), "sealed") == b"paid"


def test_both_ports_serve_the_same_topics(both: Path, authority: Authority) -> None:
    plain = joined(service_url(both, 0, PLAIN))
    sealed = joined(service_url(both, 0, TLS), tls_trust_certs_file_path=authority.trust)
    consumer = sealed.subscribe("shared", "s", initial_position=EARLIEST)
    plain.create_producer("shared").send(b"x" * 3_000_000)
    assert consumer.receive(PATIENCE).data() == b"x" * 3_000_000
    plain.close()
    sealed.close()


def test_many_records_at_once_are_read(both: Path, authority: Authority) -> None:
    """Each command is a record of its own, and all of them are there when the gateway looks."""
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    sealed = ssl.create_default_context(cafile=authority.trust).wrap_bio(inward, outward, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", port_of(both, TLS)), timeout=PATIENCE / 1000) as opened:

        def done(step: Callable[[], Any]) -> Any:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    opened.sendall(outward.read())
                    came = opened.recv(65536)
                    assert came
                    inward.write(came)

        def said(count: int) -> list[Any]:
            opened.sendall(outward.read())
            answers: list[Any] = []
            while len(answers) < count:
                data = done(lambda: sealed.read(65536))
                answers += [parse(Command, frame.command) for frame in cutter.feed(data)]
            return answers

        cutter = Cutter()

        done(sealed.do_handshake)
        sealed.write(HELLO)
        assert said(1)[0].HasField("connected")
        for _ in range(50):
            sealed.write(encode(command("ping")))
        assert all(answer.HasField("pong") for answer in said(50))


def test_slices_of_a_read_lie_in_one_buffer() -> None:
    """As asyncio reads what is there in several records."""
    one = _Socket(cast(Gateway, None), OpenConnections(1, 1), lambda *_: None, memoryview(bytearray(6)))
    for at, piece in enumerate((b"or", b"de", b"rs")):
        one.get_buffer(-1)[2 * at :][:2] = piece
    assert bytes(one.get_buffer(-1)[:6]) == b"orders"


def test_a_client_that_trusts_others_does_not_connect(both: Path, folder: Path) -> None:
    refused(service_url(both, 0, TLS), tls_trust_certs_file_path=Authority(folder, "stranger").trust)


def test_a_plain_client_is_closed_and_nobody_feels_it(both: Path, authority: Authority) -> None:
    url = service_url(both, 0, TLS)
    raw = Raw(url)
    raw.send(b"\x00\x00\x00\x2a plain words")
    assert raw.closed()
    raw.close()
    assert round_trip(joined(url, tls_trust_certs_file_path=authority.trust), "calm") == b"paid"


def test_a_certificate_or_a_token_says_who_it_is(strict: str, authority: Authority, key: bytes) -> None:
    """A certificate of the authority is wanted in any case; with it the name in it counts, or a token."""
    trust = {"tls_trust_certs_file_path": authority.trust}
    till = authority.issue("till")
    by_certificate = pulsar.AuthenticationTLS(till.certificate, till.key)
    assert round_trip(joined(strict, authentication=by_certificate, **trust), "certified") == b"paid"
    token = str(jwt.encode({"sub": "till"}, key, "HS256"))
    shows = {"tls_certificate_file_path": till.certificate, "tls_private_key_file_path": till.key}
    by_token = joined(strict, authentication=pulsar.AuthenticationToken(token), **trust, **shows)
    assert round_trip(by_token, "with-token") == b"paid"


def test_without_a_certificate_nobody_comes_in(strict: str, authority: Authority, folder: Path, key: bytes) -> None:
    trust = {"tls_trust_certs_file_path": authority.trust}
    token = str(jwt.encode({"sub": "till"}, key, "HS256"))
    refused(strict, authentication=pulsar.AuthenticationToken(token), **trust)
    foreign = Authority(folder, "foreign").issue("foreign-till")
    refused(strict, authentication=pulsar.AuthenticationTLS(*foreign), **trust)
    known = authority.issue("nobody")
    shows = {"tls_certificate_file_path": known.certificate, "tls_private_key_file_path": known.key}
    refused(strict, **trust, **shows)


def test_by_http_a_token_counts_before_a_certificate(
    tmp_path: Path, shown: dict[str, Any], authority: Authority, folder: Path, key: bytes
) -> None:
    """As by the other protocol: a certificate that many share lets nobody do what his own token does not."""
    settings = {
        **shown,
        "pulsar_tls_trust_certs_file": authority.trust,
        "pulsar_token_key_file": str(folder / "token.key"),
        "authorization_enabled": True,
        "super_user_roles": "shared",
    }
    pair = authority.issue("shared")
    trusting = ssl.create_default_context(cafile=authority.trust)
    trusting.load_cert_chain(*pair)
    with running(ClusterOptions(data_dir=tmp_path, pulsar_port=-1, **settings)):

        def asked(**headers: str) -> int:
            browser = http.client.HTTPSConnection("127.0.0.1", port_of(tmp_path, TLS), context=trusting)
            browser.request("GET", "/admin/v2/tenants", headers=headers)
            status = browser.getresponse().status
            browser.close()
            return status

        token = str(jwt.encode({"sub": "till"}, key, "HS256"))
        assert asked() == 200
        assert asked(Authorization=f"Bearer {token}") == 403
        assert asked(Authorization=f"Bearer {token[:-4]}") == 401


def test_a_certificate_says_until_when_it_counts(folder: Path) -> None:
    """A connection ends with its certificate, as with a token: otherwise an expired certificate would count for
    ever.
    """
    pair = Authority(folder, "brief").issue("till")
    told = ssl._ssl._test_decode_cert(pair.certificate)  # type: ignore[attr-defined]
    identity = identity_of(told)
    assert identity is not None
    assert (identity.role, identity.ends) == ("till", float(ssl.cert_time_to_seconds(told["notAfter"])))
    assert identity_of(None) is None
    assert identity_of({"subject": ((("organizationName", "till"),),)}) is None


def test_with_a_role_for_those_who_show_nothing_they_come_in(
    tmp_path: Path, shown: dict[str, Any], authority: Authority, folder: Path, key: bytes
) -> None:
    """For what that role may do; a certificate of another authority is refused all the same."""
    settings = {
        **shown,
        "pulsar_tls_trust_certs_file": authority.trust,
        "pulsar_token_key_file": str(folder / "token.key"),
        "authorization_enabled": True,
        "super_user_roles": "till",
        "pulsar_anonymous_role": "anonymous",
    }
    trust = {"tls_trust_certs_file_path": authority.trust}
    with running(ClusterOptions(data_dir=tmp_path, pulsar_port=-1, **settings)):
        url = service_url(tmp_path, 0, TLS)
        refused(url, **trust)
        refused(url, authentication=pulsar.AuthenticationTLS(*Authority(folder, "other").issue("till")), **trust)
        till = authority.issue("till")
        by_certificate = pulsar.AuthenticationTLS(till.certificate, till.key)
        assert round_trip(joined(url, authentication=by_certificate, **trust), "certified") == b"paid"
        token = pulsar.AuthenticationToken(str(jwt.encode({"sub": "till"}, key, "HS256")))
        assert round_trip(joined(url, authentication=token, **trust), "with-token") == b"paid"


def test_fault_in_the_files_is_told(authority: Authority, shown: dict[str, Any]) -> None:
    over = authority.issue("broker-over", days=-1)
    wrong = [
        ({"pulsar_tls_certificate_file": "x"}, "pulsar_tls_key_file is not set"),
        ({"pulsar_tls_key_file": "x"}, "pulsar_tls_certificate_file is not set"),
        (shown | {"pulsar_tls_key_file": "none"}, "pulsar_tls_key_file none cannot be read"),
        ({"pulsar_tls_certificate_file": over[0], "pulsar_tls_key_file": over[1]}, "has expired: it ended at"),
        (shown | {"pulsar_tls_trust_certs_file": shown["pulsar_tls_key_file"]}, "holds no certificate in PEM"),
    ]
    for settings, said in wrong:
        with pytest.raises(sluice.Invalid, match=said):
            context_of(settings)
    assert context_of({}) is None


def test_a_taken_port_leaves_the_other_one(tmp_path: Path, shown: dict[str, Any], authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running(ClusterOptions(data_dir=tmp_path, pulsar_port=port, **shown)):
            assert port_of(tmp_path) == 0
            client = joined(service_url(tmp_path, 0, TLS), tls_trust_certs_file_path=authority.trust)
            assert round_trip(client, "alone") == b"paid"
