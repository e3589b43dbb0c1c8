"""An Iceberg table of what a topic has in the object store, for every engine that reads Iceberg.

The table's files are the objects themselves (storage.history.part): nothing is written twice. It is partitioned by the
day of the publish time. A file belongs to one day; an object whose messages lie on several is copied, a file for each
day. One whose times are milliseconds, as an earlier version wrote them, is copied too, because Iceberg knows no such
times; a table that an earlier version made names it as it is, and has all its files exchanged once. The table's order
is by publish time, which is that of the log as far as the clocks of the producers agree. Its columns are those of the
history, and those that the objects have of what payloads say, added when they first come.

**The table follows the partitions' records** (actors.ledger.record), which alone say what there is. `follow` compares
the objects that they name with the files of the newest snapshot, and commits the difference at once: files that came
and files that went, because their ledger was trimmed or its messages were written again. An object's name is never used
twice. So a follower that was interrupted between two steps, or meets another one on the same table, compares again, and
nothing is in the table twice. Copies of what is not stored any more are deleted before the commit, also those that no
snapshot names: they may hold messages that are to be forgotten. The summary of a snapshot names the ledgers that came
with it and those that went.

A catalog is a SQL database, by default a SQLite file that needs no server, or a REST server. pyiceberg is the extra
`iceberg`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSelector, FileType
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.io.pyarrow import PyArrowFileIO, parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    IcebergType,
    IntegerType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)

from sluice.cluster.base.printable import first_line
from sluice.cluster.history.scan import Described, HistoryScan, StoredObject, StoreUrls
from sluice.cluster.host.stores import without_password
from sluice.storage.errors import Conflict, Invalid, NotFound, SluiceError, Unavailable
from sluice.storage.history.part import SCHEMA, in_microseconds

NAMESPACE = "sluice"
MICROSECONDS = "sluice.microseconds"
"""Property of a table of which no file has times in milliseconds."""
MOST_AGE = "history.expire.max-snapshot-age-ms"
"""Iceberg's own property of a table: how long its snapshots are kept. A table is made with WEEK_MS."""
WEEK_MS = 7 * 24 * 3600 * 1000
ATTEMPTS = 5
"""The number of attempts of a commit that loses its race."""
LEDGERS, GONE = "sluice.ledgers", "sluice.ledgers-gone"
"""Properties of a snapshot: PARTITION:LEDGER, divided by spaces."""
_NO_RETRIES = {"commit.retry.num-retries": "0"}  # a lost race means to compare again, not to commit the same again
_PLAIN: dict[pa.DataType, IcebergType] = {
    pa.int64(): LongType(),
    pa.int32(): IntegerType(),
    pa.binary(): BinaryType(),
    pa.string(): StringType(),
    pa.timestamp("us", "UTC"): TimestamptzType(),
    pa.float64(): DoubleType(),
    pa.bool_(): BooleanType(),
    pa.date32(): DateType(),
}


@dataclass(slots=True)
class TableChange:
    """A record of one commit's changes; ledgers as PARTITION:LEDGER. snapshot: 0 if there was nothing to commit."""

    snapshot: int = 0
    added: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


def open_catalog(uri: str, warehouse: str, s3_endpoint_url: str | None = None) -> Catalog:
    """The catalog at `sqlite:///FILE`, another SQL database, or `http(s)://HOST`, with tables in `warehouse` (a URL).

    Raises Invalid, Unavailable.
    """
    if "://" not in uri:
        raise Invalid(f"{uri} is no catalog: give sqlite:///FILE or http://HOST:PORT")
    kind = "rest" if uri.startswith(("http://", "https://")) else "sql"
    properties = {"type": kind, "uri": uri, "warehouse": warehouse}
    if s3_endpoint_url:
        properties["s3.endpoint"] = s3_endpoint_url
    if uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        catalog = _loaded(properties)
        _make_namespace(catalog)
        return catalog
    except SluiceError:
        raise
    except Exception as error:  # each kind of catalog fails in words of its own
        raise Unavailable(f"the catalog {without_password(uri)} does not answer: {first_line(error)}") from error


def _loaded(properties: dict[str, str]) -> Catalog:
    """The catalog. A database gets its two tables; who finds one made by others meanwhile fails, and looks again."""
    for _ in range(2):
        try:
            return load_catalog(NAMESPACE, **properties)
        except (RESTError, OSError):
            raise
        except Exception:  # a database says so in words of its own, and whatever else is wrong is still wrong
            continue
    return load_catalog(NAMESPACE, **properties)


def _make_namespace(catalog: Catalog) -> None:
    try:
        catalog.create_namespace(NAMESPACE)
    except NamespaceAlreadyExistsError:
        pass
    except Exception:  # where another process makes it at the same time, a database says so in words of its own
        if not catalog.namespace_exists(NAMESPACE):
            raise


