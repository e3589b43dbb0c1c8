"""The composition root: which class with which parts makes an actor of a kind."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec

from actors.actor import Actor
from actors.bookie import Bookie, BookieSettings
from actors.controller import Controller
from actors.delayed.shared import SharedIndexes
from actors.losses import LOST_AFTER_MS
from actors.owners import make_dispatcher, make_topic
from actors.ports import Meta, Objects, Ports
from cluster.disk import FileDisk
from cluster.host import remote_host
from cluster.places import RayPlaces
from cluster.stores import open_metadata, open_objects
from storage.errors import Invalid

CONTROLLER = "controller/controller"


def make_host(
    name: str,
    settings: dict[str, Any],
    *,
    boot: list[tuple[str, str, dict[str, Any]]] | None = None,
    node: str | None = None,
    restarts: int = 0,
) -> Any:
    """Start a host process; returns its Ray handle at once."""
    return remote_host(name, restarts=restarts, node=node).remote(name, SluiceParts(), settings, boot or [])


class SluiceParts:
    """The parts that every host is given. Each host has one object of this class, and with it its shared indexes."""

    def __init__(self) -> None:
        self._shared = SharedIndexes()

    def stores(self, settings: dict[str, Any]) -> tuple[Meta, Objects]:
        """The metadata and object stores that the settings name; every process opens its own."""
        endpoint = settings.get("s3_endpoint_url")
        return open_metadata(settings["metadata"], endpoint), open_objects(settings["objects"], endpoint)

    def actor(self, kind: str, ports: Ports, settings: dict[str, Any]) -> Actor:
        """Make an actor, not yet started. Raises Invalid for an unknown kind."""
        if kind == "controller":
            places = RayPlaces(settings, make_host)
            return Controller(
                dataclasses.replace(ports, places=places),
                bookies=list(settings["bookies"]),
                lost_after_ms=settings.get("bookie_lost_after_ms", LOST_AFTER_MS),
            )
        if kind == "bookie":
            disk = FileDisk(Path(settings["data_dir"]) / "bookies" / settings["bookie"])
            return Bookie(
                dataclasses.replace(ports, disk=disk),
                bookie_id=settings["bookie"],
                settings=msgspec.convert(settings.get("bookie_settings", {}), BookieSettings),
            )
        if kind == "admin":
            from cluster.admin_http import AdminHttp  # only the controller's process pays for a web server

            return AdminHttp(
                ports,
                controller=CONTROLLER,
                data_dir=Path(settings["data_dir"]),
                port=int(settings.get("admin_port", 0)),
            )
        if kind == "topic":
            return make_topic(ports, settings, CONTROLLER, self._shared)
        if kind == "dispatcher":
            return make_dispatcher(ports, settings, CONTROLLER, self._shared)
        raise Invalid(f"there is no actor of kind {kind!r}")
