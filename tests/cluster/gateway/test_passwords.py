"""Clients with names and passwords: who is let in, by either protocol, and what is said of a file that is no use."""

from __future__ import annotations

import asyncio
import base64
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import jwt
import pulsar
import pytest

import sluice
from sluice.actors.pulsar.codec.frames import encode
from sluice.actors.pulsar.codec.protocol import ServerError, command
from sluice.cluster.gateway.authentication import authenticate_by, in_header
from sluice.cluster.gateway.passwords import MOST_CHECKS, PasswordAuthenticator
from sluice.cluster.gateway.ports import WEB, port_of, service_url
from sluice.cluster.gateway.tokens import Rejected
from sluice.cluster.launch.embedded import running
from sluice.cluster.settings.options import ClusterOptions
from sluice.storage.errors import Overloaded
from tests.cluster.admin.asking import Tool
from tests.cluster.gateway.raw import Raw

bcrypt = pytest.importorskip("bcrypt")
pytestmark = pytest.mark.timeout(240)
CLUSTERS = "/admin/v2/clusters"
WRONG = (b"till:wrong", b"till:", b"till", b"", b"nobody:sesame", b":sesame", b"till:sesame\0", b"till:x", b"\xff:\xff")


def line_of(name: str, password: str, cost: int = 4, prefix: bytes = b"2b") -> str:
    """A line of `htpasswd -B`."""
    hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost, b"2b")).replace(b"$2b$", b"$" + prefix + b"$", 1)
    return f"{name}:{hashed.decode()}"


def written(file: Path, *lines: str) -> Path:
    """A file that only its owner reads."""
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o600)
    return file


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Passwords, and the key of tokens."""
    folder = tmp_path_factory.mktemp("secrets")
    key = folder / "token.key"
    key.write_bytes(secrets.token_bytes(32))
    key.chmod(0o600)
    return written(
        folder / "passwords", "# tills", line_of("till", "sesame", prefix=b"2y"), "", line_of("other", "x")
    ), key


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, files: tuple[Path, Path]) -> Iterator[Path]:
    """The folder of a cluster that wants a token or a password."""
    folder = tmp_path_factory.mktemp("guarded")
    passwords, key = (str(file) for file in files)
    options = ClusterOptions(
        folder, pulsar_port=0, pulsar_web_port=0, pulsar_token_key_file=key, pulsar_password_file=passwords
    )
    with running(options):
        yield folder


def test_a_client_with_a_password_is_let_in(data: Path) -> None:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    for url in (service_url(data, 0), f"http://127.0.0.1:{port_of(data, WEB)}"):
        client = pulsar.Client(url, authentication=pulsar.AuthenticationBasic("till", "sesame"), logger=quiet)
        client.create_producer("till").send(b"paid")
        client.close()


def test_tokens_are_good_as_well(data: Path, files: tuple[Path, Path]) -> None:
    token = jwt.encode({"sub": "till"}, files[1].read_bytes(), "HS256")
    tool = Tool(port_of(data, WEB), "")
    assert tool.ask("GET", CLUSTERS, Authorization=f"Bearer {token}").status == 200


@pytest.mark.parametrize("said", WRONG)
def test_wrong_credentials_are_refused(data: Path, said: bytes) -> None:
    raw = Raw(service_url(data, 0))
    told = {"auth_method_name": "basic", "auth_data": said}
    raw.send(encode(command("connect", client_version="raw", protocol_version=20, **told)))
    assert raw.read().error.error == ServerError.AUTHENTICATION
    assert raw.closed()
    tool = Tool(port_of(data, WEB), "")
    assert tool.ask("GET", CLUSTERS, Authorization=f"Basic {base64.b64encode(said).decode()}").status == 401


@pytest.mark.parametrize("header", ["", "Basic", "Basic ???", "Digest dGlsbDpzZXNhbWU=", "Bearer dGlsbDpzZXNhbWU="])
def test_headers_that_say_nothing_are_refused(data: Path, header: str) -> None:
    assert Tool(port_of(data, WEB), "").ask("GET", CLUSTERS, Authorization=header).status == 401


def test_right_password_is_hashed_once(files: tuple[Path, Path]) -> None:
    """And what was wrong is looked at every time."""
    hashed: list[bytes] = []

    def check(given: bytes, wanted: bytes) -> bool:
        hashed.append(given)
        return bool(bcrypt.checkpw(given, wanted))

    known = PasswordAuthenticator(files[0], check)

    async def scenario() -> None:
        for _ in range(3):
            assert (await known(b"till:sesame")).role == "till"
        for _ in range(2):
            with pytest.raises(Rejected):
                await known(b"till:sesamE")
        assert hashed == [b"sesame", b"sesamE", b"sesamE"]

    asyncio.run(scenario())


def test_a_way_that_is_not_set_is_no_way_in(files: tuple[Path, Path]) -> None:
    passwords, key = (str(file) for file in files)
    assert authenticate_by({"pulsar_token_key_file": "", "pulsar_password_file": ""}) is None
    for settings, method in (({"pulsar_token_key_file": key}, "basic"), ({"pulsar_password_file": passwords}, "token")):
        known = authenticate_by(settings)
        assert known is not None
        with pytest.raises(Rejected, match="this broker needs a"):
            asyncio.run(known(method, b"till:sesame"))  # type: ignore[arg-type]
    assert in_header(f"basic {base64.b64encode(b'a:b').decode()}") == ("basic", b"a:b")


def test_fault_in_the_file_is_told(tmp_path: Path) -> None:
    good = line_of("till", "sesame")
    wrong = [
        (written(tmp_path / "md5", good, "till:$apr1$ewhIqTWQ$TjjK8xoj1zWqMYcLkrGZE0"), "line 2 .*: make it with"),
        (written(tmp_path / "short", good[:-1]), "line 1 .*: make it with"),
        (written(tmp_path / "nobody", "# none"), "has no users"),
        (written(tmp_path / "dear", good.replace("$04$", "$13$")), "costs 13, and 12 is the most"),
        (tmp_path / "missing", "cannot be read"),
    ]
    for file, said in wrong:
        with pytest.raises(sluice.Invalid, match=said):
            PasswordAuthenticator(file)
    open_to_all = written(tmp_path / "open", good)
    open_to_all.chmod(0o644)
    with pytest.raises(sluice.Invalid, match="readable by others"):
        PasswordAuthenticator(open_to_all)


def test_client_that_has_gone_is_not_verified(tmp_path: Path) -> None:
    """A waiting verification is dropped when its client leaves, so others need not wait for it; few may wait."""
    busy, go, compared = threading.Event(), threading.Event(), []

    def check(given: bytes, hashed: bytes) -> bool:
        compared.append(given)
        busy.set()
        assert go.wait(60)
        return False

    async def main() -> None:
        known = PasswordAuthenticator(written(tmp_path / "passwords", line_of("till", "sesame")), check)

        async def guess(number: int) -> None:
            with pytest.raises(Rejected):
                await known(b"till:%d" % number)

        guesses = [asyncio.create_task(guess(number)) for number in range(MOST_CHECKS)]
        await asyncio.to_thread(busy.wait, 60)
        with pytest.raises(Overloaded):
            await known(b"till:late")
        for each in guesses[1:]:
            each.cancel()
        await asyncio.gather(*guesses[1:], return_exceptions=True)
        last = asyncio.create_task(guess(1_000))
        go.set()
        await asyncio.gather(guesses[0], last)
        assert compared == [b"0", b"1000"]

    asyncio.run(main())
