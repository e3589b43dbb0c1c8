"""Names that users choose: topics, subscriptions, consumers, producers.

A name becomes part of file names, object names, metadata keys, metric labels and web addresses, so what it may look
like is decided once, at the edge, and is narrow: ASCII letters, digits, dot, underscore and dash, beginning with a
letter or a digit, at most 128 characters, never two dots in a row. That leaves out every way to climb out of a folder
(`../`, absolute paths, NUL), every escape (`%2e`), and look-alike letters; names are compared exactly as they are.

Pulsar's full topic name `persistent://public/default/orders` is accepted for `orders`. There is one tenant and one
namespace; others are refused rather than quietly folded into one. `orders-partition-3` is how Pulsar names the
fourth partition of `orders`, so no topic may be called like that.
"""

from __future__ import annotations

import re

from storage.errors import Invalid

MAX_NAME = 128
"""Longest name, in characters (all of them one byte)."""

TENANT_NAMESPACE = "public/default"
"""The only tenant and namespace."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PARTITION = re.compile(r"-partition-[0-9]+$")
_SHOWN = 40


def check_name(kind: str, text: str, *, short: bool = False) -> str:
    """Return the name to use, or raise Invalid with one line that says what is wrong.

    kind is the word for the message: `topic`, `subscription`, `consumer`, `producer`. Of a topic, the full form of
    the one namespace is accepted and the short form returned. short: the full form is refused, for those who use the
    name as it was given.
    """
    name = _short_topic(text) if kind == "topic" and not short else text
    shown = repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."
    if not name:
        raise Invalid(f"the {kind} name is empty")
    if len(name) > MAX_NAME:
        raise Invalid(f"{kind} name {shown} has {len(name)} characters; at most {MAX_NAME} are allowed")
    if not _NAME.fullmatch(name):
        raise Invalid(f"{kind} name {shown} is not allowed: use A-Z a-z 0-9 . _ - and begin with a letter or a digit")
    if ".." in name:
        raise Invalid(f"{kind} name {shown} is not allowed: it has two dots in a row")
    if kind == "topic" and _PARTITION.search(name):
        raise Invalid(f"topic name {shown} is not allowed: that is how a partition of a topic is named")
    return name


def _short_topic(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if not separator:
        prefix = f"{TENANT_NAMESPACE}/"
        return text.removeprefix(prefix)
    if scheme != "persistent":
        raise Invalid(f"topics of kind {scheme[:_SHOWN]!r} are not supported; use persistent:// or the short name")
    space, _, name = rest.rpartition("/")
    if space != TENANT_NAMESPACE:
        raise Invalid(f"tenant and namespace {space[:_SHOWN]!r} do not exist; there is only {TENANT_NAMESPACE}")
    return name
