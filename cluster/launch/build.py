"""The composition root: makes the actors of each kind from their classes and parts.

Ray's modules are imported where they are needed, because a cluster in one process does without them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sluice.actors.bookie import Bookie, BookieSettings
from sluice.actors.controller.bookie_failure_detector import LOST_AFTER_MS
from sluice.actors.controller.candidate import NAME as CANDIDATE
from sluice.actors.controller.controller import Controller
from sluice.actors.controller.factories import make_dispatcher, make_topic
from sluice.actors.controller.idle_owners import CLOSE_IDLE_AFTER_MS
from sluice.actors.controller.schema_registry import SchemaRegistry
from sluice.actors.delayed.shared import SharedIndexes
from sluice.actors.placement.placement import Placement
from sluice.actors.placement.placer import Placer
from sluice.actors.ports import Places, Ports
from sluice.actors.runtime.host import Actor
from sluice.cluster.gateway.ports import wanted_ports
from sluice.cluster.host.disk import FileDisk
from sluice.cluster.host.metadata_quota import METADATA_QUOTA_BYTES
from sluice.cluster.host.store_ports import AsyncMeta, AsyncObjects
from sluice.cluster.host.stores import open_metadata, open_objects
from sluice.cluster.launch.topic_rooms import topic_resources
from sluice.cluster.node.environment import is_controller_host
from sluice.cluster.wire.net import CONTROLLER as CONTROLLER
from sluice.storage.errors import Invalid

if TYPE_CHECKING:
    from sluice.actors.ports import Tables
    from sluice.actors.pulsar.conversation.gateway.gateway import Gateway
    from sluice.cluster.admin.gateway_http import GatewayHttp
    from sluice.cluster.gateway.addresses import Addresses

CANDIDATES = 3
"""On so many machines there is a process that can be the controller."""


def make_host(
    name: str,
    settings: dict[str, Any],
    *,
    boot: list[tuple[str, str, dict[str, Any]]] | None = None,
    node: str | None = None,
    restarts: int = 0,
) -> Any:
    """Start a host process; returns its Ray handle at once."""
    from sluice.cluster.launch.ray_host import remote_host

    if is_controller_host(name):
        boot = [(CANDIDATE, CANDIDATE, {})]
    return remote_host(name, restarts=restarts, node=node).remote(name, SluiceParts(), settings, boot or [])


def _controller(ports: Ports, settings: dict[str, Any]) -> Controller:
    controller = Controller(
        ports if ports.places is not None else dataclasses.replace(ports, places=_ray_places(ports, settings)),
        bookies=list(settings["bookies"]),
        lost_after_ms=settings.get("bookie_lost_after_ms", LOST_AFTER_MS),
        close_idle_after_ms=settings.get("close_idle_after_ms", CLOSE_IDLE_AFTER_MS),
        gateways=ports.places is None and bool(wanted_ports(settings)),
        described={
            "controllerNode": _ray_node() if ports.places is None else "",
            "storage": {
                **{name: settings[name] for name in ("data_dir", "metadata", "objects")},
                "s3_endpoint_url": settings.get("s3_endpoint_url") or "",
            },
        },
    )
    controller.open_registry = _schema_registry
    return controller


def _schema_registry(ports: Ports) -> SchemaRegistry:
    from sluice.actors.pulsar.conversation.gateway.schema_requests import SchemaRequests  # protobuf

    return SchemaRequests(ports)


class SluiceParts:
    """The parts that a host gives to its actors. Each host has one such object, with all that its actors share."""

    def __init__(self) -> None:
        self._shared, self._resources = SharedIndexes(), topic_resources()
        self._tables: Tables | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Send no part: a host of another version may lack its class."""
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin with fresh parts in the host's process. A controller of another version has other parts, and an early
        one sends those.
        """
        self.__dict__.update(vars(SluiceParts()))

    def stores(self, settings: dict[str, Any]) -> tuple[AsyncMeta, AsyncObjects]:
        """The metadata and object stores that the settings name; every process opens its own."""
        endpoint = settings.get("s3_endpoint_url")
        quota = int(settings.get("metadata_quota_bytes", METADATA_QUOTA_BYTES))
        return open_metadata(settings["metadata"], endpoint, quota), open_objects(settings["objects"], endpoint)

    def actor(self, kind: str, ports: Ports, settings: dict[str, Any]) -> Actor:
        """Make an actor, not yet started. Raises Invalid for an unknown kind."""
        if kind == "controller":
            return _controller(ports, settings)
        if kind == "bookie":
            disk = FileDisk(Path(settings["data_dir"]) / "bookies" / settings["bookie"])
            return Bookie(
                dataclasses.replace(ports, disk=disk),
                bookie_id=settings["bookie"],
                settings=msgspec.convert(settings.get("bookie_settings", {}), BookieSettings),
                cluster=settings.get("cluster", ""),
            )
        if kind == "admin":
            from sluice.cluster.admin.server_routes import AdminHttp  # a web server, for the controller alone
            from sluice.cluster.launch.gathering import KeptRecordings

            data_dir = Path(settings["data_dir"])
            return AdminHttp(
                ports,
                controller=CONTROLLER,
                data_dir=data_dir,
                port=int(settings.get("admin_port", 0)),
                settings=settings,
                recordings=KeptRecordings(ports.net, ports.me.partition("/")[0], data_dir),
            )
        if kind in ("gateway", "pulsar"):  # started by the controller, or with a cluster in one process
            from sluice.cluster.gateway.listener import PulsarGateway  # protobuf, for gateways alone

            return PulsarGateway(ports, controller=CONTROLLER, settings=settings, http=_gateway_http)
        if kind == "topic":
            if self._tables is None and settings.get("iceberg_catalog"):
                from sluice.cluster.history.tables import CatalogTables

                self._tables = CatalogTables.from_settings(settings)
            ports = dataclasses.replace(ports, tables=self._tables)
            return make_topic(ports, settings, CONTROLLER, self._shared, self._resources)
        if kind == "dispatcher":
            if int(settings.get("recorder_bytes", 0)) > 0:
                from sluice.cluster.host.recordings import open_recorder

                open_recorder(ports, settings)
            return make_dispatcher(ports, settings, CONTROLLER, self._shared)
        raise Invalid(f"there is no actor of kind {kind!r}")


def _gateway_http(gateway: Gateway, addresses: Addresses, host: str, most: int) -> GatewayHttp:
    from sluice.cluster.admin.gateway_http import GatewayHttp  # most gateways are never asked by HTTP

    return GatewayHttp(gateway, addresses, host, most)


def _ray_node() -> str:
    from sluice.cluster.node.own_node import own_node

    return own_node()


def _ray_places(ports: Ports, settings: dict[str, Any]) -> Places:
    from sluice.cluster.launch.processes import RayProcesses
    from sluice.cluster.wire.net import DirectNet

    placement = Placement(
        int(settings.get("brokers", 1)),
        ports.clock.monotonic(),
        standby=bool(settings.get("standby", True)),
        candidates=CANDIDATES,
    )
    processes = RayProcesses(settings, make_host, ports.net)
    if isinstance(ports.net, DirectNet):
        ports.spawn(processes.part_from_lost_nodes(ports.net.part), "lost-nodes")
    return Placer(ports, processes, placement, f"{ports.me.partition('/')[0]}/{CANDIDATE}")
