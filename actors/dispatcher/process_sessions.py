"""The sessions at all dispatchers of one process, many of which one heartbeat renews.

A heartbeat comes from a process with consumers and goes to one dispatcher of a process, for all. To renew a session by
it is what an answer to a poll does: the argument, and its conditions, are those of `membership` and `store`. The owner
must be certain, at the moment at which it renews, that it has not been replaced; the consumer counts from the moment
at which it sent the heartbeat, and only for the session and the owner that it asked for (`actors.consumer.heartbeats`).
"""

from __future__ import annotations

from typing import Protocol

from actors.messages import Heartbeat, HeartbeatAnswer
from actors.ownership_proof import OwnershipProof
from actors.ports import Address, Ports
from storage.errors import SluiceError

PROOF_MS = 200
"""Heartbeats of several processes make do with one look at what proves this one's ownership, if it is no older."""


class SessionOwner(Protocol):
    """A dispatcher, as heartbeats see it."""

    def heartbeat(self, session: int) -> bool:
        """Renew a session; False if it is over, or if this dispatcher is not certain that it still is the owner."""

    def waits(self, session: int, turn: int) -> bool:
        """Whether a poll of that turn waits here for messages."""


class ProcessSessions:
    """Every dispatcher of a process that serves; see `Ports.process`."""

    def __init__(self) -> None:
        self._owners: dict[Address, SessionOwner] = {}

    def join(self, address: Address, owner: SessionOwner) -> None:
        """This dispatcher serves from now on."""
        self._owners[address] = owner

    def leave(self, address: Address) -> None:
        """It has ended."""
        self._owners.pop(address, None)

    async def heartbeat(self, ports: Ports, request: Heartbeat) -> HeartbeatAnswer:
        """See messages.Heartbeat. ports: of whoever was asked."""
        try:
            await ports.process.of(OwnershipProof).look(ports, PROOF_MS)
        except SluiceError as error:
            ports.log("notice_unknown", error=str(error))  # an owner may be certain without it
        answer = HeartbeatAnswer(compares=True)
        turns = [*request.turns, *[0] * (len(request.owners) - len(request.turns))]  # an earlier version says none
        for place, (address, session, turn) in enumerate(zip(request.owners, request.sessions, turns, strict=False)):
            owner = self._owners.get(address)
            if owner is None:
                answer.elsewhere.append(place)
            elif not owner.heartbeat(session):
                answer.refused.append(place)
            elif turn and not owner.waits(session, turn):
                answer.unasked.append(place)
        return answer
