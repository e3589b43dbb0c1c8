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
_OF_RAY = ("cpus", "object_store_bytes")
"""Options for the start of Ray, which hosts are not given."""


@dataclass(frozen=True)
class ClusterOptions:
    """The options of a cluster; `config.Configuration` says what each of them means.

    metadata, objects: URLs (cluster.host.stores); empty means in the data folder. cluster: the id that disks and
    metadata must have (cluster.node.identity), filled in at the start. Without other values there are no gateways.
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
            **{name: value for name, value in vars(self).items() if name not in _OF_RAY},
            **{name: _resolved(value) for name, value in vars(self).items() if name.endswith("_file")},
            "data_dir": str(root),
            "bookies": [f"bookie-{number}" for number in range(self.bookies)],
            "metadata": self.metadata or (root / "metadata.db").as_uri().replace("file", "sqlite", 1),
            "objects": self.objects or (root / "objects").as_uri(),
        }


def _resolved(path: str) -> str:
    """Hosts have working folders of their own."""
    return str(Path(path).absolute()) if path else ""


def identified(options: ClusterOptions) -> ClusterOptions:
    """The options with the cluster's id. Raises Invalid if data folder and metadata do not belong together."""
    metadata = options.settings()["metadata"]
    return replace(options, cluster=identity.settle(options.data_dir.resolve(), metadata, options.s3_endpoint_url))
