"""TLS for Pulsar's clients: the gateway's certificate, and the certificates that clients must show."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from sluice.actors.pulsar.conversation.gateway.gateway import Certified
from sluice.cluster.base.certificates import check_date, load_own, load_trusted
from sluice.storage.errors import Invalid

_OWN = ("pulsar_tls_certificate_file", "pulsar_tls_key_file")
_TRUST = "pulsar_tls_trust_certs_file"
TLS_FILES = (*_OWN, _TRUST)
"""Settings that name files."""


def context_of(settings: Mapping[str, Any]) -> ssl.SSLContext | None:
    """The listener's TLS context; None if no certificate is named. Raises Invalid in one line.

    With an authority to trust, nobody comes in without a certificate of it, unless who shows nothing has a role.
    """
    own = [(name, str(settings.get(name) or "")) for name in _OWN]
    trust = str(settings.get(_TRUST) or "")
    missing = [name for name, path in own if not path]
    if len(missing) == len(own) and not trust:
        return None
    if missing:
        raise Invalid(f"TLS for clients of Apache Pulsar needs a certificate and its key; {missing[0]} is not set")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # clients of Pulsar are built with older libraries, too
    load_own(context, *own)
    check_date(*own[0])
    if trust:
        load_trusted(context, _TRUST, trust)
        context.verify_mode = ssl.CERT_OPTIONAL if settings.get("pulsar_anonymous_role") else ssl.CERT_REQUIRED
    return context


def identity_of(certificate: Mapping[str, Any] | None) -> Certified | None:
    """Return the common name of a certificate that was verified, and when it ends; None without a name."""
    for part in (certificate or {}).get("subject", ()):
        for name, value in part:
            if name == "commonName" and value and certificate:
                return Certified(str(value), float(ssl.cert_time_to_seconds(certificate["notAfter"])))
    return None
