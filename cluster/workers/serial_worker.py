"""A worker whose handler is a plain function of one message at a time: it is called in the worker's own thread."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable

from cluster.message import Message
from cluster.receiver_queue import NothingArrived
from cluster.workers.ages import Rows
from cluster.workers.handler_worker import Handler, HandlerWorker, key_of, row_of


class SerialWorker(HandlerWorker):
    """No message waits outside of the consumer's queue, so none can be stale when its turn comes."""

    _now: Message | None = None
    """What is being handled."""
    _since = 0.0

    def _serve(self, call: Handler) -> None:
        receive, acknowledge, clock = self._consumer.receive, self._consumer.acknowledge, time.monotonic
        stopping = self._stop_asked.is_set
        while not stopping():
            try:
                message = receive()
            except NothingArrived:  # somebody woke it
                continue
            self._since = clock()
            self._now = message
            try:
                returned = call(message)
                if returned is not None:
                    self._finish(returned)
            except Exception:  # the handler is the user's: whatever it raises gives the message back
                self._give_back(key_of(message), message, traceback.format_exc())
            else:
                acknowledge(message)
                self._handled += 1
            self._now = None

    def _under_way(self) -> Iterable[tuple[bytes, float]]:
        message, since = self._now, self._since
        return [] if message is None else [(key_of(message), since)]

    def _taken(self) -> Iterable[Rows]:
        message = self._now
        return [] if message is None else [row_of(message)]
