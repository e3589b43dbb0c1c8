"""Typed values of one topic: what a consumer knows of the definitions that its messages were written with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from sluice.actors.messages import SchemaRead
from sluice.actors.pulsar.codec.protocol import Metadata
from sluice.actors.pulsar.codec.schema_versions import VERSION
from sluice.cluster.client.typed_values import TypedValues
from sluice.cluster.typed.codecs import codec_of
from sluice.storage.errors import NotFound, SluiceError, Unavailable
from sluice.storage.format.batch import make_batch
from tests.actors.pulsar.made import part


@dataclass
class Order:
    """A type of a user's."""

    amount: int


class Controller:
    """Answers with an error first, if it has one, and with a definition from then on."""

    def __init__(self, error: SluiceError) -> None:
        self._errors = [error]

    async def ask_controller(self, _: Any) -> SchemaRead:
        """Answer a client in place of the controller."""
        if self._errors:
            raise self._errors.pop()
        return SchemaRead(kind=4, definition=codec_of(Order, "avro").definition)


@pytest.mark.parametrize(("error", "again"), [(Unavailable("away"), [3]), (NotFound("no such schema"), [])])
async def test_definition_is_asked_for_again_if_it_may_come(error: SluiceError, again: list[int]) -> None:
    """A message that was given back because of a registry that was away comes again, and can be read then."""
    values = TypedValues(Controller(error), "orders", codec_of(Order, "avro"))
    rest: bytes = Metadata(schema_version=VERSION.pack(3)).SerializeToString()
    came = part(make_batch(pa.record_batch({"payload": [b"x"]}), now=1, producer="p", first_sequence=0))
    came.rows = came.rows.append_column("pulsar", pa.array([rest], pa.binary()))
    assert values.unknown_in(came) == [3]
    await values.load([3])
    assert values.unknown_in(came) == again
    await values.load(again)
    assert values.unknown_in(came) == []
