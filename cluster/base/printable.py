"""Text that others wrote, made safe for a terminal.

Keys, payloads, names and error texts come from anybody who may publish. A terminal obeys some characters in place of
showing them: with them a message could rename the window, hide lines, or overwrite an earlier verdict. They are shown
as their codes. So are characters that turn the direction of writing, and lone surrogates, which cannot be printed at
all.
"""

from __future__ import annotations

import re

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_ALSO_LINES = re.compile("[\t\n]|" + _OBEYED.pattern)


def printable(text: str, lines: bool = True) -> str:
    r"""The text with control characters as codes like `\x1b`. lines: tabs and line ends stay what they are."""
    return (_OBEYED if lines else _ALSO_LINES).sub(_code, text)


def printable_json(document: str) -> str:
    """A JSON document in which such characters stand as escapes that every reader of JSON understands."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def first_line(error: BaseException) -> str:
    """An error in one line: SQLAlchemy and Ray say more in further ones."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _code(found: re.Match[str]) -> str:
    code = ord(found[0])
    return {9: "\\t", 10: "\\n", 13: "\\r"}.get(code) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")
