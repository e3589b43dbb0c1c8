"""Alarms: what is wrong with a cluster, in one line each, for `status`, `up` and commands that wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from sluice.actors.messages import DescribeCluster, Ping
from sluice.actors.ports import Unknown
from sluice.cluster.wire.net import CONTROLLER, DirectNet
from sluice.storage.errors import Unavailable

CALL_TIMEOUT = 15_000


def alarms_of(status: Mapping[str, Any]) -> list[str]:
    """The alarms in a controller's answer to the verb `status`."""
    troubled = [row for row in status["actors"] if row["problem"] or row["state"] != "running"]
    alarms = [": ".join(filter(None, (f"{row['name']} is {row['state']}", row["problem"]))) for row in troubled]
    if status["underReplicated"]:
        alarms.append(f"{status['underReplicated']} fragments have fewer copies than they should")
    for bookie, count in status.get("unknownLedgers", {}).items():
        alarms.append(
            f"{bookie} holds {count} ledger{'s' * (count > 1)} that the metadata does not know; nothing of that is "
            "deleted: is this an older copy of the metadata, or another cluster's?"
        )
    return alarms


def nothing_can_be_written(status: Mapping[str, Any]) -> bool:
    """Whether there are bookies and not one of them takes messages."""
    states = [row["state"] for row in status["actors"] if row["kind"] == "bookie"]
    return bool(states) and all(state != "running" for state in states)


def condition() -> dict[str, Any]:
    """The alarms of the attached cluster, and whether nothing can be written to it."""
    status = asyncio.run(ask_for_status())
    return {"alarms": alarms_of(status), "read_only": nothing_can_be_written(status)}


async def ask_for_status() -> dict[str, Any]:
    """The controller's answer, with each bookie's own answer about whether it can write now.

    A controller hears of that only when it next looks. Raises Unavailable.
    """
    net = DirectNet()
    try:
        return await _status(net)
    finally:
        net.close()


async def _status(net: DirectNet) -> dict[str, Any]:
    reply = await net.call(CONTROLLER, DescribeCluster(), CALL_TIMEOUT)
    if isinstance(reply, Unknown):
        raise Unavailable(f"the controller does not answer: {reply.reason}")
    status: dict[str, Any] = json.loads(reply.json)
    for row in status["actors"]:
        if row["kind"] == "bookie" and row["address"]:
            answer = await net.call(row["address"], Ping(), CALL_TIMEOUT)
            if not isinstance(answer, Unknown) and answer.refuses:
                row["state"], row["problem"] = "read-only", answer.refuses
    return status
