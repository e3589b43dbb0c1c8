"""Type variables of messages and producers: payloads, unless there is a schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    V = TypeVar("V", default=bytes)
    """The type of `message.value()`."""
    S = TypeVar("S", default=bytes | str)
    """The type that a producer sends."""
else:
    from typing import TypeVar

    V, S = TypeVar("V"), TypeVar("S")
