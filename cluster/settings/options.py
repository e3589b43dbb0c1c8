"""The options of a cluster, as they are handed to the processes that start its parts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sluice.actors.controller.bookie_failure_detector import LOST_AFTER_MS
from sluice.actors.controller.idle_owners import CLOSE_IDLE_AFTER_MS
from sluice.cluster.host.metadata_quota import METADATA_QUOTA_BYTES
from sluice.cluster.node import identity
from sluice.cluster.node.environment import LOOPBACK
from sluice.cluster.settings.connection_limits import MOST_CONNECTIONS, MOST_HTTP_CONNECTIONS, MOST_PER_ADDRESS
from sluice.storage.format.batch import MAX_MESSAGE_BYTES

OBJECT_STORE_BYTES = 1024 * 1024 * 1024
RECORDER_BYTES = 64 << 20
FILES = (
    "pulsar_token_key_file",
    "pulsar_password_file",
    "pulsar_tls_certificate_file",
    "pulsar_tls_key_file",
    "pulsar_tls_trust_certs_file",
    "tls_trust_certs_file",
    "tls_certificate_file",
    "tls_key_file",
)
"""Options that name files."""
ROLES = (
    "pulsar_token_auth_claim",
    "pulsar_token_audience",
    "pulsar_token_audience_claim",
    "pulsar_token_issuer",
    "pulsar_anonymous_role",
    "authorization_enabled",
    "super_user_roles",
    "viewer_roles",
)
"""Options that say who has which role, and what roles may do."""
OF_ONE_ROLE = (
    "pulsar_max_connections_per_role",
    "pulsar_publish_rate_per_role_messages",
    "pulsar_publish_rate_per_role_bytes",
    "pulsar_dispatch_rate_per_role_messages",
    "pulsar_dispatch_rate_per_role_bytes",
)
"""Options that limit what clients of one role use together; 0 is no limit."""


@dataclass(frozen=True)
class ClusterOptions:
    """The options of a cluster. metadata and objects are URLs (cluster.host.stores); empty means in the data folder.

    metadata_quota_bytes: see cluster.host.metadata_quota; 0 is any number.
    bookie_lost_after_ms: a bookie that cannot be started for so long is given up, and its copies are made again.
    close_idle_after_ms: owners of topics and subscriptions that nobody uses for so long are closed; 0: never.
    iceberg_catalog, iceberg_warehouse: see cluster.history.tables; empty: offloaded ledgers are in no catalog.
    cluster: the id that disks and metadata must have (cluster.node.identity), filled in at the start.
    admin_port: where the live page and the metrics are; 0 chooses a free port.
    pulsar_port: where Pulsar's clients connect; 0 chooses a free port, -1 serves none. pulsar_bind_address: the
    loopback, "node" for the machine's address in Ray as well, or 0.0.0.0. pulsar_advertised_address: the host that
    lookups answer with; empty is the loopback, or with "node" the gateway's machine. pulsar_token_key_file: the key
    that their tokens are signed with; empty lets everybody of this machine in. pulsar_password_file: their passwords,
    beside tokens or alone.
    pulsar_tls_port: the same with TLS, where pulsar_tls_certificate_file and pulsar_tls_key_file name a certificate and
    its key; pulsar_tls_trust_certs_file: the authority whose certificates clients must then show.
    pulsar_token_auth_claim: what of a token names its roles; pulsar_token_audience, pulsar_token_issuer: what a token
    must be for and from, the former in the claim pulsar_token_audience_claim.
    authorization_enabled: roles may do only what was granted to them; super_user_roles may do everything and
    viewer_roles look at everything but messages, both divided by commas. pulsar_anonymous_role: of who presents
    nothing.
    recorder_bytes: what the flight recorder of each process keeps; 0: there is none.
    pulsar_max_message_bytes: what Pulsar's clients are told that one message may have.
    pulsar_max_connections, pulsar_max_connections_per_address: how many of Pulsar's clients may be connected to one
    gateway, in all and from one address, and pulsar_max_connections_per_role with one role; pulsar_web_max_connections:
    the same of those that speak HTTP. pulsar_publish_rate_per_role_messages and the three like it: what clients of one
    role may publish and be sent in a second, at all gateways together.
    pulsar_web_port: where Pulsar's tools connect by HTTP; 0 chooses a free port, -1 serves none, and so does a
    pulsar_port of -1. pulsar_web_tls_port: the same with TLS, beside pulsar_tls_port.
    tls_trust_certs_file, tls_certificate_file, tls_key_file: what processes of several machines speak TLS with, at the
    same paths on each; none of them, or all.
    bind_address: where processes listen for others; "node" is the machine's address in Ray, for several machines.
    """

    data_dir: Path
    bookies: int = 3
    brokers: int = 2
    standby: bool = True
    cpus: int | None = None
    object_store_bytes: int = OBJECT_STORE_BYTES
    recorder_bytes: int = RECORDER_BYTES
    metadata: str = ""
    metadata_quota_bytes: int = METADATA_QUOTA_BYTES
    objects: str = ""
    s3_endpoint_url: str | None = None
    iceberg_catalog: str = ""
    iceberg_warehouse: str = ""
    admin_port: int = 0
    pulsar_port: int = -1
    pulsar_web_port: int = -1
    pulsar_web_tls_port: int = -1
    pulsar_bind_address: str = LOOPBACK
    pulsar_advertised_address: str = ""
    pulsar_token_key_file: str = ""
    pulsar_password_file: str = ""
    pulsar_max_message_bytes: int = MAX_MESSAGE_BYTES
    pulsar_max_connections: int = MOST_CONNECTIONS
    pulsar_max_connections_per_address: int = MOST_PER_ADDRESS
    pulsar_max_connections_per_role: int = 0
    pulsar_publish_rate_per_role_messages: int = 0
    pulsar_publish_rate_per_role_bytes: int = 0
    pulsar_dispatch_rate_per_role_messages: int = 0
    pulsar_dispatch_rate_per_role_bytes: int = 0
    pulsar_web_max_connections: int = MOST_HTTP_CONNECTIONS
    pulsar_token_auth_claim: str = "sub"
    pulsar_token_audience: str = ""
    pulsar_token_audience_claim: str = "aud"
    pulsar_token_issuer: str = ""
    pulsar_anonymous_role: str = ""
    authorization_enabled: bool = False
    super_user_roles: str = ""
    viewer_roles: str = ""
    pulsar_tls_port: int = 6651
    pulsar_tls_certificate_file: str = ""
    pulsar_tls_key_file: str = ""
    pulsar_tls_trust_certs_file: str = ""
    bookie_lost_after_ms: int = LOST_AFTER_MS
    close_idle_after_ms: int = CLOSE_IDLE_AFTER_MS
    bind_address: str = LOOPBACK
    tls_trust_certs_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    log_level: str = "warning"
    cluster: str = ""
    bookie_settings: dict[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """The plain mapping that every host is given."""
        root = self.data_dir.resolve()
        return {
            "data_dir": str(root),
            "bookies": [f"bookie-{number}" for number in range(self.bookies)],
            "brokers": self.brokers,
            "standby": self.standby,
            "metadata": self.metadata or (root / "metadata.db").as_uri().replace("file", "sqlite", 1),
            "metadata_quota_bytes": self.metadata_quota_bytes,
            "objects": self.objects or (root / "objects").as_uri(),
            "s3_endpoint_url": self.s3_endpoint_url,
            "iceberg_catalog": self.iceberg_catalog,
            "iceberg_warehouse": self.iceberg_warehouse,
            "admin_port": self.admin_port,
            "pulsar_port": self.pulsar_port,
            "pulsar_web_port": self.pulsar_web_port,
            "pulsar_web_tls_port": self.pulsar_web_tls_port,
            "pulsar_bind_address": self.pulsar_bind_address,
            "pulsar_advertised_address": self.pulsar_advertised_address,
            "pulsar_tls_port": self.pulsar_tls_port,
            "pulsar_max_message_bytes": self.pulsar_max_message_bytes,
            "pulsar_max_connections": self.pulsar_max_connections,
            "pulsar_max_connections_per_address": self.pulsar_max_connections_per_address,
            **{name: getattr(self, name) for name in OF_ONE_ROLE},
            "pulsar_web_max_connections": self.pulsar_web_max_connections,
            **{name: getattr(self, name) for name in ROLES},
            **{name: _resolved(getattr(self, name)) for name in FILES},
            "bookie_lost_after_ms": self.bookie_lost_after_ms,
            "close_idle_after_ms": self.close_idle_after_ms,
            "bind_address": self.bind_address,
            "log_level": self.log_level,
            "cluster": self.cluster,
            "recorder_bytes": self.recorder_bytes,
            "bookie_settings": self.bookie_settings,
        }


def _resolved(path: str) -> str:
    """Hosts have working folders of their own."""
    return str(Path(path).absolute()) if path else ""


def identified(options: ClusterOptions) -> ClusterOptions:
    """The options with the cluster's id. Raises Invalid if data folder and metadata do not belong together."""
    metadata = options.settings()["metadata"]
    return replace(options, cluster=identity.settle(options.data_dir.resolve(), metadata, options.s3_endpoint_url))
