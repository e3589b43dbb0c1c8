"""The bookie: one storage node of the ledgers."""

from actors.bookie.bookie import Bookie
from actors.bookie.settings import BookieSettings

__all__ = ["Bookie", "BookieSettings"]
