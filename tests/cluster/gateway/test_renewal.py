"""Keys, passwords and certificates are renewed while a gateway runs."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
from pathlib import Path
from typing import Any

import jwt
import pytest

from sluice.cluster.gateway import renewal
from sluice.cluster.gateway.ports import TLS, port_of
from sluice.cluster.gateway.renewal import Renewed, RenewedAuthentication
from sluice.cluster.gateway.tokens import Rejected
from sluice.cluster.launch.embedded import running
from sluice.cluster.settings.options import ClusterOptions
from sluice.storage.errors import Invalid
from tests.cluster.gateway.clients import until
from tests.kit.certificates import Authority

pytestmark = pytest.mark.timeout(240)


def written(file: Path, data: bytes) -> Path:
    """A file as `mv` puts it there: whole."""
    new = file.with_suffix(".new")
    new.write_bytes(data)
    new.chmod(0o600)
    os.replace(new, file)
    return file


def token(key: bytes) -> bytes:
    return str(jwt.encode({"sub": "till"}, key, "HS256")).encode()


async def test_a_new_key_counts_and_the_old_one_does_not(tmp_path: Path) -> None:
    old, new = secrets.token_bytes(32), secrets.token_bytes(32)
    file = written(tmp_path / "token.key", old)
    known = RenewedAuthentication({"pulsar_token_key_file": str(file)})
    assert known.authenticate is not None
    await known.refresh()
    assert (await known.authenticate("token", token(old))).roles == ("till",)
    written(file, new)
    await known.refresh()
    assert (await known.authenticate("token", token(new))).roles == ("till",)
    with pytest.raises(Rejected):
        await known.authenticate("token", token(old))


@pytest.mark.parametrize("damage", ["short", "readable", "gone"])
async def test_a_bad_file_leaves_the_old_one_in_force(tmp_path: Path, damage: str) -> None:
    key = secrets.token_bytes(32)
    file = written(tmp_path / "token.key", key)
    known = RenewedAuthentication({"pulsar_token_key_file": str(file)})
    assert known.authenticate is not None
    if damage == "short":
        written(file, b"short")
    elif damage == "readable":
        written(file, secrets.token_bytes(32)).chmod(0o644)
    else:
        file.unlink()
    await known.refresh()
    assert known.problem.endswith("; what was there before is used further")
    assert str(file) in known.problem
    assert (await known.authenticate("token", token(key))).roles == ("till",)
    written(file, key)
    await known.refresh()
    assert known.problem == ""


async def test_files_that_do_not_change_are_not_read(tmp_path: Path) -> None:
    made: list[int] = []
    file = written(tmp_path / "x", b"x")
    renewed = Renewed([str(file)], lambda: made.append(1))
    for _ in range(3):
        await renewed.refresh()
    assert len(made) == 1
    with pytest.raises(Invalid):
        Renewed([], lambda: RenewedAuthentication({"pulsar_token_key_file": str(tmp_path / "none")}))


def test_a_certificate_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the authority whose certificates clients must show. A pair that does not fit is an alarm meanwhile."""
    monkeypatch.setattr(renewal, "LOOK_S", 0.05)
    first, second = (Authority(tmp_path, name) for name in ("first", "second"))
    names = {"certificate": tmp_path / "broker-now.pem", "key": tmp_path / "broker-now.key"}
    trust = tmp_path / "trusted.pem"

    def shown(authority: Authority, name: str) -> dict[str, Any]:
        pair = authority.issue(name)
        return {"certificate": pair.certificate, "key": pair.key}

    def put(what: str, source: str) -> None:
        written(names.get(what, trust), Path(source).read_bytes())

    def greeted(client: Authority, server: Authority, name: str) -> bool:
        context = ssl.create_default_context(cafile=server.trust)
        context.load_cert_chain(*client.issue(name))
        with socket.create_connection(("127.0.0.1", port_of(data, TLS)), timeout=60) as plain:
            try:
                with context.wrap_socket(plain, server_hostname="127.0.0.1") as sealed:
                    sealed.sendall(b"GET /admin/v2/brokers/version HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                    return sealed.recv(12) == b"HTTP/1.1 200"
            except (ssl.SSLError, ConnectionError):
                return False

    pair = shown(first, "broker-1")
    for what, source in pair.items():
        put(what, source)
    put("trust", first.trust)
    data = tmp_path / "data"
    tls: dict[str, Any] = {
        "pulsar_tls_port": 0,
        "pulsar_tls_certificate_file": str(names["certificate"]),
        "pulsar_tls_key_file": str(names["key"]),
        "pulsar_tls_trust_certs_file": str(trust),
    }
    with running(ClusterOptions(data_dir=data, pulsar_port=-1, **tls)):
        assert greeted(first, first, "client-1")
        assert not greeted(second, first, "client-2")
        new = shown(second, "broker-2")
        put("certificate", new["certificate"])
        until(lambda: greeted(first, first, "client-3"))
        put("key", new["key"])
        until(lambda: greeted(first, second, "client-4"))
        put("trust", second.trust)
        until(lambda: greeted(second, second, "client-5"))
        assert not greeted(first, second, "client-6")
