"""The kinds of faults: the names that `--faults` takes, their meanings, and their names in the simulator.

The simulator (`tests/sim/faults.py`) breaks the same things in a world of its own, where a process that crashes and a
process that is paused are all there is; a live cluster has consumers, dispatchers, bookies and nodes that a person
wants to name. `simulated` says which of the simulator's kinds has the same meaning, so that a person who sees a fault
here can look for a seed that shows it there. A test holds the two lists together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.storage.errors import Invalid


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A way to break something.

    name: as `--faults` has it. meaning: one sentence. simulated: the simulator's kind of the same meaning, empty if
    it has none. needs: what the cluster must have for it, empty if every cluster can stand it. seconds: shortest and
    longest time that it lasts, zeros if it is over at once.
    """

    name: str
    meaning: str
    simulated: str = ""
    needs: str = ""
    seconds: tuple[float, float] = (0.0, 0.0)


RESTART, KILL, JOIN = "restart-consumer", "kill-consumer", "join-consumer"
HANG, FREEZE, SLOW = "hang-consumer", "freeze-consumer", "slow-consumer"
KILL_NODE, S3_DOWN = "kill-node", "s3-down"
NODES, S3 = "a second node", "an S3 server on this machine"
KILL_HEAD, HEAD = "kill-head", "machines, and a Redis beside Ray's head"
CUT, CUT_ONE_WAY, ISOLATE, ISOLATE_STORE = "cut", "cut-one-way", "isolate", "isolate-store"
SLOW_LINK, LOSSY_LINK, FULL_DISK = "slow-link", "lossy-link", "full-disk"
SLOW_DISK, CLOCK_JUMP = "slow-disk", "clock-jump"
MACHINES = "machines that can be cut from each other (tests/kit/machines.py)"
_AWAY_S = (1.0, 25.0)
"""How long machines are cut from each other."""

KINDS: dict[str, FaultKind] = {
    kind.name: kind
    for kind in (
        FaultKind(RESTART, "a consumer leaves cleanly and comes back under its name", "churn"),
        FaultKind(KILL, "a consumer's process gets SIGKILL and is replaced", "crash"),
        FaultKind(JOIN, "one more consumer joins", "churn"),
        FaultKind(
            HANG, "a consumer's process stops, its queue fills, another joins to help, and it gets SIGKILL", "crash"
        ),
        FaultKind(FREEZE, "a consumer's process is stopped, for less or more than its lease", "pause", "", (0.3, 14.0)),
        FaultKind(SLOW, "a consumer's process gets a tenth of its time", "", "", (1.0, 5.0)),
        FaultKind("kill-dispatcher", "the process with a dispatcher gets SIGKILL", "crash"),
        FaultKind("freeze-dispatcher", "the process with a dispatcher is stopped", "pause", "", (0.3, 6.0)),
        FaultKind("kill-topic", "the process with a partition's owner gets SIGKILL", "crash"),
        FaultKind("freeze-topic", "the process with a partition's owner is stopped", "pause", "", (0.3, 6.0)),
        FaultKind("kill-bookie", "a bookie's process gets SIGKILL", "crash"),
        FaultKind("freeze-bookie", "a bookie's process is stopped", "pause", "", (0.3, 6.0)),
        FaultKind("kill-controller", "the controller's process gets SIGKILL", "crash"),
        FaultKind("freeze-controller", "the controller's process is stopped", "pause", "", (0.3, 6.0)),
        FaultKind(
            SLOW_DISK, "each sync of the disk of a machine's bookies takes 200 ms longer", "slow_disk", "", (1.0, 10.0)
        ),
        FaultKind(
            CLOCK_JUMP, "the clock of an owner's process is wrong by a minute or an hour", "clock_leap", "", (1.0, 10.0)
        ),
        FaultKind(KILL_NODE, "a node with all its processes gets SIGKILL; another one joins", "crash", NODES),
        FaultKind(S3_DOWN, "the S3 server answers nobody", "cut_stores", S3, (1.0, 5.0)),
        FaultKind(CUT, "two machines do not reach each other", "partition", MACHINES, _AWAY_S),
        FaultKind(CUT_ONE_WAY, "what a machine sends another one does not arrive", "partition", MACHINES, _AWAY_S),
        FaultKind(ISOLATE, "a machine reaches no other and no store", "machine_cut", MACHINES, _AWAY_S),
        FaultKind(ISOLATE_STORE, "a machine does not reach the store", "cut_stores", MACHINES, _AWAY_S),
        FaultKind(SLOW_LINK, "what two machines send each other takes 100 ms longer", "delay", MACHINES, _AWAY_S),
        FaultKind(LOSSY_LINK, "of what two machines send each other a twentieth is lost", "loss", MACHINES, _AWAY_S),
        FaultKind(FULL_DISK, "a machine has no room for data", "full_disk", MACHINES, _AWAY_S),
        FaultKind(KILL_HEAD, "the machine of Ray's head loses power, and starts again", "crash", HEAD, _AWAY_S),
    )
}
"""Every kind, by name."""

CONSUMER_KINDS = (RESTART, KILL, JOIN, HANG, FREEZE, SLOW)
"""The kinds that the fleet of consumers does to itself; the rest is done to the broker."""
MACHINE_KINDS = (CUT, CUT_ONE_WAY, ISOLATE, ISOLATE_STORE, SLOW_LINK, LOSSY_LINK, FULL_DISK, KILL_HEAD)
"""The kinds that are done to machines, or to what is between them (loadgen.faults.machine_faults)."""
IMPAIRMENT_KINDS = (SLOW_DISK, CLOCK_JUMP)
"""The kinds that processes do to themselves on request (loadgen.faults.impairments)."""
FLOOD_KINDS = (RESTART, KILL, JOIN)
"""The kinds that a flood by time or by share does to its consumers in turn."""
ACT_KINDS = (JOIN, HANG, RESTART, KILL, FREEZE)
"""The kinds that a flood in acts does to its consumers in turn, each when the former has shown its effect."""
FROZEN_S = 1.5
"""How long a consumer of a flood in acts is stopped."""


def check_kinds(names: Sequence[str]) -> None:
    """Raises Invalid for a kind that there is not."""
    for name in names:
        if name not in KINDS:
            raise Invalid(f"there is no fault {name!r}; there are {', '.join(KINDS)}")


def standard_kinds(*, nodes: int = 1, s3: bool = False, machines: bool = False, head: bool = False) -> list[str]:
    """The kinds that a cluster with so many nodes, with or without an S3 server on this machine, can stand.

    machines: it has some that can be cut from each other. head: Ray's head can be started again on one of them.
    """
    has = {"": True, NODES: nodes > 1, S3: s3, MACHINES: machines, HEAD: head}
    return [kind.name for kind in KINDS.values() if has[kind.needs]]
