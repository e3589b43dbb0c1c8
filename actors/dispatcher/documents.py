"""Answers for people: any tree of plain values, bytes and numpy values as a JSON document."""

from __future__ import annotations

import json

from actors.messages import Text


def document(value: object) -> Text:
    """The value as JSON; bytes as UTF-8 with replacement, numpy values as plain ones."""
    return Text(json=json.dumps(value, default=_plain))


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON")
