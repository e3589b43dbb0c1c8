"""The heaviest keys of a flood, gathered from the dispatchers of all partitions, in words and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

SHOWN = 5
_KINDS = {"messages": ("count", "counted"), "bytes": ("count", "countedBytes"), "held": ("millis", "heldMillis")}
"""The fields in a dispatcher's answer, by kind: the field of a key, and that of all keys."""
_TITLES = {"messages": "by messages", "bytes": "by bytes", "held": "by time held"}


def merged(answers: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Merge the answers of the partitions (the verb `hot_keys`, in order) into one list a kind, heaviest first.

    key: text, or None if no message of the key could be read. share: of all that the partitions counted, 0 to 1. A key
    is in one partition, so nothing is added up.
    """
    heaviest = {}
    for kind, (field, whole) in _KINDS.items():
        total = sum(one[whole] for one in answers)
        rows = [
            {"key": row["key"], "partition": partition, field: row[field], "share": round(row[field] / total, 4)}
            for partition, one in enumerate(answers)
            for row in one[kind]
        ]
        heaviest[kind] = sorted(rows, key=lambda row: (-row[field], row["partition"]))[:SHOWN]
    return heaviest


def in_words(heaviest: dict[str, list[dict[str, Any]]]) -> list[tuple[str, str]]:
    """A line a kind, for the terminal."""
    if not any(heaviest.values()):
        return []
    shares = ((kind, "  ".join(f"{_name(row)} {row['share']:.1%}" for row in rows)) for kind, rows in heaviest.items())
    return [("hot keys", "\n".join(f"{_TITLES[kind]}: {line}" for kind, line in shares if line))]


def table(heaviest: dict[str, list[dict[str, Any]]]) -> str:
    """The same for the page: a row a key, a column a kind."""
    if not any(heaviest.values()):
        return '<p class="note">No dispatcher could be asked.</p>'
    head = "".join(f'<th colspan="2">{_TITLES[kind]}</th>' for kind in heaviest)
    rows = ""
    for place in range(max(len(rows) for rows in heaviest.values())):
        cells = ""
        for kind_rows in heaviest.values():
            row = kind_rows[place] if place < len(kind_rows) else None
            cells += (
                f'<td>{escape(_name(row))}</td><td class="number">{row["share"]:.1%}</td>' if row else "<td></td>" * 2
            )
        rows += f"<tr>{cells}</tr>"
    return f"<table><tr>{head}</tr>{rows}</table>"


def _name(row: dict[str, Any]) -> str:
    """Keys may come from a file of anybody's: what a terminal would obey is shown as its code."""
    if row["key"] is None:
        return "without a name"
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in str(row["key"]))