class IcebergTable:
    """The Iceberg table of one topic's history."""

    def __init__(self, catalog: Catalog, urls: StoreUrls, topic: str) -> None:
        self._catalog, self._scan = catalog, HistoryScan(urls, topic)
        self.identifier = (NAMESPACE, self._scan.topic)

    @property
    def is_there(self) -> bool:
        """Whether the catalog has the table."""
        return bool(self._catalog.table_exists(self.identifier))

    def table(self) -> Table:
        """The table, made if it is missing."""
        try:
            return self._catalog.load_table(self.identifier)
        except NoSuchTableError:
            schema = iceberg_schema()
            time = schema.find_field("publish_time").field_id
            try:
                return self._catalog.create_table(
                    self.identifier,
                    schema,
                    partition_spec=PartitionSpec(PartitionField(time, 1000, DayTransform(), "publish_day")),
                    sort_order=SortOrder(SortField(time, IdentityTransform())),
                    properties={
                        MICROSECONDS: "true",
                        MOST_AGE: str(WEEK_MS),
                        "schema.name-mapping.default": schema.name_mapping.model_dump_json(),
                        **_NO_RETRIES,
                    },
                )
            except TableAlreadyExistsError:
                return self._catalog.load_table(self.identifier)

    def follow(self) -> TableChange:
        """Commit what the records name and the table has not, and the other way round, together. There is no table
        before there is something to be in it, and one of a deleted topic becomes empty.

        Raises NotFound if there is neither such a topic nor its table, Unavailable, Corrupt; Conflict if others commit
        all the time.
        """
        for _ in range(ATTEMPTS):
            try:
                copies = _copies_in(self.table()) if self.is_there else []
                stored = self._stored()
                if not stored and not self.is_there:
                    return TableChange()
                return self._commit_difference(self.table(), stored, copies)
            except (CommitFailedException, ValidationException):
                continue  # somebody else committed in between
            except (FileNotFoundError, NotFound):
                if not self._is_known():
                    raise
                continue  # an object went away after the records were read
            except SluiceError:
                raise
            except Exception as error:  # each kind of catalog fails in words of its own
                raise Unavailable(
                    f"the table of {self._scan.topic!r} cannot be reached: {first_line(error)}"
                ) from error
        raise Conflict(f"others commit to the table of {self._scan.topic!r} all the time; try again")

    def _is_known(self) -> bool:
        """Whether there is the topic, or a table of one that was deleted."""
        try:
            return bool(self._scan.records())
        except NotFound:
            return self.is_there

    def _stored(self) -> dict[str, StoredObject]:
        """The objects that the records name, by URL; none for a topic that was deleted. Raises NotFound."""
        try:
            return {one.url: one for one in self._scan.objects()}
        except NotFound:
            if self.is_there:
                return {}
            raise

    def _commit_difference(self, table: Table, stored: dict[str, StoredObject], copies: list[str]) -> TableChange:
        """copies: what there was of them before the objects that are stored were looked up."""
        held: dict[str, list[DataFile]] = {}
        for file in _files_of(table):
            held.setdefault(_origin_of(table, file.file_path), []).append(file)
        exchanged = table.properties.get(MICROSECONDS) != "true"
        came = [one for url, one in stored.items() if exchanged or (_name_of(one) not in held and url not in held)]
        known = {*stored, *(_name_of(one) for one in stored.values())}
        went = [file for origin, files in held.items() if exchanged or origin not in known for file in files]
        # The objects are their owner's to delete, and what is copied again is written over. Whoever was interrupted may
        # have left copies that no snapshot names, and may have deleted some that the newest one still does.
        for path in dict.fromkeys([*copies, *(file.file_path for file in went if _is_copy(table, file.file_path))]):
            if _origin_of(table, path) not in known:
                with contextlib.suppress(FileNotFoundError):
                    table.io.delete(path)
        if not came and not went:
            return TableChange()
        change = TableChange(added=_ledgers(came), gone=sorted({_ledger_in(file.file_path) for file in went}))
        described = [self._scan.described(one) for one in came]
        table = self._with_columns(table, pa.unify_schemas([pa.schema([]), *(what.columns for what in described)]))
        said = {LEDGERS: " ".join(change.added), GONE: " ".join(change.gone)}
        with table.transaction() as transaction:
            if exchanged:
                transaction.set_properties({MICROSECONDS: "true"})
            snapshots = transaction.update_snapshot({name: text for name, text in said.items() if text})
            with snapshots.overwrite() if went else snapshots.fast_append() as snapshot:
                for one, what in zip(came, described, strict=True):
                    for path in self._files(table, one, what):
                        snapshot.append_data_file(parquet_file_to_data_file(table.io, table.metadata, path))
                for file in went:
                    snapshot.delete_data_file(file)
        newest = self._catalog.load_table(self.identifier).current_snapshot()
        change.snapshot = 0 if newest is None else newest.snapshot_id
        return change

    def _with_columns(self, table: Table, columns: pa.Schema) -> Table:
        """The table with these columns, of what payloads say; committed before files that have them.

        One that is there with another type is of a topic of the same name that was deleted: the new one takes its name.
        """
        schema = table.schema()
        known = {name: schema.find_field(name).field_type for name in schema.column_names if name in columns.names}
        wanted = {column.name: _PLAIN[column.type] for column in columns}
        added = {name: kind for name, kind in wanted.items() if known.get(name) != kind}
        if not added:
            return table
        with table.update_schema() as update:
            for name, kind in added.items():
                if name in known:
                    update.delete_column(name)
                update.add_column(name, kind)
        return self._catalog.load_table(self.identifier)

    def _files(self, table: Table, one: StoredObject, what: Described) -> Iterator[str]:
        """The files that hold an object's messages, each of one day: itself, or copies.

        Raises NotFound, FileNotFoundError.
        """
        if what.days[0] == what.days[1] and not what.in_milliseconds:
            yield one.url
            return
        from pyarrow import parquet

        with table.io.new_input(one.url).open() as source:
            rows = in_microseconds(parquet.read_table(source))
        each = pc.floor_temporal(rows.column("publish_time"), unit="day")
        for day in pc.unique(each):
            path = f"{_copies(table)}{_name_of(one)}~{day.as_py():%Y-%m-%d}.parquet"
            with table.io.new_output(path).create(overwrite=True) as sink:
                parquet.write_table(rows.filter(pc.equal(each, day)), sink, compression="zstd", store_schema=False)
            yield path

    def expire(self, older_than: timedelta | None = None) -> int:
        """Forget snapshots that are older, but for the newest; returns how many. Nobody reads them any more.

        older_than: None is what the table says in its property MOST_AGE.
        """
        table = self.table()
        if older_than is None:
            older_than = timedelta(milliseconds=int(table.properties.get(MOST_AGE, WEEK_MS)))
        before = len(table.snapshots())
        table.maintenance.expire_snapshots().older_than(datetime.now() - older_than).commit()  # it wants local time
        return before - len(self.table().snapshots())


