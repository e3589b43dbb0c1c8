"""The Key_Shared decisions: which message may go to which consumer, and why not (see `dispatch`)."""

from actors.key_shared.assignments import Assignment, Assignments
from actors.key_shared.dispatch import Dispatch

__all__ = ["Assignment", "Assignments", "Dispatch"]
