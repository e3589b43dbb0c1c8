"""Names that users choose: topics, subscriptions, consumers, producers.

A name becomes part of file names, object names, metadata keys, metric labels and web addresses, so what it may look
like is decided once, at the edge, and is narrow: ASCII letters, digits, dot, underscore and dash, beginning with a
letter or a digit, at most 128 characters, never two dots in a row. That leaves out every way to climb out of a folder
(`../`, absolute paths, NUL), every escape (`%2e`), and look-alike letters; names are compared exactly as they are.

A topic is in a namespace of a tenant, as with Pulsar: `persistent://public/default/orders`, or `orders` for short, or
`persistent://sales/eu/orders`. Two dots in a row, which no part may have, join the parts of all but the first kind, so
that what follows needs no other letters: everybody but the user knows that last topic as `sales..eu..orders`.
`orders-partition-3` is how Pulsar names the fourth partition of `orders`, so no topic may be called like that.

Pulsar's clients give topics, subscriptions and consumers any name. What it has of other letters is quoted for
everybody but them: `eu/billing` stands as `q--eu_2fbilling`, byte by byte in UTF-8.
"""

from __future__ import annotations

import re

from sluice.storage.errors import Invalid

MAX_NAME = 128
"""Longest name, in characters (all of them one byte)."""

TENANT_NAMESPACE = "public/default"
"""The tenant and namespace of a topic whose name says none."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PARTITION = re.compile(r"-partition-[0-9]+$")
_SHOWN = 40
_APART = ".."
_QUOTED = "q--"
_ODD = re.compile(rb"[^A-Za-z0-9.-]|(?<=[.])[.]")
_ESCAPE = re.compile(rb"_([0-9a-f]{2})")


def check_name(kind: str, text: str, *, short: bool = False) -> str:
    """Return the name to use, or raise Invalid with one line that says what is wrong.

    kind is the word for the message: `topic`, `subscription`, `consumer`, `producer`. Of a topic, the full form is
    accepted as well. short: it is refused, for those who use the name as it was given.
    """
    if not isinstance(text, str):
        raise Invalid(f"a {kind} name is text, not {type(text).__name__}")
    name = _short_topic(text) if kind == "topic" and not short else text
    shown = repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."
    if not name:
        raise Invalid(f"the {kind} name is empty")
    if len(name) > MAX_NAME:
        raise Invalid(f"{kind} name {shown} has {len(name)} characters; at most {MAX_NAME} are allowed")
    *space, own = name.split(_APART) if kind == "topic" else [name]
    if not all(_NAME.fullmatch(part) for part in [*space, own]):
        raise Invalid(f"{kind} name {shown} is not allowed: use A-Z a-z 0-9 . _ - and begin with a letter or a digit")
    if len(space) not in (0, 2) or any(part.endswith(".") for part in space) or _APART in own:
        raise Invalid(f"{kind} name {shown} is not allowed: it has two dots in a row")
    if "/".join(space) == TENANT_NAMESPACE:
        raise Invalid(f"topic name {shown} is not allowed: in that namespace it is called {own}")
    if kind == "topic" and _PARTITION.search(name):
        raise Invalid(f"topic name {shown} is not allowed: that is how a partition of a topic is named")
    return name


def quoted(text: str) -> str:
    """The name of whatever a client of Pulsar calls so: as it was if names may have its letters.

    One of blanks alone stays too, and nobody may have it.
    """
    if not text.strip() or (_NAME.fullmatch(text) and _APART not in text):
        return text
    return _QUOTED + _ODD.sub(lambda odd: b"_%02x" % odd[0][0], text.encode("utf-8", "backslashreplace")).decode()


def unquoted(name: str) -> str:
    """The name by which clients of Pulsar call it."""
    if not name.startswith(_QUOTED):
        return name
    try:
        text = _ESCAPE.sub(lambda odd: bytes.fromhex(odd[1].decode()), name.removeprefix(_QUOTED).encode()).decode()
    except UnicodeDecodeError:
        return name
    return text if quoted(text) == name else name


def namespace_of(topic: str) -> tuple[str, str]:
    """The tenant and namespace of a topic, and what it is called there: `sales/eu` and `orders`."""
    *space, own = topic.split(_APART)
    return "/".join(space) or TENANT_NAMESPACE, own


def check_space(kind: str, text: str) -> None:
    """Raises Invalid unless this is the name of a tenant, or of a namespace with its tenant's; kind: which of them."""
    parts = text.split("/")
    whole = len(parts) == (1 if kind == "tenant" else 2)
    if not whole or not all(_NAME.fullmatch(part) and not part.endswith(".") and _APART not in part for part in parts):
        raise Invalid(f"{kind} name {text[:_SHOWN]!r} is not allowed")


def _short_topic(text: str) -> str:
    """The topic's name without the default namespace, or with another one in front. Raises Invalid."""
    scheme, separator, rest = text.rpartition("://")
    if separator and scheme != "persistent":
        raise Invalid(f"topics of kind {scheme[:_SHOWN]!r} are not supported; use persistent:// or the short name")
    space, slash, name = rest.rpartition("/")
    if separator and not slash:
        raise Invalid(
            f"topic name {text[:_SHOWN]!r} has no tenant and namespace: write persistent://{TENANT_NAMESPACE}/..."
        )
    if not slash or space == TENANT_NAMESPACE:
        return name
    tenant, slash, namespace = space.partition("/")
    if not (tenant and namespace and name) or _APART in rest:
        raise Invalid(f"topic name {text[:_SHOWN]!r} is not allowed: the full form is tenant/namespace/topic")
    return _APART.join((tenant, namespace, name))
