"""Slots, the processes that serve them, and how these are spread over the nodes.

A slot is a task for one process: `bookie-N` is one bookie with its disk, `broker-N` a share of all partitions. The
topic of a partition and its dispatchers belong to the same slot, so that they talk inside one process. A process is
named after the slot that it was made for; one that waits is named after STANDBY and told later whom it serves.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

from sluice.actors.ports import Node
from sluice.storage.errors import Unavailable

BROKER = "broker-"
"""How the slots of the shared processes begin; each other slot is a bookie's or a gateway's."""
GATEWAY = "gateway-"
"""How the slots of gateways begin, one for each machine: a process that has nothing to do with partitions and disks."""
STANDBY = "broker-standby"
"""The stem of a standby process's name, in place of a slot."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long things may take, in milliseconds.

    start, stop, introduce, serve: answers of a process. ask: a start that is not answered is asked for again. prompt:
    a new controller waits so long for the processes that another one made before it begins to work. calm: after so
    long without a loss, slots leave their fallback. first, again: until a process that waits is made; after the first
    broker process or a failure, and after one was used or made. soon: who needs one and finds none waits so long for
    the one that is being made. discover: between looks for processes that another controller made; back: the same
    while a machine is away, or was at the last look. candidates: between looks for those that can be the controller.
    """

    start: int = 120_000
    ask: int = 5_000
    stop: int = 2_000
    introduce: int = 5_000
    serve: int = 1_000
    prompt: int = 1_500
    calm: int = 20_000
    first: int = 15_000
    again: int = 2_000
    soon: int = 5_000
    discover: int = 60_000
    back: int = 1_000
    candidates: int = 5_000


@dataclass(unsafe_hash=True, slots=True)
class HostProcess:
    """A process that the controller knows. node: its id. slot: the slot that it was made for, or STANDBY.

    The name alone says which process it is: one that was left, and is met again, is the same. It may serve other slots
    as well for a while, those whose fallback it is.
    """

    name: str
    node: str = field(compare=False)
    slot: str = field(compare=False)


def is_gateway(slot: str) -> bool:
    """Whether a slot is for a machine's gateway."""
    return slot.startswith(GATEWAY)


def is_broker(slot: str) -> bool:
    """Whether a slot is a share of the partitions, and neither a bookie's nor a gateway's."""
    return slot.startswith(BROKER)


def slot_for(kind: str, settings: dict[str, Any], brokers: int) -> str:
    """The slot of an actor. brokers: the number of broker slots."""
    if kind == "bookie":
        return str(settings["bookie"])
    if kind == "gateway":
        return f"{GATEWAY}{settings['machine']}"
    home = zlib.crc32(str(settings["topic"]).encode()) + int(settings["partition"])
    return f"{BROKER}{home % brokers}"


def stem(name: str) -> str:
    """The first part of a name: the slot of a process, or STANDBY; the kind of a slot."""
    return name.rsplit("-", 1)[0]


def least_loaded(nodes: list[Node], slot: str, placed: dict[str, str]) -> Node:
    """The node with the fewest processes of this slot's sort, then with the fewest of all, then the first by id.

    placed: node id by slot. Raises Unavailable if there is no node.
    """
    if not nodes:
        raise Unavailable("the cluster has no live node")
    sort = stem(slot)
    same = [node for other, node in sorted(placed.items()) if stem(other) == sort and other != slot]
    return min(nodes, key=lambda node: (same.count(node.id), list(placed.values()).count(node.id), node.id))
