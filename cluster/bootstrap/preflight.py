"""Checks certificates, keys and the addresses for Pulsar's clients before anything is started.

What is wrong is one line, where a person still reads it.
"""

from __future__ import annotations

from collections.abc import Collection

from cluster.bootstrap.environment import is_loopback
from cluster.options import ClusterOptions
from cluster.pulsar.ports import advertised_host, wanted_ports
from storage.errors import Invalid


def check_safeguards(options: ClusterOptions) -> None:
    """Raises Invalid if a key, a certificate or an address that the options name cannot be used."""
    settings = options.settings()
    if any(settings[name] for name in ("tls_trust_certs_file", "tls_certificate_file", "tls_key_file")):
        from cluster.net import check_tls

        check_tls(settings)
    if wanted_ports(settings):
        from cluster.pulsar.tls import context_of

        context_of(settings)
        advertised_host(settings)
    if settings["pulsar_token_key_file"] or settings["pulsar_password_file"]:
        from cluster.pulsar.authentication import authenticate_by

        authenticate_by(settings)


def check_machines(options: ClusterOptions, addresses: Collection[str]) -> None:
    """Raises Invalid if the options do not fit a Ray cluster with nodes at these addresses.

    On several machines a process that listens on its loopback cannot be reached, and a store in the data folder is
    another one on each of them.
    """
    machines = len(set(addresses))
    if machines < 2:
        return
    wanted = {
        "--set bind_address=node": is_loopback(options.bind_address),
        "--set metadata=s3://BUCKET/PREFIX": not options.metadata,
        "--objects s3://BUCKET/PREFIX": not options.objects,
    }
    lacking = [option for option, needed in wanted.items() if needed]
    if lacking:
        raise Invalid(
            f"the Ray cluster has {machines} machines, which have to reach each other and to share their stores:"
            f" add {' '.join(lacking)}"
        )
