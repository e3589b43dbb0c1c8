"""The Key_Shared decisions: which message may go to which consumer, and why not (see `dispatch`)."""

from actors.key_shared.dispatch import Dispatch
from actors.key_shared.routing import Assignment

__all__ = ["Assignment", "Dispatch"]
