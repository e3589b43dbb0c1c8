"""The kinds of worlds that seeds are played in."""

from __future__ import annotations

from tests.sim.runner import Scenario
from tests.sim.worlds.bookie import BookieWorld
from tests.sim.worlds.broker import BrokerWorld
from tests.sim.worlds.cancels import CancelsWorld
from tests.sim.worlds.candidates import CandidatesWorld
from tests.sim.worlds.chunks import ChunksWorld
from tests.sim.worlds.compaction import CompactionWorld
from tests.sim.worlds.dead_letters import DeadLettersWorld
from tests.sim.worlds.delays import DelaysWorld
from tests.sim.worlds.erasing import ErasingWorld
from tests.sim.worlds.gateway import GatewayWorld, RelayWorld
from tests.sim.worlds.grace import GraceWorld
from tests.sim.worlds.history import HistoryWorld
from tests.sim.worlds.idle import IdleWorld
from tests.sim.worlds.leaps import LeapsWorld
from tests.sim.worlds.ledger import LedgerWorld
from tests.sim.worlds.nack_order import NackOrderWorld
from tests.sim.worlds.owners import OwnersWorld
from tests.sim.worlds.parking import ParkingWorld
from tests.sim.worlds.placement import DrainsWorld, MachinesWorld, PlacementWorld
from tests.sim.worlds.redeliveries import RedeliveriesWorld
from tests.sim.worlds.restless import RestlessWorld
from tests.sim.worlds.restored import RestoredWorld
from tests.sim.worlds.seeks import SeeksWorld, SkipsWorld
from tests.sim.worlds.sharing import SharingWorld
from tests.sim.worlds.types import TypesWorld
from tests.sim.worlds.users import UsersWorld
from tests.sim.worlds.workers import WorkersWorld

WORLDS: dict[str, Scenario] = {
    world.name: world
    for world in (
        BookieWorld(),
        LedgerWorld(),
        HistoryWorld(),
        CompactionWorld(),
        ErasingWorld(),
        BrokerWorld(),
        CancelsWorld(),
        CandidatesWorld(),
        ChunksWorld(),
        DeadLettersWorld(),
        DelaysWorld(),
        GatewayWorld(),
        GraceWorld(),
        IdleWorld(),
        LeapsWorld(),
        OwnersWorld(),
        ParkingWorld(),
        PlacementWorld(),
        MachinesWorld(),
        DrainsWorld(),
        RedeliveriesWorld(),
        NackOrderWorld(),
        RelayWorld(),
        RestlessWorld(),
        RestoredWorld(),
        SeeksWorld(),
        SharingWorld(),
        SkipsWorld(),
        TypesWorld(),
        UsersWorld(),
        WorkersWorld(),
    )
}
