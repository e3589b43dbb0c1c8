"""Answers a SQL query about topics with DuckDB, in this process: each topic that the query names is a view.

A view has the columns of cluster.client.bulk.READABLE, with times as timestamps, and the rows that Spark sees. DuckDB
itself reads the ledgers that lie in the object store as files; the others come as Arrow from the read path of the
client. Each scan of a query reads them again, and only as far as it goes on. A range of a ledger never changes, so
several scans see the same rows.

Keys and payloads are bytes. DuckDB's own cast of bytes to text escapes what is not ASCII; here `cast(key AS string)` is
UTF-8, as in Spark. Names in backticks, `timestamp_millis` and `unix_millis` are known as well.
"""

from __future__ import annotations

import glob
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import duckdb
import pyarrow as pa

from sluice.cluster.client.bulk import READABLE, TIMES
from sluice.cluster.client.log_reader import StoredRange
from sluice.cluster.history.log_read import ATTEMPTS, FOLDER, HistoryTask, LogRead
from sluice.cluster.node.stale_folders import claim, clear
from sluice.storage.errors import Invalid, SluiceError
from sluice.storage.format.position import ENTRY_BITS

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "TimeZone": "UTC",
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
}
"""No table is a variable of this program, and nothing is fetched from the network."""
_MACROS = """
CREATE TEMP MACRO sluice_text(x) AS CASE WHEN typeof(x) = 'BLOB'
    THEN decode(CAST(CAST(x AS VARCHAR) AS BLOB), 'replace') ELSE CAST(x AS VARCHAR) END;
CREATE TEMP MACRO timestamp_millis(x) AS make_timestamptz(CAST(x AS BIGINT) * 1000);
CREATE TEMP MACRO unix_millis(x) AS epoch_ms(x);
"""
_TEXT_TYPES = ("string", "text", "varchar")
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`([^`]*)`""")
_TYPES = {pa.binary(): "BLOB", pa.int64(): "BIGINT", pa.int32(): "INTEGER"}
_MADE = {"position": f"ledger << {ENTRY_BITS} | entry", "partition": "{partition}", "redelivery": "0"}
"""Columns that are not in a file."""


def query(text: str, topics: Iterable[str], read: Callable[[str], LogRead]) -> list[dict[str, Any]]:
    """Return the rows of the answer; times without a zone are UTC.

    topics: those that there are. read: how one of them is read. Raises Invalid if DuckDB cannot answer the query, and
    what the read of a topic raises.
    """
    clear(Path(tempfile.gettempdir()), FOLDER)
    with tempfile.TemporaryDirectory(prefix=FOLDER) as folder:
        claim(Path(folder))
        for _ in range(ATTEMPTS):
            with duckdb.connect(config=_SETTINGS | {"temp_directory": folder}) as database:
                answer = _Query(database, text, list(topics)).answered(read)
            if answer is not None:
                return answer
    raise Invalid(f"the query has no answer: objects went away in {ATTEMPTS} tries; ask again")


class _Query:
    """One attempt at a query, in a database of its own. Raises Invalid if the text is no query."""

    def __init__(self, database: duckdb.DuckDBPyConnection, text: str, topics: list[str]) -> None:
        self._database, self._topics = database, topics
        self._text = _QUOTED.sub(lambda found: found[0] if found[1] is None else f'"{found[1]}"', text)
        self._files: list[Path] = []
        self._streams: list[_Stream] = []
        database.execute(_MACROS)
        self._tree = self._parsed(self._text)
        if len(self._tree.get("statements", ())) != 1:
            why = self._tree.get("error_message", "it is one SELECT")
            raise Invalid(f"the query has no answer: {_line(why)}")
        tables = (node for node in _nodes(self._tree) if node.get("type") == "BASE_TABLE")
        self._names = {str(node["table_name"]) for node in tables}

    def answered(self, read: Callable[[str], LogRead]) -> list[dict[str, Any]] | None:
        """The rows; None if an object has gone away since the plan was made. Raises Invalid, NotFound, Unavailable."""
        views = [(topic, read(topic)) for topic in self._asked()]
        try:
            for topic, log in views:
                self._look_at(topic, log)
            relation = self._database.sql(self._with_casts())
            return [] if relation is None else _rows(relation.to_arrow_table())
        except duckdb.Error as error:
            for stream in self._streams:
                if stream.failure is not None:
                    raise stream.failure from None
            if not all(file.exists() for file in self._files):
                return None
            raise Invalid(f"the query has no answer: {self._unknown(error) or _line(error)}") from None

    def _parsed(self, text: str) -> dict[str, Any]:
        """DuckDB's tree of a text: its statements, or an error if one is no SELECT."""
        made = self._database.execute("SELECT json_serialize_sql($1)", [text]).fetchall()
        tree: dict[str, Any] = json.loads(made[0][0])
        return tree

    def _asked(self) -> list[str]:
        """The topics that the query names. For DuckDB names that differ in case alone are one. Raises Invalid."""
        exact = [topic for topic in self._topics if topic in self._names]
        others = {name.lower() for name in self._names} - {topic.lower() for topic in exact}
        found = exact + [topic for topic in self._topics if topic.lower() in others]
        if len({topic.lower() for topic in found}) < len(found):
            raise Invalid(f"the query names topics that differ in case alone ({', '.join(found)}); try --engine spark")
        return found

    def _unknown(self, error: duckdb.Error) -> str:
        """The name that is no topic, for an error that says so of a table."""
        known = {topic.lower(): topic for topic in self._topics}
        for name in sorted(self._names):
            if name.lower() not in known and f"Table with name {name} does not exist" in str(error):
                near = get_close_matches(name.lower(), known, 1)
                hint = f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(self._topics) or 'none'}"
                return f"there is no topic {name!r}; {hint}"
        return ""

    def _look_at(self, topic: str, log: LogRead) -> None:
        """Make the view of a topic as it is now."""
        columns = self._columns()
        files, tasks = _divided(log)
        self._files += [Path(file) for several in files.values() for file in several]
        selects = [_of_files(partition, several, log, columns) for partition, several in files.items()]
        if tasks or not selects:
            stream = _Stream(log, tasks, columns)
            self._database.register(f"sluice stream {len(self._streams)}", stream)
            selects.append(f'SELECT * FROM "sluice stream {len(self._streams)}"')
            self._streams.append(stream)
        self._database.execute(f'CREATE TEMP VIEW "{topic}" AS {" UNION ALL ".join(selects)}')

    def _columns(self) -> list[str]:
        """The columns that the query may use, at least one; all for a star, for a natural join and for whole rows."""
        words: set[str] = set()
        rows: set[str] = set()
        for node in _nodes(self._tree):
            words |= {str(value).lower() for value in node.values() if isinstance(value, str)}
            words |= {str(one).lower() for value in node.values() if isinstance(value, list) for one in value}
            if node.get("type") == "BASE_TABLE":
                rows |= {str(node[name]).lower() for name in ("alias", "table_name")}
        used = {
            str(node["column_names"][-1]).lower() for node in _nodes(self._tree) if node.get("class") == "COLUMN_REF"
        }
        if words & {"star", "natural"} or used & rows:
            return list(READABLE)
        return [name for name in READABLE if name in words] or ["entry"]

    def _with_casts(self) -> str:
        """The query, with the casts to text that read bytes as UTF-8."""
        (inner,) = self._parsed("SELECT sluice_text(0)")["statements"]
        call = inner["node"]["select_list"][0]
        changed = False
        for node in _nodes(self._tree):
            if node.get("class") == "CAST" and node["type_expr"].get("type_name", "").lower() in _TEXT_TYPES:
                argument = {**call["arguments"][0], "expression": node["child"]}
                alias, changed = node["alias"], True
                node.clear()
                node.update(call, alias=alias, arguments=[argument])
        if not changed:
            return self._text
        made = self._database.execute("SELECT json_deserialize_sql($1)", [json.dumps(self._tree)]).fetchall()
        return str(made[0][0])


class _Stream:
    """Rows that DuckDB takes as a stream of Arrow, from the beginning in each scan. failure: what ended one."""

    def __init__(self, log: LogRead, tasks: Sequence[StoredRange | HistoryTask], columns: Sequence[str]) -> None:
        self._log, self._tasks = log, tasks
        self._schema = pa.schema([(name, _arrow(name)) for name in columns])
        self.failure: SluiceError | None = None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Begin a scan; nothing is read before the first batch is asked for."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches()).__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for task in self._tasks:
                yield from self._log.read(task, self._schema)
        except SluiceError as error:
            self.failure = error
            raise


def _divided(log: LogRead) -> tuple[dict[int, list[str]], list[StoredRange | HistoryTask]]:
    """Divide a topic into the files of whole ledgers, by partition in order, and tasks for the rest."""
    present = log.present()
    files: dict[int, list[str]] = {}
    rest = []
    urls = {} if present.scan is None else {one.part.name: one.url for one in present.scan.objects(present.records)}
    for one in present.ranges:
        pieces, others = ([], [one]) if present.scan is None else present.scan.divide([one], present.records)
        places = [urlparse(urls[piece.part.name]) for piece in pieces]
        if others or one.first or not all(place.scheme == "file" for place in places):
            rest.append(one)
        else:
            files.setdefault(one.partition, []).extend(unquote(place.path) for place in places)
    return {partition: several for partition, several in files.items() if several}, log.tasks(present, rest)


def _of_files(partition: int, files: Sequence[str], log: LogRead, columns: Sequence[str]) -> str:
    """Select the wanted messages of some files of a partition."""
    made = [f"CAST({_MADE.get(name, name).format(partition=partition)} AS {_type(name)}) AS {name}" for name in columns]
    wanted = [f"publish_time >= make_timestamptz({log.wanted.since * 1000})"] if log.wanted.since is not None else []
    if log.wanted.until is not None:
        wanted.append(f"publish_time < make_timestamptz({log.wanted.until * 1000})")
    wanted += [f"key = from_hex('{key.hex()}')" for key in log.wanted.keys or ()]
    paths = ", ".join("'" + glob.escape(file).replace("'", "''") + "'" for file in files)
    where = f" WHERE {' AND '.join(wanted)}" if wanted else ""
    return f"SELECT {', '.join(made)} FROM read_parquet([{paths}]){where}"


def _type(name: str) -> str:
    if name in TIMES:
        return "TIMESTAMPTZ"
    return "MAP(VARCHAR, VARCHAR)" if pa.types.is_map(READABLE[name]) else _TYPES[READABLE[name]]


def _arrow(name: str) -> pa.DataType:
    return pa.timestamp("us", "UTC") if name in TIMES else READABLE[name]


def _nodes(tree: object) -> Iterator[dict[str, Any]]:
    """Every object in a tree of JSON, each before those in it."""
    if isinstance(tree, Mapping):
        yield tree  # type: ignore[misc]
    for one in tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list) else ():
        yield from _nodes(one)


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with the values that Spark's have: times without a zone, and sums of whole numbers as numbers."""
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz:
            table = table.set_column(at, field.name, table.column(at).cast(pa.timestamp(field.type.unit)))
    whole = [field.name for field in table.schema if pa.types.is_decimal(field.type) and not field.type.scale]
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
    for row in rows:
        row |= {name: int(row[name]) for name in whole if row[name] is not None}
    return rows


def _line(error: object) -> str:
    """An error in one line, without the picture of the place."""
    return " ".join(str(error).split("\n\nLINE ")[0].split())
