"""Where the name of a producer stands, the name of a source stands with a mark before it, which no producer's has."""

from __future__ import annotations

_MARK = "="


def producer_of(source: str) -> str:
    """What stands for a source where a producer is named."""
    return _MARK + source


def is_source(producer: str) -> bool:
    """Whether a run of this producer holds results."""
    return producer.startswith(_MARK)


def source_of(producer: str) -> str:
    """The name of the source that stands there."""
    return producer.removeprefix(_MARK)
