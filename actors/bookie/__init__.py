"""The bookie: one storage node of the ledgers."""

from actors.bookie.bookie import Bookie
from actors.bookie.inspection import JournalRow, inspect_journal
from actors.bookie.settings import BookieSettings

__all__ = ["Bookie", "BookieSettings", "JournalRow", "inspect_journal"]
