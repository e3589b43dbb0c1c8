"""The Key_Shared decisions: which message may go to which consumer, and why not.

`Dispatch` is the only entry. Modules outside this folder import the names below and nothing else of it, and no part
inside knows `Dispatch`. It applies the reports that wait and hands each question to the part that answers it; parked
keys and the places of consumers are parts of their own, which it offers as `parking` and `ring`. A message that is not
done lies in one of two tables by position: the window, or the table of the parked messages, which `ParkedMessages`
alone writes. All else that several operations need is in `Core`, and its transitions keep the window, the tables by
hash, the members and the sentinel in step.
"""

from actors.key_shared.assignments import Assignment, Assignments
from actors.key_shared.dispatch import Dispatch
from actors.key_shared.hash_assignments import NEW, JoinAs
from actors.key_shared.heaviest import Heaviest
from actors.key_shared.history import KEPT, Change, History
from actors.key_shared.members import AttachedConsumer
from actors.key_shared.parked_messages import ParkedKey
from actors.key_shared.selectors import same_ranges

__all__ = [
    "KEPT",
    "NEW",
    "Assignment",
    "Assignments",
    "AttachedConsumer",
    "Change",
    "Dispatch",
    "Heaviest",
    "History",
    "JoinAs",
    "ParkedKey",
    "same_ranges",
]
