"""The files that keep strangers out, and where Pulsar's clients are sent to, looked at before anything is started.

What is wrong is one line, where a person still reads it.
"""

from __future__ import annotations

from cluster.options import ClusterOptions
from cluster.pulsar.ports import advertised_host, wanted_ports


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
