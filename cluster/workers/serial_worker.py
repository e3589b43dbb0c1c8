"""A worker whose handler is a plain function of one message at a time: it is called in the worker's own thread.

Messages are taken from the consumer AT_ONCE, and what is done is acknowledged together: at the end of these, before
something is given back, and every ACKNOWLEDGE_S. So a message costs less than one that is received and acknowledged by
itself, and a handler that takes long has each of its messages acknowledged when it is done.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable

import numpy as np

from sluice.cluster.client.message import Message
from sluice.cluster.workers.ages import Rows
from sluice.cluster.workers.handler_worker import Handler, HandlerWorker, key_of

AT_ONCE = 128
ACKNOWLEDGE_S = 0.01
STOOD_STILL_S = 0.05
"""A message before which more time has passed than this may be another's by now."""


class SerialWorker(HandlerWorker):
    """One message is under way at a time."""

    _chunk: tuple[Message, ...] = ()
    """What was taken: messages of one part."""
    _index = 0
    """Which of them is being handled."""
    _since = 0.0

    def _serve(self, call: Handler) -> None:
        while not self._stop_asked.is_set():
            chunk = self._consumer.receive_several(AT_ONCE)
            if chunk:
                self._work_through(chunk, call)

    def _work_through(self, chunk: list[Message], call: Handler) -> None:
        clock, stopping = time.monotonic, self._stop_asked.is_set
        part = chunk[0].batch.received
        done: list[int] = []
        before = acknowledged = self._since = clock()
        self._index, self._chunk = 0, tuple(chunk)
        try:
            for index, message in enumerate(chunk):
                now = clock()
                if done and now - acknowledged > ACKNOWLEDGE_S:
                    self._acknowledge(done)
                    acknowledged = now
                if stopping():
                    break
                unsure = part.revoked or part.taken_back is not None or now - before > STOOD_STILL_S
                if unsure and not self._is_ours(message):
                    continue
                self._index, self._since, part.shown = index, now, message.row + 1
                try:
                    returned = call(message)
                    if returned is not None:
                        self._finish(returned)
                except Exception:  # the handler is the user's: whatever it raises gives the message back
                    self._acknowledge(done)
                    self._nack(key_of(message), message, traceback.format_exc())
                else:
                    done.append(message.row)
                before = now
        finally:
            self._acknowledge(done)
            self._chunk = ()

    def _acknowledge(self, done: list[int]) -> None:
        """Acknowledge finished rows of the part, and clear the list."""
        if done:
            self._consumer.acknowledge(self._chunk[0].batch, rows=np.array(done))
            self._handled += len(done)
            done.clear()

    def _under_way(self) -> Iterable[tuple[bytes, float]]:
        chunk, index, since = self._chunk, self._index, self._since
        return [(key_of(chunk[index]), since)] if chunk else []

    def _taken(self) -> Iterable[Rows]:
        left = self._chunk[self._index :]
        return [(left[0].batch.received, np.array([message.row for message in left]))] if left else []
