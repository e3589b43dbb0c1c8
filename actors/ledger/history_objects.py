"""The names of objects with offloaded ledgers and compacted tables, and the end of those whose topic was deleted.

    history/<topic>/<partition>/<ledger>-<epoch>-<number>.parquet
    compacted/<topic>/<partition>/<ledger of the horizon>-<epoch>-<number>.parquet

An owner deletes only what was written under its own epoch or an earlier one: a topic that is made again under the same
name has higher ones.
"""

from __future__ import annotations

from sluice.actors.ports import Ports

FOLDER, COMPACTED = "history/", "compacted/"
_NEVER = 1 << 62


def history_prefix(topic: str, partition: int) -> str:
    """Return the prefix of the names of a partition's objects."""
    return f"{FOLDER}{topic}/{partition}/"


def compacted_prefix(topic: str, partition: int) -> str:
    """Return the prefix of the names of the objects of a partition's compacted table."""
    return f"{COMPACTED}{topic}/{partition}/"


def object_name(prefix: str, ledger: int, epoch: int, number: int) -> str:
    """A name that was never used, if the owner of this epoch never used the number."""
    return f"{prefix}{ledger:012d}-{epoch:012d}-{number:06d}.parquet"


def epoch_of(name: str) -> int:
    """The epoch of the owner that wrote an object; above all epochs for a name that is none of these."""
    return _numbers_in(name)[1]


def ledger_of_object(name: str) -> int:
    """The ledger in an object's name; above all ids for a name that is none of these."""
    return _numbers_in(name)[0]


def writing_of(name: str) -> tuple[int, int]:
    """The epoch and the number under which an object was written: an owner's ascend; as above for any other name."""
    return _numbers_in(name)[1:]


def _numbers_in(name: str) -> tuple[int, int, int]:
    pieces = name.rpartition("/")[2].removesuffix(".parquet").split("-")
    whole = len(pieces) == 3 and all(piece.isdigit() for piece in pieces)
    return (int(pieces[0]), int(pieces[1]), int(pieces[2])) if whole else (_NEVER, _NEVER, _NEVER)


async def delete_history(ports: Ports, prefix: str, epoch: int) -> list[str]:
    """Delete what a deleted partition, whose last epoch this is, has left; returns the names. Raises Unavailable."""
    gone = [name for name in await ports.objects.names(prefix) if epoch_of(name) <= epoch]
    for name in gone:
        await ports.objects.delete(name)
    return gone
