"""Objects that stay in their process: pickling one, as an argument of a Ray task for example, raises TypeError."""

from __future__ import annotations

from typing import ClassVar, NoReturn


class OfThisProcess:
    """Base of what has threads and connections of its process."""

    __slots__ = ()
    elsewhere: ClassVar[str]
    """What another process does instead."""
    inner: ClassVar[frozenset[str]] = frozenset({"elsewhere", "inner"})
    """Names that only other parts of this project use; `dir` and completion leave them out."""

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in self.inner]

    def __reduce__(self) -> NoReturn:
        """Raises TypeError, as pickle does for what it cannot take."""
        raise TypeError(f"a {type(self).__name__} stays in the process that it is of; {self.elsewhere}")
