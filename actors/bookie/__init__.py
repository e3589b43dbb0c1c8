"""The bookie: one storage node of the ledgers."""

from sluice.actors.bookie.bookie import Bookie
from sluice.actors.bookie.inspection import JournalRow, inspect_journal
from sluice.actors.bookie.settings import BookieSettings

__all__ = ["Bookie", "BookieSettings", "JournalRow", "inspect_journal"]
