"""Checks certificates, keys, catalogs and the addresses for Pulsar's clients before anything is started.

What is wrong is one line, where a person still reads it.
"""

from __future__ import annotations

from collections.abc import Collection

from sluice.cluster.gateway.ports import advertised_host, check_bound, wanted_ports
from sluice.cluster.launch.attach import own_addresses
from sluice.cluster.settings.options import ClusterOptions
from sluice.storage.errors import Invalid

EVERYWHERE = ("node", "0.0.0.0", "::")
"""What may be the bind address on every machine."""


def check_safeguards(options: ClusterOptions) -> None:
    """Raises Invalid if a key, a certificate, a catalog or an address that the options name cannot be used."""
    settings = options.settings()
    if any(settings[name] for name in ("tls_trust_certs_file", "tls_certificate_file", "tls_key_file")):
        from sluice.cluster.wire.net import check_tls

        check_tls(settings)
    if wanted_ports(settings):
        from sluice.cluster.gateway.tls import context_of

        context_of(settings)
        advertised_host(settings)
        check_bound(settings)
    names = (
        "pulsar_token_key_file", "pulsar_password_file", "authorization_enabled", "pulsar_anonymous_role",
        "super_user_roles", "viewer_roles",
    )  # fmt: skip
    if any(settings[name] for name in names):
        from sluice.cluster.gateway.authentication import authenticate_by, authorization_of

        authenticate_by(settings)
        authorization_of(settings)
    if options.iceberg_catalog:
        from sluice.cluster.history.tables import check_catalog

        check_catalog(options.iceberg_catalog)


def check_machines(options: ClusterOptions, addresses: Collection[str]) -> None:
    """Raises Invalid if the options do not fit a Ray cluster with nodes at these addresses.

    On several machines a process that listens on its loopback, or at the address of one of them, cannot be reached, and
    a store in the data folder is another one on each of them.
    """
    machines = len(set(addresses))
    if machines < 2:
        if options.bind_address not in (*EVERYWHERE, *own_addresses()):
            raise Invalid(f"{options.bind_address} is no address of this machine: leave bind_address out, or set node")
        return
    wanted = {
        "--set bind_address=node": options.bind_address not in EVERYWHERE,
        "--set metadata=s3://BUCKET/PREFIX": not options.metadata,
        "--objects s3://BUCKET/PREFIX": not options.objects,
    }
    lacking = [option for option, needed in wanted.items() if needed]
    if lacking:
        raise Invalid(
            f"the Ray cluster has {machines} machines, which have to reach each other and to share their stores:"
            f" add {' '.join(lacking)}"
        )
