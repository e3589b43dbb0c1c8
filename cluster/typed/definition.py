"""The schema of a Python type as Pulsar's registry keeps it: an Avro record, for values in JSON as well as in Avro.

msgspec says what a type consists of, and pydantic what the fields of its models are. A field with a default has it in
the schema too, so that a type may be given further fields. `int` is Avro's long, `float` its double, `X | None` a union
that begins with null if None is the default. Days and times are Avro's logical types in Avro, and text in JSON.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import inspect as kinds

from sluice.cluster.base.own_process import OfThisProcess
from sluice.storage.errors import Invalid

_EPOCH = datetime.date(1970, 1, 1)
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCALARS: dict[type, str] = {
    kinds.NoneType: "null",
    kinds.BoolType: "boolean",
    kinds.IntType: "long",
    kinds.FloatType: "double",
    kinds.StrType: "string",
    kinds.UUIDType: "string",
    kinds.DecimalType: "string",
    kinds.TimeType: "string",
    kinds.TimeDeltaType: "string",
}
_LISTS = (kinds.ListType, kinds.SetType, kinds.FrozenSetType, kinds.VarTupleType, kinds.CollectionType)
_IN_AVRO: dict[type, Any] = {
    kinds.BytesType: "bytes",
    kinds.DateTimeType: {"type": "long", "logicalType": "timestamp-micros"},
    kinds.DateType: {"type": "int", "logicalType": "date"},
}
_COMPLEX = (dict, list)


def is_model(kind: object) -> bool:
    """Whether this is a model of pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_fields") and hasattr(kind, "model_validate")


def is_typed(kind: object) -> bool:
    """Whether messages can have this type: a dataclass, a msgspec Struct, or a model of pydantic.

    The client's own types, Message for one, are dataclasses that no message carries.
    """
    if not isinstance(kind, type) or issubclass(kind, OfThisProcess):
        return False
    return dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct) or is_model(kind)


def check_typed(kind: object) -> None:
    """Raise Invalid for what is no type of messages."""
    if not is_typed(kind):
        raise Invalid(f"a schema is a dataclass, a msgspec.Struct or a pydantic model, not {kind!r}")


def definition_of(kind: type, *, avro: bool) -> dict[str, Any]:
    """Return the Avro schema of a type. avro: of values in Avro, else in JSON. Raises Invalid that names the field."""
    check_typed(kind)
    made: dict[str, Any] = _Definition(avro=avro).record(kind)
    return made


class _Definition:
    """The schema of one type. Of a record that stands in it twice, the second place has only the name."""

    def __init__(self, *, avro: bool) -> None:
        self._avro = avro
        self._named: dict[str, type] = {}

    def record(self, kind: type) -> Any:
        name = kind.__name__
        if self._named.get(name, kind) is not kind:
            raise Invalid(f"two types within a schema are called {name}: name them differently")
        if name in self._named:
            return name
        self._named[name] = kind
        return {
            "type": "record",
            "name": name,
            "fields": [self._field(kind, *field) for field in _fields_of(kind)],
        }

    def _field(self, owner: type, name: str, kind: kinds.Type, default: Any) -> dict[str, Any]:
        made = self._type(f"{owner.__name__}.{name}", kind)
        if default is _NONE:
            return {"name": name, "type": made}
        if default is None and isinstance(made, list):
            made = ["null", *(one for one in made if one != "null")]
        return {"name": name, "type": made, "default": self._default(default)}

    def _default(self, value: Any) -> Any:
        """A default as the schema has it."""
        if self._avro and isinstance(value, datetime.datetime):
            return round(value.timestamp() * 1_000_000)
        if self._avro and isinstance(value, datetime.date):
            return (value - _EPOCH).days
        if self._avro and isinstance(value, bytes):
            return value.decode("latin-1")
        return msgspec.to_builtins(value.model_dump(by_alias=True) if is_model(type(value)) else value)

    def _type(self, where: str, kind: kinds.Type) -> Any:
        if isinstance(kind, kinds.Metadata):
            return self._type(where, kind.type)
        if type(kind) in _SCALARS:
            return _SCALARS[type(kind)]
        if type(kind) in _IN_AVRO:
            return _IN_AVRO[type(kind)] if self._avro else "string"
        if isinstance(kind, _LISTS):
            return {"type": "array", "items": self._type(where, kind.item_type)}
        if isinstance(kind, kinds.DictType) and isinstance(kind.key_type, kinds.StrType):
            return {"type": "map", "values": self._type(where, kind.value_type)}
        if isinstance(kind, kinds.UnionType):
            return self._union(where, kind.types)
        if isinstance(kind, kinds.EnumType):
            return self._choice(where, kind.cls.__name__, [one.value for one in kind.cls], kind.cls)
        if isinstance(kind, kinds.LiteralType):
            return self._choice(where, "", list(kind.values), None)
        if isinstance(kind, kinds.StructType | kinds.DataclassType):
            return self.record(kind.cls)
        if isinstance(kind, kinds.CustomType) and is_model(kind.cls):
            return self.record(kind.cls)
        raise Invalid(f"{where} has a type that a schema cannot say: {getattr(kind, 'cls', type(kind).__name__)}")

    def _union(self, where: str, types: Iterable[kinds.Type]) -> list[Any]:
        made = [self._type(where, one) for one in types]
        if len([one for one in made if one != "null"]) > 1 and any(isinstance(one, _COMPLEX) for one in made):
            raise Invalid(f"{where} may be one of several types: a schema has at most one list, map or record there")
        return sorted(made, key=lambda one: one == "null")

    def _choice(self, where: str, name: str, words: list[Any], kind: type | None) -> Any:
        """The type of a choice of words: an enum where it has a name and the words are symbols, else their own type."""
        if kind is not None and all(isinstance(word, str) and _SYMBOL.fullmatch(word) for word in words):
            if self._named.get(name, kind) is not kind:
                raise Invalid(f"two types within a schema are called {name}: name them differently")
            if name in self._named:
                return name
            self._named[name] = kind
            return {"type": "enum", "name": name, "symbols": words}
        if all(isinstance(word, str) for word in words):
            return "string"
        if all(isinstance(word, int) for word in words):
            return "long"
        raise Invalid(f"{where} is a choice of words that are neither all text nor all numbers")


class _None(enum.Enum):
    """The default of a field that has none."""

    NONE = "none"


_NONE = _None.NONE


def _fields_of(kind: type) -> list[tuple[str, kinds.Type, Any]]:
    """Name in the message, type and default of each field."""
    if is_model(kind):
        return [
            (
                field.serialization_alias or field.alias or name,
                kinds.type_info(field.annotation),
                _NONE if field.is_required() else field.get_default(call_default_factory=True),
            )
            for name, field in kind.model_fields.items()  # type: ignore[attr-defined]
        ]
    try:
        info = kinds.type_info(kind)
    except (TypeError, NameError) as error:
        raise Invalid(f"{kind.__name__} has a field whose type cannot be read: {error}") from None
    assert isinstance(info, kinds.StructType | kinds.DataclassType)
    return [(field.encode_name, field.type, _default_of(field)) for field in info.fields]


def _default_of(field: kinds.Field) -> Any:
    if field.required:
        return _NONE
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
