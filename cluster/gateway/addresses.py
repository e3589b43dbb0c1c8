"""The addresses at which Pulsar's clients and tools find this broker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Addresses:
    """Addresses for clients and tools; empty if they cannot connect."""

    pulsar: str = ""
    pulsar_tls: str = ""
    http: str = ""
    http_tls: str = ""

    @property
    def broker(self) -> str:
        """Host and port, by which Pulsar knows a broker."""
        return (self.http or self.http_tls or self.pulsar or self.pulsar_tls).partition("://")[2]
