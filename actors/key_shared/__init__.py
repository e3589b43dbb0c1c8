"""The Key_Shared decisions: which message may go to which consumer, and why not.

`KeySharedDispatcher` is the only entry. Modules outside this folder import the names below and nothing else of it, and
no part inside knows `KeySharedDispatcher`. It applies the reports that wait and hands each question to the part that
answers it; parked keys and the places of consumers are parts of their own, which it offers as `parking` and `ring`. A
message that is not done lies in one of two tables by position: the window, or the table of the parked messages, which
`ParkedMessages` alone writes. All else that several operations need is in `DispatchState`, and its transitions keep the
window, the tables by hash, the members and the sentinel in step.
"""

from sluice.actors.key_shared.dispatch import KeySharedDispatcher
from sluice.actors.key_shared.observe.heaviest import Heaviest
from sluice.actors.key_shared.observe.waiting import WaitingMessages
from sluice.actors.key_shared.state.assignments import Assignment, Assignments, ReadGates, Share
from sluice.actors.key_shared.state.hash_assignments import NEW, HashRangeAssignments, JoinAs
from sluice.actors.key_shared.state.history import KEPT, Change, History
from sluice.actors.key_shared.state.members import AttachedConsumer
from sluice.actors.key_shared.state.parked_messages import ParkedKey
from sluice.actors.key_shared.state.parking import Parking
from sluice.actors.key_shared.state.policies import NEW_OWNER, REASONS, SET_ASIDE
from sluice.actors.key_shared.state.selectors import same_ranges

__all__ = [
    "KEPT",
    "NEW",
    "NEW_OWNER",
    "REASONS",
    "SET_ASIDE",
    "Assignment",
    "Assignments",
    "AttachedConsumer",
    "Change",
    "HashRangeAssignments",
    "Heaviest",
    "History",
    "JoinAs",
    "KeySharedDispatcher",
    "ParkedKey",
    "Parking",
    "ReadGates",
    "Share",
    "WaitingMessages",
    "same_ranges",
]
