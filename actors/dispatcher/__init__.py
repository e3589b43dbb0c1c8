"""The dispatcher: one subscription on one partition. Reads the index, decides who gets what, keeps the cursor."""

from sluice.actors.dispatcher.dispatcher import Dispatcher

__all__ = ["Dispatcher"]
