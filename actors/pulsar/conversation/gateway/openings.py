"""The producers and consumers that a connection opens, also those that its client closes before they are there.

A client that has waited long enough for its PRODUCER or SUBSCRIBE says CLOSE_PRODUCER or CLOSE_CONSUMER, to be sure
that nothing is left of it, and may ask for the same id again. An object that is not open yet cannot be closed. So a
request to open one is noted as it is read, a CLOSE behind it takes it back, and its handler looks here last.

An open one takes a while to close: a producer's sends get their receipts, and a consumer's acknowledgements are passed
on. A request for the same id that was read behind that CLOSE does not mean the one that ends: a client that got it
would wait for ever. The request is refused until the CLOSE has its answer, and clients ask again.
"""

from __future__ import annotations

from typing import Any

from sluice.actors.pulsar.codec.protocol import ServerError
from sluice.actors.pulsar.refusals import CommandRefused

_ID = {
    "producer": "producer_id",
    "close_producer": "producer_id",
    "subscribe": "consumer_id",
    "close_consumer": "consumer_id",
}
"""The commands that open something or close it, and the field that names it."""


class Openings:
    """The producers and consumers that one connection has asked to open, and has not taken back."""

    def __init__(self) -> None:
        self._wanted: dict[tuple[str, int], list[Any]] = {}
        self._closing: dict[tuple[str, int], int] = {}
        """How many CLOSE commands have no answer yet."""

    def read(self, name: str, asked: Any) -> None:
        """A command was read: note what it opens, or take back what it closes."""
        if (field := _ID.get(name)) is None:
            return
        key = field, getattr(asked, field)
        if name.startswith("close"):
            self._wanted.pop(key, None)
            self._closing[key] = self._closing.get(key, 0) + 1
        else:
            self._wanted.setdefault(key, []).append(asked)

    def check_closed(self, name: str, asked: Any) -> None:
        """Raise CommandRefused while what has the id that this request names is being closed."""
        field = _ID[name]
        if (field, getattr(asked, field)) in self._closing:
            raise CommandRefused(ServerError.SERVICE_NOT_READY, f"what has this {field} is being closed; ask again")

    def check(self, name: str, asked: Any) -> None:
        """Raise CommandRefused if the client has closed what this request opens."""
        field = _ID[name]
        if not any(one is asked for one in self._wanted.get((field, getattr(asked, field)), ())):
            raise CommandRefused(ServerError.SERVICE_NOT_READY, f"the {name} was closed before it was open")

    def answered(self, name: str, asked: Any) -> None:
        """The request is over."""
        if (field := _ID.get(name)) is None:
            return
        key = field, getattr(asked, field)
        if name.startswith("close"):
            under_way = self._closing.pop(key) - 1
            if under_way:
                self._closing[key] = under_way
            return
        left = [one for one in self._wanted.get(key, ()) if one is not asked]
        if left:
            self._wanted[key] = left
        else:
            self._wanted.pop(key, None)
