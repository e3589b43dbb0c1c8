"""Checks, before a cluster starts, that a data folder and a metadata store belong together.

A cluster has an id, made once. It stands in the metadata (`cluster/id`), in each data folder (the file `cluster-id`),
and in the cookie of each bookie's disk. A folder that was used and a metadata store that does not know it refuse each
other, because going on would begin an empty cluster over full disks: nobody would see the topics, and nobody would
notice. Giving data up takes `--forget`, which sets the folder's data aside, and deletes nothing.

Beside the id stands the format of everything that folder and stores hold: a number, and 1 where none stands. A version
raises the number if earlier ones would misread what it writes. A version refuses data with a number above its own.
docs/versions.md is the promise.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from sluice.actors.bookie.cookie import CLUSTER, COOKIE, cookie_key, decode_cookie
from sluice.cluster.base.version import COMMAND, described
from sluice.cluster.host.stores import open_metadata, read_metadata
from sluice.cluster.node.folder import replace_file
from sluice.storage.errors import Corrupt, Invalid, NotFound
from sluice.storage.stores.metadata import Metadata

ID_FILE = "cluster-id"
FORMAT = 1
"""The format of the data that this version writes, and the newest one that it reads."""
FORMAT_KEY = "cluster/format"
SET_ASIDE = ("bookies", "objects", ID_FILE)
"""What `--forget` moves, beside the folder's own metadata file if that is not the one in use."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """Data that was given up. folder: where it is now. bytes: of all files."""

    cluster: str
    folder: Path
    bookies: int
    bytes: int

    def sentence(self) -> str:
        """One line for a person."""
        cluster = self.cluster or "without an id"
        return (
            f"gave up the data of cluster {cluster}: {self.bookies} bookies, {self.bytes:,} bytes, set aside in"
            f" {self.folder}; delete that folder when nothing of it is needed"
        )


def settle(root: Path, metadata: str, endpoint: str | None) -> str:
    """The cluster's id, made if neither side has one. root: the data folder. metadata: URL of the store.

    Raises Invalid, in one line, if the two do not belong together, a newer version wrote them or the store is damaged;
    Unavailable.
    """
    if metadata.startswith("memory:"):
        return ""
    problem = _problem(root, metadata, endpoint)
    if problem:
        raise Invalid(f"{problem}. Name the store that it was used with, or give this data up: {COMMAND} up --forget")
    stores = open_metadata(metadata, endpoint)
    try:
        _raise_format(stores.store)
        known = _read(stores.store) or _make(stores.store)
    finally:
        stores.close()
    _write_file(root, known, metadata)
    return known


def forget(root: Path, metadata: str, endpoint: str | None) -> SetAside:
    """Set aside what a folder holds that a metadata store does not know. Raises Invalid if it does; Unavailable."""
    if not _problem(root, metadata, endpoint):
        raise Invalid(f"{metadata} knows the data in {root}: there is nothing to forget; another --data-dir is empty")
    return _set_aside(root, metadata)


def of(root: Path) -> str:
    """The id that a data folder has, empty if none. Raises Corrupt."""
    return _read_file(root)[0]


def _problem(root: Path, metadata: str, endpoint: str | None) -> str:
    """Why folder and store do not belong together, or nothing. Looking does not make the store."""
    try:
        with read_metadata(metadata, endpoint) as store:
            return _difference(root, metadata, store)
    except Corrupt as error:
        raise Invalid(str(error)) from error
    except NotFound:
        return _difference(root, metadata, None)


def _difference(root: Path, metadata: str, store: Metadata | None) -> str:
    known = "" if store is None else _read(store)
    here, used_with, written = _read_file(root)
    for place, number in ((str(root), written), (metadata, 1 if store is None else _format_of(store))):
        if number > FORMAT:
            raise Invalid(
                f"the data in {place} has format {number}, and {described()} reads formats up to {FORMAT}:"
                " start it with the version that wrote it, or with a newer one"
            )
    if here and here != known:
        theirs = f"belongs to cluster {known}" if known else "knows no cluster"
        return f"the data in {root} belongs to cluster {here} (metadata {used_with}), and {metadata} {theirs}"
    if here:
        return ""
    for path in sorted(root.glob(f"bookies/*/{COOKIE}")):
        data = path.read_bytes()
        record = None if store is None else store.read(cookie_key(path.parent.name))
        if record is None and known and decode_cookie(data).cluster == known:
            continue
        if record is None or record.value != data:
            return f"{path.parent} is the disk of a bookie that {metadata} does not know"
    return ""


def _read(store: Metadata) -> str:
    record = store.read(CLUSTER)
    return "" if record is None else record.value.decode()


def _make(store: Metadata) -> str:
    """Draw the id; if several processes do so at once, one of them wins."""
    store.create(CLUSTER, 1, secrets.token_hex(8).encode())
    return _read(store)


def _format_of(store: Metadata) -> int:
    """The format that the metadata names. Raises Corrupt."""
    record = store.read(FORMAT_KEY)
    if record is None:
        return 1
    if not record.value.isdigit():
        raise Corrupt(f"the record {FORMAT_KEY} cannot be read: it holds {record.value[:20]!r}")
    return int(record.value)


def _raise_format(store: Metadata) -> None:
    """Let the metadata name this version's format. Of several processes that do so at once, one of them wins."""
    record = store.read(FORMAT_KEY)
    if _format_of(store) < FORMAT:
        store.create(FORMAT_KEY, 1 if record is None else record.number + 1, str(FORMAT).encode())


def _read_file(root: Path) -> tuple[str, str, int]:
    """Id and metadata URL that a folder was used with, empty if it never was, and the format of its data."""
    path = root / ID_FILE
    try:
        value = json.loads(path.read_bytes())
        return str(value["cluster"]), str(value["metadata"]), int(value.get("format", 1))
    except FileNotFoundError:
        return "", "", 1
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{path} cannot be read: {error}") from error


def _write_file(root: Path, cluster: str, metadata: str) -> None:
    data = json.dumps({"cluster": cluster, "metadata": metadata, "format": FORMAT}).encode() + b"\n"
    path = root / ID_FILE
    if path.exists() and path.read_bytes() == data:
        return
    replace_file(path, data)


def _set_aside(root: Path, metadata: str) -> SetAside:
    """Move what the folder holds into a folder beside it, inside the data folder."""
    cluster, _, _ = _read_file(root)
    folder = root / f"forgotten-{cluster or 'unknown'}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    folder.mkdir(mode=0o700)
    own = [] if metadata == f"sqlite://{root / 'metadata.db'}" else sorted(root.glob("metadata.db*"))
    bookies = len(list(root.glob(f"bookies/*/{COOKIE}")))
    for path in [*(root / name for name in SET_ASIDE), *own]:
        if path.exists():
            path.rename(folder / path.name)
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return SetAside(cluster, folder, bookies, total)
