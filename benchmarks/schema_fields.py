"""What columns for the fields of a schema cost when ledgers leave: one JSON object on standard output.

    .venv/bin/python -m benchmarks.schema_fields [--messages N] [--rounds N]

Orders of five fields (text, a number, a price, a time, and one that is often null), as a client of Pulsar's sends them
with an Avro or a JSON schema, are written as files of the history, without and with columns beside the payloads, and
read back as a broker reads them. Times are processor time of this process in microseconds a message, bytes are those of
the files, a message; the medians of all rounds.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from sluice.actors.pulsar.codec.protocol import Metadata
from sluice.actors.pulsar.codec.schema_versions import VERSION
from sluice.cluster.base.arguments import ArgumentParser, count
from sluice.cluster.history.schema_columns import SchemaColumns
from sluice.storage.format.batch import GIVEN_BY_CLIENTS, make_batch
from sluice.storage.format.frame import Frame, Header, make_run
from sluice.storage.history.part import PartWriter, SealedPart, decode_footer, decode_group
from sluice.storage.history.schema_fields import AVRO, JSON, Definition

RUN, GROUP_RUNS = 5_000, 4
FIELDS: list[dict[str, Any]] = [
    {"name": "article", "type": "string"},
    {"name": "amount", "type": "int"},
    {"name": "price", "type": "double"},
    {"name": "note", "type": ["null", "string"]},
]


def schema_of(time_type: Any) -> dict[str, Any]:
    """An order, with times of this type."""
    return {"type": "record", "name": "Order", "fields": [*FIELDS, {"name": "at", "type": time_type}]}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=count, default=200_000)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--small", action="store_true", help="one round of few messages")
    options = parser.parse_args()
    if options.small:
        options.messages, options.rounds = 20_000, 1
    told = {}
    registered = schema_of({"type": "long", "logicalType": "timestamp-millis"})
    for name, kind in (("avro", AVRO), ("json", JSON)):
        frames = list(runs(options.messages, kind))
        columns = SchemaColumns([Definition(0, kind, json.dumps(registered).encode())])
        rounds = [measured(frames, made) for _ in range(options.rounds) for made in (None, columns)]
        told[name] = {
            beside: {what: round(statistics.median(one[what] for one in rounds[at::2]), 2) for what in rounds[0]}
            for at, beside in enumerate(("without", "with"))
        }
    print(json.dumps({"messages": options.messages, **told}, indent=2))


def measured(frames: list[Frame], columns: SchemaColumns | None) -> dict[str, float]:
    """One file, written and read."""
    messages = sum(frame.header.count for frame in frames)
    began = time.process_time()
    writer = PartWriter(1, 0, 0, columns)
    for start in range(0, len(frames), GROUP_RUNS):
        writer.add(frames[start : start + GROUP_RUNS])
    part = writer.finish()
    written = time.process_time()
    if part.undecoded:
        raise SystemExit(f"{part.undecoded} payloads did not decode")
    read(part)
    return {
        "write_us": (written - began) / messages * 1e6,
        "read_us": (time.process_time() - written) / messages * 1e6,
        "bytes": len(part.data) / messages,
        "payload_bytes": sum(len(frame.payload) for frame in frames) / messages,
    }


def read(part: SealedPart) -> None:
    """All runs of a file, by its bytes."""
    size = len(part.data)
    footer = decode_footer(bytes(part.data[size - part.footer_bytes :]), size, part.footer_crc)
    for number, group in enumerate(footer.groups):
        decode_group(footer, number, bytes(part.data[group.start : group.start + group.length])).frames()


def runs(messages: int, kind: int) -> Iterator[Frame]:
    """Orders as stored runs."""
    chance = np.random.default_rng(7)
    rest = Metadata(producer_name=b"p", schema_version=VERSION.pack(0)).SerializeToString()
    schema = fastavro.parse_schema(schema_of("long"))
    for run, first in enumerate(range(0, messages, RUN)):
        rows = min(RUN, messages - first)
        orders = [order(number, chance) for number in range(first, first + rows)]
        payload = [avro(schema, one) if kind == AVRO else json.dumps(one).encode() for one in orders]
        data = {
            "key": [b"%d" % (number % 1_000) for number in range(rows)],
            "payload": payload,
            "pulsar": [rest] * rows,
        }
        batch = make_batch(pa.table(data), now=1_000 + run, producer="p", accepted=GIVEN_BY_CLIENTS)
        made = make_run(batch)
        header = Header(1, run, first, rows, 1, first - 1, "p", first, made.delayed, made.shape, made.crc)
        yield Frame(header, made.payload)


def order(number: int, chance: np.random.Generator) -> dict[str, Any]:
    """The values of one."""
    return {
        "article": f"article-{chance.integers(500)}",
        "amount": int(chance.integers(1, 20)),
        "price": round(float(chance.random()) * 100, 2),
        "at": 1_700_000_000_000 + number,
        "note": None if number % 10 else f"note {number}",
    }


def avro(schema: Any, values: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, schema, values)
    return sink.getvalue()


if __name__ == "__main__":
    main()
