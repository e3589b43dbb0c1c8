"""The ports for Pulsar's clients and tools: those that the settings name, and those that the gateway has.

The gateway leaves the latter in files of the data folder.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.cluster.base.version import COMMAND
from sluice.cluster.node.environment import LOOPBACK
from sluice.cluster.node.folder import replace_file
from sluice.storage.errors import Invalid, Unavailable

NODE = "node"
"""As pulsar_bind_address: the loopback, and the address by which Ray knows the gateway's machine."""
PLAIN, TLS, WEB, WEB_TLS = "pulsar", "pulsar+ssl", "http", "https"
"""The ways to connect, as they stand at the beginning of a service URL; the last two are those of Pulsar's tools."""
_FILES = {PLAIN: "pulsar-port", TLS: "pulsar-tls-port", WEB: "pulsar-web-port", WEB_TLS: "pulsar-web-tls-port"}
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,62})(\.[A-Za-z0-9][A-Za-z0-9-]{0,62})*")
_SETTINGS = {PLAIN: "pulsar_port", TLS: "pulsar_tls_port", WEB: "pulsar_web_port", WEB_TLS: "pulsar_web_tls_port"}
_WHO = {PLAIN: "client", TLS: "client", WEB: "tool", WEB_TLS: "tool"}


def wanted_ports(settings: Mapping[str, Any]) -> dict[str, int]:
    """The port of each way that settings want; none with TLS unless they name a certificate, and none for tools where
    clients have none of that kind. 0 is any free one.
    """
    pairs = [(PLAIN, WEB), (TLS, WEB_TLS)] if settings.get("pulsar_tls_certificate_file") else [(PLAIN, WEB)]
    wanted: dict[str, int] = {}
    for clients, tools in pairs:
        ports = {scheme: int(settings.get(_SETTINGS[scheme], -1)) for scheme in (clients, tools)}
        if ports[clients] >= 0:
            wanted |= {scheme: port for scheme, port in ports.items() if port >= 0}
    return wanted


def bound_hosts(settings: Mapping[str, Any], machine: str) -> list[str]:
    """The addresses at which a gateway listens. machine: the address by which Ray knows the gateway's machine."""
    bound = str(settings.get("pulsar_bind_address") or LOOPBACK)
    return list(dict.fromkeys([LOOPBACK, machine or LOOPBACK])) if bound == NODE else [bound]


def check_bound(settings: Mapping[str, Any]) -> None:
    """Raises Invalid if others than users of this machine could connect, and nobody asks who they are."""
    if str(settings.get("pulsar_bind_address") or LOOPBACK) == LOOPBACK:
        return
    if settings.get("pulsar_token_key_file") or settings.get("pulsar_password_file"):
        return
    if settings.get("pulsar_tls_trust_certs_file") and not {PLAIN, WEB} & wanted_ports(settings).keys():
        return
    raise Invalid(
        "pulsar_bind_address lets other machines connect to the gateways, which need to know who does: set"
        " pulsar_token_key_file, or pulsar_password_file, or pulsar_tls_trust_certs_file with pulsar_port=-1"
    )


def advertised_host(settings: Mapping[str, Any], machine: str = "") -> str:
    """The host that clients are told to connect to. machine: as of `bound_hosts`.

    Raises Invalid if it is neither a name nor an IPv4 address.
    """
    near = machine if settings.get("pulsar_bind_address") == NODE else ""
    host = str(settings.get("pulsar_advertised_address") or near or LOOPBACK)
    if not _HOST.fullmatch(host):
        raise Invalid(
            f"pulsar_advertised_address is the name or the IPv4 address of a host, without port or scheme, not {host!r}"
        )
    return host


def write_port(data_dir: Path, scheme: str, port: int) -> None:
    """Leave word of a port; 0 says that there is none."""
    replace_file(data_dir / _FILES[scheme], str(port).encode())


def forget_ports(data_dir: Path) -> None:
    """A cluster starts: what an earlier one has left is not its own."""
    for name in _FILES.values():
        (data_dir / name).unlink(missing_ok=True)


def port_of(data_dir: Path, scheme: str = PLAIN) -> int:
    """The port, 0 if none serves Pulsar's clients."""
    with contextlib.suppress(OSError, ValueError):
        return int((data_dir / _FILES[scheme]).read_text())
    return 0


def service_url(data_dir: Path, wanted: int, scheme: str = PLAIN) -> str:
    """The URL for clients. Raises Unavailable if the wanted port could not be had."""
    port = port_of(data_dir, scheme)
    if not port:
        raise Unavailable(f"port {wanted} is in use, and no Pulsar client can connect; give another pulsar_port")
    return f"{scheme}://{LOOPBACK}:{port}"


def pulsar_of(data_dir: Path, settings: Mapping[str, Any], machine: str = "") -> dict[str, str]:
    """Return the Pulsar part of the answer to the program that starts a cluster; empty if no client was to be served.

    machine: this one's address, as `bound_hosts` takes it.
    """
    host = bound_hosts(settings, machine)[-1]
    host = LOOPBACK if host == "0.0.0.0" else host
    wanted = wanted_ports(settings)
    if not wanted:
        return {}
    ports = {scheme: port_of(data_dir, scheme) for scheme in wanted}
    urls = {scheme: f"{scheme}://{host}:{port}" for scheme, port in ports.items() if port}
    clients = [url for scheme, url in urls.items() if _WHO[scheme] == "client"]
    tools = [url for scheme, url in urls.items() if _WHO[scheme] == "tool"]
    lines = [f"clients of Apache Pulsar connect to {' or '.join(clients)}"] if clients else []
    lines += [f"its tools to {' or '.join(tools)}"] if tools else []
    lines += [_missing(data_dir, scheme, wanted[scheme]) for scheme, port in ports.items() if not port]
    return {"pulsar": "; ".join(dict.fromkeys(lines))}


def _missing(data_dir: Path, scheme: str, wanted: int) -> str:
    if not (data_dir / _FILES[scheme]).exists():
        return f"no gateway for clients of Apache Pulsar runs on this machine yet; `{COMMAND} status` says why"
    return refusal(scheme, wanted)


def refusal(scheme: str, wanted: int) -> str:
    """One line for a port that could not be had."""
    who, setting = _WHO[scheme], _SETTINGS[scheme]
    return f"no {who} of Apache Pulsar can connect: port {wanted} is in use; choose another with --set {setting}=PORT"
