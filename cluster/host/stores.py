"""Which object store and which metadata store a cluster has.

The stores of storage/ block; `cluster.host.store_ports` lets actors use them. A store is named by a URL:

    memory:                      nothing survives the process
    file:///var/sluice/objects   a folder (a plain path means the same)
    sqlite:///var/sluice/meta.db metadata in one SQLite file (a plain folder path: meta.db inside it)
    s3://bucket/prefix           S3, MinIO and others that honour If-None-Match; `endpoint` names the server
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sluice.cluster.base.real import logger
from sluice.cluster.host.store_ports import AsyncMeta, AsyncObjects
from sluice.storage.errors import Invalid
from sluice.storage.stores import objects as object_store
from sluice.storage.stores.metadata import MemoryMetadata, Metadata
from sluice.storage.stores.metadata_objects import ObjectMetadata
from sluice.storage.stores.metadata_sqlite import SqliteMetadata, read_only
from sluice.storage.stores.objects import LocalObjects, MemoryObjects, ObjectStore

METADATA_FILE = "metadata.db"
_AUTHORITY = re.compile("://[^/]*@")
"""The user's name and password, as they stand in front of a host."""


def open_objects(url: str, endpoint: str | None = None) -> AsyncObjects:
    """The object store that a URL names. Raises Invalid with the expected forms."""
    return AsyncObjects(_objects(url, endpoint))


def open_metadata(url: str, endpoint: str | None = None, quota: int = 0) -> AsyncMeta:
    """The metadata store that a URL names. Raises Invalid with the expected forms.

    quota: bytes, see cluster.host.metadata_quota; 0 is any number.
    """
    scheme, rest = _split(url, "sqlite:///path, a folder, s3://bucket/prefix or memory:")
    if scheme == "memory":
        return AsyncMeta(MemoryMetadata(), quota=quota)
    if scheme == "s3":
        return AsyncMeta(ObjectMetadata(_objects(url, endpoint)), quota=quota)
    if scheme == "sqlite":
        return AsyncMeta(SqliteMetadata(rest), quota=quota)
    return AsyncMeta(SqliteMetadata(Path(rest) / METADATA_FILE), quota=quota)


@contextlib.contextmanager
def read_metadata(url: str, endpoint: str | None = None) -> Iterator[Metadata]:
    """The metadata store that a URL names, to look at: nothing is made or changed. Raises Invalid, NotFound."""
    scheme, rest = _split(url, "sqlite:///path, a folder or s3://bucket/prefix")
    if scheme in ("sqlite", "file"):
        with read_only(rest if scheme == "sqlite" else Path(rest) / METADATA_FILE) as store:
            yield store
        return
    stores = open_metadata(url, endpoint)
    try:
        yield stores.store
    finally:
        stores.close()


def read_objects(url: str, endpoint: str | None = None) -> ObjectStore:
    """The object store that a URL names, to look at: nothing is made or changed. Raises Invalid."""
    scheme, rest = _split(url, "file:///path, a path, s3://bucket/prefix or memory:")
    return LocalObjects(rest, read_only=True) if scheme == "file" else _objects(url, endpoint)


def object_url(store: ObjectStore, name: str) -> str:
    """Return the URL at which other programs find an object. Raises Invalid for a store that no other process sees."""
    url_of = getattr(store, "url_of", None)
    if url_of is None:
        raise Invalid("objects in memory are seen by nobody else")
    return str(url_of(name))


def without_password(url: str) -> str:
    """A URL as errors may show it, which clients and logs get to see: without a name, a password and a query."""
    return _AUTHORITY.sub("://", url.partition("?")[0])


def is_visible(url: str) -> bool:
    """Whether this process can see the store that a URL names: one in memory is another process's. Raises Invalid."""
    scheme, rest = _split(url, "file:///path, sqlite:///path, a path, s3://bucket/prefix or memory:")
    return scheme == "s3" or (scheme != "memory" and Path(rest).exists())


def check_stores(urls: Iterable[str], endpoint: str | None = None) -> None:
    """Look at the URLs of stores before anything is started; an empty one is not looked at.

    In each store in S3 one object is written, read, listed and deleted; a connection to it that others can read is
    warned of. Raises Invalid in one line that names what a person has to mend (URL, endpoint, bucket, credentials,
    permission), Unavailable if nobody answers.
    """
    for url in dict.fromkeys(urls):
        if url and _split(url, "file:///path, sqlite:///path, a path, s3://bucket/prefix or memory:")[0] == "s3":
            store = _objects(url, endpoint)
            _warn_of_plain_http(getattr(store, "endpoint", ""))
            object_store.probe(store)


def _warn_of_plain_http(endpoint: str) -> None:
    """Warn of a store without TLS: others on the network can read and change messages, and what signs the requests."""
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    if parts.scheme == "http" and host != "localhost" and not _is_loopback(host):
        logger.warning("the S3 server at %s is spoken to without TLS: use https:// beyond this machine", endpoint)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _objects(url: str, endpoint: str | None) -> ObjectStore:
    scheme, rest = _split(url, "file:///path, a path, s3://bucket/prefix or memory:")
    if scheme == "memory":
        return MemoryObjects()
    if scheme == "s3":
        from sluice.storage.stores.s3 import S3Objects  # boto3 takes a third of a second to import

        bucket, _, prefix = rest.partition("/")
        return S3Objects(bucket, prefix.strip("/"), endpoint_url=endpoint)
    if scheme == "sqlite":
        raise Invalid(f"objects cannot be kept in SQLite; give file:///path or s3://bucket/prefix, not {url}")
    return LocalObjects(rest)


def _split(url: str, forms: str) -> tuple[str, str]:
    """(memory | file | sqlite | s3, the rest) of a URL."""
    if "://" not in url and url != "memory:":
        if not url:
            raise Invalid(f"a store is named by {forms}")
        if ":" in url.partition("/")[0]:
            raise Invalid(f"{url} is not a store: give {forms}")
        return "file", url
    parts = urlsplit(url)
    if parts.query or parts.fragment or parts.username or parts.password:
        raise Invalid(f"a store's URL has no query, fragment or password: {forms}")
    if parts.scheme in ("file", "sqlite") and not parts.netloc and len(parts.path) > 1:
        return parts.scheme, unquote(parts.path)
    if parts.scheme == "s3" and parts.netloc:
        return "s3", parts.netloc + parts.path
    if parts.scheme == "memory" and not parts.netloc and not parts.path:
        return "memory", ""
    raise Invalid(f"{url!r} names no store: {forms}")