def iceberg_schema() -> Schema:
    """SCHEMA of storage.history.part in Iceberg's words. No column is required, so that later files may have fewer."""
    fields, behind = [], len(SCHEMA)
    for number, column in enumerate(SCHEMA, 1):
        kind = _PLAIN.get(column.type)
        if kind is None:
            kind = MapType(behind + 1, StringType(), behind + 2, StringType(), value_required=False)
            behind += 2
        fields.append(NestedField(number, column.name, kind, required=False))
    return Schema(*fields)


def _files_of(table: Table) -> Iterator[DataFile]:
    snapshot = table.current_snapshot()
    for manifest in [] if snapshot is None else snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file


def _copies(table: Table) -> str:
    return f"{table.location()}/data/"


def _copies_in(table: Table) -> list[str]:
    """The paths of all copies that there are, whether a snapshot names them or not."""
    scheme, host, folder = PyArrowFileIO.parse_location(_copies(table), table.properties)
    files = PyArrowFileIO(table.io.properties).fs_by_scheme(scheme, host)
    found = files.get_file_info(FileSelector(folder.rstrip("/"), allow_not_found=True))
    return [_copies(table) + info.base_name for info in found if info.type is FileType.File]


def _is_copy(table: Table, path: str) -> bool:
    return path.startswith(_copies(table))


def _name_of(one: StoredObject) -> str:
    """An object's name within its topic, as part of a file name."""
    return f"{one.partition}+{one.part.name.rpartition('/')[2].removesuffix('.parquet')}"


def _origin_of(table: Table, path: str) -> str:
    """Return the URL of the object that a file is, or the name of the object that it copies."""
    return path.removeprefix(_copies(table)).partition("~")[0] if _is_copy(table, path) else path


def _ledger_in(path: str) -> str:
    """PARTITION:LEDGER of a file, by its path."""
    *_, folder, name = path.split("/")
    partition, plus, own = name.partition("+")
    return f"{partition}:{int(own.split('-')[0])}" if plus else f"{folder.rstrip('+')}:{int(name.split('-')[0])}"


def _ledgers(objects: list[StoredObject]) -> list[str]:
    return [f"{partition}:{ledger}" for partition, ledger in sorted({(one.partition, one.ledger) for one in objects})]
