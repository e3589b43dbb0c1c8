"""A SEND frame of many messages, decoded a piece at a time: decoded whole it would hold up every other connection.

Nothing behind it is taken up before it is done, so a producer's frames stay in their order.
"""

from __future__ import annotations

from sluice.actors.ports import Clock
from sluice.actors.pulsar.codec.send_decoder import Send, decode_ahead
from sluice.actors.pulsar.conversation.producing.wire_producer import WireProducer

TURN_MS = 20
"""Pieces are decoded one behind the other for so long, or one in a turn while others speak."""


class LargeFrame:
    """A frame that is being decoded. size: bytes, about, that it takes once it is unpacked."""

    def __init__(self, producer: WireProducer, send: Send, size: int, largest: int) -> None:
        self.producer, self.send, self.size = producer, send, size
        self._pieces = decode_ahead(send, largest=largest)

    def go_on(self, clock: Clock, *, shared: bool) -> bool:
        """Decode some pieces. Returns whether that was all. shared: others speak."""
        until = clock.monotonic() + (0 if shared else TURN_MS)
        return all(clock.monotonic() < until for _ in self._pieces)
