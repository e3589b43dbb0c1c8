"""Names of sources in place of names of producers: a mark before the name, which no producer's name has, tells them
apart.
"""

from __future__ import annotations

_MARK = "="


def producer_of(source: str) -> str:
    """Return the name that stands for a source in place of a producer's."""
    return _MARK + source


def is_source(producer: str) -> bool:
    """Whether a run of this producer holds results."""
    return producer.startswith(_MARK)


def source_of(producer: str) -> str:
    """The name of the source that stands there."""
    return producer.removeprefix(_MARK)
