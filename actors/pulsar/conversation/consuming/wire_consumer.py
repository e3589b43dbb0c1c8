"""A client's consumer on one partition: rows out as MESSAGE frames, acknowledgements back as rows.

What was sent is kept by the position of each frame's first row, so that an id that comes back needs nothing but that.
An id of an earlier connection is looked up in the log: the columns say how many rows it stands for. What a client is
done with before it came again is never sent.

The lease rules here as for every consumer. While it is not known to stand nothing is handed out, and when it is lost
the client is told to come back (CLOSE_CONSUMER), which makes it drop what it has in its queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sluice.actors.consumer.config import ConsumerCallbacks, ConsumerConfig
from sluice.actors.consumer.partition import PartitionConsumer
from sluice.actors.consumer.payload import DecodedRun, Payloads
from sluice.actors.consumer.revocations import TakingBack
from sluice.actors.consumer.unacked_messages import Received
from sluice.actors.messages import Event
from sluice.actors.pulsar.codec.delivery_encoder import encode_part, holes_in
from sluice.actors.pulsar.codec.frames import encode
from sluice.actors.pulsar.codec.message_encoder import Addressee
from sluice.actors.pulsar.codec.message_ids import parsed, position_of, read_ids
from sluice.actors.pulsar.codec.protocol import MessageId, command
from sluice.actors.pulsar.conversation.consuming.batch_reassembly import BatchReassembler, RowRange, leading
from sluice.actors.pulsar.conversation.consuming.hash_ranges import rows_outside
from sluice.actors.pulsar.conversation.consuming.log_extent import PATIENCE_MS, LogExtent
from sluice.actors.pulsar.conversation.consuming.unacked_frames import UnackedFrames
from sluice.actors.pulsar.conversation.consuming.wanted_consumer import ONE_HAS_ALL, WantedConsumer
from sluice.actors.pulsar.conversation.consuming.wire_reader import LogReader
from sluice.actors.pulsar.conversation.gateway.acked_batch_sizes import acknowledged_rows, rest_of_batch, rows_behind
from sluice.actors.pulsar.conversation.gateway.gateway import Gateway
from sluice.actors.pulsar.conversation.limits.rates import Passed, held_back
from sluice.actors.pulsar.conversation.limits.unacked_bytes import UnackedShare
from sluice.actors.pulsar.topic_names import TopicPartition
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import NotFound, SluiceError
from sluice.storage.format.batch import MAX_MESSAGE_BYTES
from sluice.storage.format.position import entry_of, ledger_of, show

LATE_MS = 20
"""Milliseconds between two looks while it is not known whether the lease still stands."""
SURE_MS = 100
"""The wait (ms) after which another consumer of a Failover subscription may have finished a message meanwhile."""
TOGETHER_FROM = 8
"""The least ids in an acknowledgement that are forgotten faster together."""
MOST_GRANTED = 50_000
"""Messages that may be on their way to one consumer, however many it has asked for."""
AHEAD_BYTES = 16 * 1024 * 1024
"""The same in bytes, by the size of those that came last: a client may read none of them. Where larger ones come after
them, no more is fetched while so many bytes wait to be sent.
"""
TAKING_BACK = TakingBack(shown_too=False)
MOST_UNACKNOWLEDGED = 200_000
"""Messages of which a reader's connection knows that they are not acknowledged. Of more, or of more than its share, the
first half counts as done: nothing of a reader is durable, and one that never acknowledges must not fill the memory.
"""
_ACTIVE = {"assigned": True, "revoked": False, "inactive": False}
"""The dispatcher's events as a consumer of a Failover subscription understands them: whether it is active."""
Rows = npt.NDArray[np.int64]
NOTHING: Rows = np.empty(0, np.int64)
NONE_READY: deque[RowRange] = deque()
"""The queue of a consumer to which batches need not go whole. Invariant: it stays empty."""


def earlier(one: int | None, other: int) -> int:
    """Return the earlier of two moments; the first may be None."""
    return other if one is None else min(one, other)


@dataclass(frozen=True, slots=True)
class ConsumingClient:
    """The parts of a connection that its consumer uses.

    write: sends bytes, in consecutive parts. lost: told when the client has to come back. alive: whether the client
    shows a sign of life. share: what it may leave unacknowledged.
    """

    write: Callable[..., None]
    lost: Callable[[WireConsumer], None]
    alive: Callable[[], Awaitable[bool]]
    share: UnackedShare


class WireConsumer:
    """A consumer on a connection."""

    # With thirty attributes each object would have a dictionary of its own otherwise, which takes 1.2 KB more.
    __slots__ = (
        "_active", "_alive", "_came_at", "_choked", "_cumulative", "_ended", "_extent", "_full", "_gateway", "_granted",
        "_in_a_row", "_key", "_looked_up", "_lookups", "_lost", "_noting", "_part", "_sent", "_share", "_size",
        "_subscribed", "_sure_at", "_unsent", "_waiting", "_whole", "_write", "asked", "closed", "epoch", "number",
        "opened", "payloads", "permits", "tp"
    )  # fmt: skip

    def __init__(
        self, gateway: Gateway, tp: TopicPartition, number: int, asked: WantedConsumer, client: ConsumingClient
    ) -> None:
        self._gateway = gateway
        self.tp, self.number, self.asked = tp, number, asked
        self._key = tp.topic, tp.partition, asked.subscription
        self._write, self._lost, self._alive, self._share = client.write, client.lost, client.alive, client.share
        self._sent = UnackedFrames(self._share.change)
        self._unsent: list[Received] = []
        self._size = MAX_MESSAGE_BYTES
        """Bytes of one message, by those that came last; the most as long as none came."""
        self._in_a_row = 1
        """Messages that clients make of one row, by those that were sent last: of batches that pass through unread."""
        self._cumulative = -1
        self._waiting = self._choked = self._subscribed = self._ended = self._full = False
        self._lookups, self._looked_up = 0, Signal()
        self._active: bool | None = None
        self.epoch: int | None = None
        self.permits = self._granted = 0
        self.opened = self.closed = False
        at, lazy = (tp.topic, tp.partition), asked.settings.type not in ONE_HAS_ALL
        self.payloads = Payloads(gateway.ports, gateway.directory, *at, gateway.decoded, lazy=lazy, sums=True)
        self._extent = LogExtent(gateway.directory, tp)
        self._noting = False
        self._sure_at: int | None = None
        """The time at which all waiting messages of a Failover subscription were not done, or had not come yet."""
        self._came_at: int | None = None
        """The same time for messages that came and were not looked at yet (`_unsent`)."""
        self._whole: BatchReassembler | None = None
        self._part = self._of_subscription() if asked.start is None else self._of_log(asked.start)

    def _of_subscription(self) -> PartitionConsumer | LogReader:
        gateway, tp = self._gateway, self.tp
        part = PartitionConsumer(
            gateway.ports,
            gateway.directory,
            ConsumerConfig(
                topic=tp.topic,
                partition=tp.partition,
                subscription=self.asked.subscription,
                name=self.asked.name,
                incarnation=gateway.fresh(self.asked.name),
                settings=self.asked.settings,
                said=self.asked.said,
                queue_size=0,
                ranges=self.asked.ranges,
                process=gateway.process,
                priority=self.asked.priority,
                keep_place=self.asked.named,
                read_compacted=self.asked.compacted,
                moves=self.asked.settings.type == "failover",  # only there it is told which one is active
                properties=self.asked.properties,
            ),
            self._callbacks(),
            self.payloads,
        )
        if self.asked.settings.type in ONE_HAS_ALL:
            self._whole = BatchReassembler(
                gateway.ports, part, self.payloads, want=self._want, send=self._send, idle=self._has_sent_all
            )
        return part

    def _of_log(self, at: int) -> PartitionConsumer | LogReader:
        ports, directory = self._gateway.ports, self._gateway.directory
        tp, compacted = self.tp, self.asked.compacted
        return LogReader(ports, directory, tp, at, self.payloads, self._callbacks(), compacted)

    def _callbacks(self) -> ConsumerCallbacks:
        return ConsumerCallbacks(on_received=self._received, on_event=self._on_event, taking_back=TAKING_BACK)

    def _has_sent_all(self) -> bool:
        return not (self._unsent or self._choked or self._full or self.blocked)

    @property
    def blocked(self) -> bool:
        """Whether it gets nothing because too much is not acknowledged."""
        return self._share.full and not self.is_reader

    @property
    def is_reader(self) -> bool:
        """Whether it reads the log past every subscription, and nothing of it is durable."""
        return self.asked.start is not None

    async def answers(self) -> bool:
        return not self.closed and await self._alive()

    def read_so_far(self) -> dict[str, Any]:
        """Return a reader's position, for people; empty for a consumer, whose subscription's owner reports it."""
        if not isinstance(self._part, LogReader):
            return {}
        return {
            "readPosition": show(self._part.at),
            "msgOutCounter": self._part.handed_out,
            "availablePermits": max(self.permits, 0),
            "unackedMessages": self.unacknowledged(),
        }

    async def open(self) -> None:
        """Attach. Raises SluiceErrors."""
        await self._part.open()
        self.opened = True
        if self.closed:
            await self._part.close()

    def flow(self, permits: int) -> None:
        """The client has room for more messages; it never gets more than a reasonable number at once."""
        self.permits += permits
        self._grant()
        if self._whole is not None and self._whole.ready:
            self._send()

    def _grant(self) -> None:
        """Keep as many messages on their way as the client wants, and one connection may."""
        here = 0 if self._whole is None else self._whole.waiting
        most = min(MOST_GRANTED, AHEAD_BYTES // self._size)
        wanted = min(self.permits, self._gateway.rates.at_once(self.tp.topic, self.asked.role, most))
        self._want(-(-wanted // self._in_a_row) - here)

    def _want(self, messages: int) -> None:
        """Set how many messages may be on their way."""
        more = messages - self._granted
        if more > 0:
            self._granted += more
            self._part.grant(more)

    def subscribed(self) -> None:
        """The client knows that it is subscribed, so it can learn whether it is the active consumer."""
        self._subscribed = True
        self._tell_active()
        if self._ended:
            self._tell_end()

    def _tell_active(self) -> None:
        if self._subscribed and self._active is not None and not self.closed:
            change = command("active_consumer", consumer_id=self.number, is_active=self._active)
            self._write(encode(change))

    def _tell_end(self) -> None:
        """Everything is done, and the topic was terminated."""
        self._ended = True
        if self._subscribed and not self.closed:
            self._write(encode(command("reached_end", consumer_id=self.number)))

    def choke(self, choked: bool) -> None:
        """The connection takes nothing for now, or takes something again."""
        self._choked = choked
        if not choked:
            self._send()

    # -- out ------------------------------------------------------------------------------------------------------

    def _received(self, part: Received) -> None:
        if self.is_reader and self.asked.ranges:
            part.close(rows_outside(part, self.asked.ranges))
        self._unsent.append(part)
        if self.asked.settings.type == "failover" and isinstance(self._part, PartitionConsumer):
            self._came_at = earlier(self._came_at, self._part.sure_at)
        known = self._size // 2 if self._size < MAX_MESSAGE_BYTES else 0
        self._size = min(max(part.size // max(len(part), 1), known, 1), MAX_MESSAGE_BYTES)
        self._send()
        self._look_for_room()

    def _look_for_room(self) -> None:
        """Fetch no more while enough waits to be sent."""
        waiting = sum(part.kept for part in self._unsent)
        full = waiting + (0 if self._whole is None else self._whole.waiting_bytes) > AHEAD_BYTES
        if full != self._full:
            self._full = full
            self._part.hold(full)

    def _send(self) -> None:
        self._send_some()
        if self._full:
            self._look_for_room()
        if self.asked.settings.type == "failover" and self._whole is not None:
            if not self._whole.waiting:
                self._sure_at = None
            elif self._sure_at is None:
                self._sure_at = self._gateway.ports.clock.monotonic()

    def _send_some(self) -> None:
        ready = NONE_READY if self._whole is None else self._whole.ready
        while (ready or self._unsent) and not (self._choked or self._noting or self.closed):
            if self.blocked:
                self._share.wait(self._send)
                return
            part = ready[0].part if ready else self._unsent[0]
            if not part.revoked and self._part.lease_over():
                if not self._waiting:
                    self._waiting = True
                    self._gateway.ports.spawn(self._look_again(), "lease")
                return
            if ready and not ready[0].is_open():
                self._let_go(ready.popleft())
            elif ready:
                if self.permits <= 0:
                    return  # what was asked for to complete a batch may have brought more than that
                if self._sure_at is not None and self._gateway.ports.clock.monotonic() - self._sure_at > SURE_MS:
                    self._noting = True
                    self._gateway.ports.spawn(self._ask_what_is_open(), "waited")
                    return
                stretch, left = leading(ready.popleft(), self.permits)
                if left is not None:
                    ready.appendleft(left)
                self._send_part(stretch)
            else:
                self._take_next()
            self._grant()

    def _take_next(self) -> None:
        part = self._unsent.pop(0)
        if self._came_at is not None:
            self._sure_at = earlier(self._sure_at, self._came_at)
        if not self._unsent:
            self._came_at = None
        self._granted -= len(part)
        if part.revoked or not len(part):
            return
        if self._whole is None:
            self._send_part(RowRange(part, 0, len(part)))
        else:
            self._whole.add(part)

    async def _look_again(self) -> None:
        while not self.closed and self._part.lease_over():
            await self._gateway.ports.clock.sleep(LATE_MS)
        self._waiting = False
        self._send()

    def _send_part(self, stretch: RowRange) -> None:
        part = stretch.part
        if int(part.positions[0]) <= self._cumulative:  # an earlier connection of this client was done with these
            self._part.acknowledge(part, np.flatnonzero(part.positions <= self._cumulative))
        if not stretch.is_open():
            self._let_go(stretch)
            return
        to = Addressee(self.number, self.tp.wire_partition, self.epoch)
        # The subscription remembers that of an earlier type as well; where several share a batch its pieces go alone.
        by_index = self._part.by_index and self.asked.settings.type in ONE_HAS_ALL
        known, gateway = self._sent if by_index else None, self._gateway
        waiting = stretch.waiting
        if waiting is None:
            missing = holes_in(part, (stretch.first, stretch.end)) if known is not None else NOTHING
            if len(missing) and isinstance(self._part, PartitionConsumer):
                self._wait_with(stretch)
                gateway.ports.spawn(self._ask_about(stretch, missing), "batches")
                return
            waiting = frozenset(missing.tolist())  # a reader has what is done nowhere but here
        between = None if stretch.end - stretch.first == len(part) else (stretch.first, stretch.end)
        whole, least = self._whole is not None, gateway.repeated_from
        pieces = encode_part(
            part, to, known, gateway.recent, waiting=waiting, vectorized_from=least, whole=whole, between=between
        )
        if whole and (pieces.mid_batch or stretch.rest) and not self._apart:
            self._wait_with(stretch)
            gateway.ports.spawn(self._note_apart(), "apart")
            return
        part.shown = len(part)
        if self._sent.known(pieces.positions).any():
            self._noting = True  # of which frame an acknowledgement speaks could not be told
            self._lost(self)
            return
        self._sent.add(part, pieces.firsts, pieces.counts, pieces.positions, pieces.indexes)
        messages = pieces.messages
        self._in_a_row = 1 + -(-pieces.unread // max(int(pieces.counts.sum()), 1))
        self.permits -= messages
        self._write(*pieces.parts)
        passed = Passed(self.tp.topic, self.tp.partition, self.asked.role, messages, pieces.size)
        if wait := gateway.rates.delivered(passed):
            self._noting = True
            gateway.ports.spawn(self._pause(wait), "rate")
        self._let_go(stretch)
        if self.is_reader and (self._sent.messages > MOST_UNACKNOWLEDGED or self._share.full):
            for one, rows in self._sent.remove(self._sent.oldest_half())[0]:
                self._part.acknowledge(one, rows)

    def _let_go(self, stretch: RowRange) -> None:
        """Rows were sent. What is given back is read again: nobody looks at them any more."""
        if self._whole is None:
            stretch.part.release()
        else:
            self._whole.let_go(stretch.part, stretch.end)

    async def _pause(self, wait: int) -> None:
        """Hand out no more for so many milliseconds, because of a dispatch rate; see held_back."""
        clock, rates = self._gateway.ports.clock, self._gateway.rates
        nothing = Passed(self.tp.topic, self.tp.partition, self.asked.role, 0, 0)
        await held_back(clock, {nothing: clock.monotonic() + wait}, rates.delivered, lambda: not self.closed)
        self._noting = False
        self._send()

    def _wait_with(self, stretch: RowRange) -> None:
        """Send nothing until something is known about these rows, which are the first to go then."""
        self._noting = True
        if self._whole is not None:
            self._whole.ready.appendleft(stretch)

    async def _ask_what_is_open(self) -> None:
        """Close waiting rows that another active consumer has acknowledged meanwhile: only open rows are sent."""
        assert self._whole is not None
        assert isinstance(self._part, PartitionConsumer)
        while self._unsent:
            self._take_next()
        await self._part.batches.close_done(self._whole.unsent)
        # However long it took, it is not asked about at once; what came meanwhile is, if that waited for as long.
        self._sure_at, self._noting = None, False
        self._send()

    async def _ask_about(self, stretch: RowRange, missing: Rows) -> None:
        """Send rows of batches once it is known which of the messages that are missing there are not done."""
        assert isinstance(self._part, PartitionConsumer)
        waiting = await self._part.batches.still_open(missing)
        self._noting = False
        if self._whole is not None and self._whole.ready and self._whole.ready[0] is stretch:
            self._whole.ready[0] = replace(stretch, waiting=frozenset(waiting.tolist()))
        self._send()

    @property
    def _apart(self) -> bool:
        """Whether an unknown id may stand for a part of a batch."""
        return isinstance(self._part, PartitionConsumer) and self._part.batches.apart

    async def _note_apart(self) -> None:
        """Send a part of a batch once the subscription says durably that it may."""
        assert isinstance(self._part, PartitionConsumer)
        await self._part.batches.send_apart()
        self._noting = False
        self._send()

    def _on_event(self, partition: int, event: Event) -> None:
        if event.kind in ("lost", "failed") and not self.closed:
            self._lost(self)
        elif event.kind == "end_of_topic":
            self._tell_end()
        elif self.asked.settings.type == "failover" and self._active != _ACTIVE.get(event.kind, self._active):
            self._active = _ACTIVE[event.kind]
            self._tell_active()

    # -- back -----------------------------------------------------------------------------------------------------

    async def acknowledge(self, ids: list[Any], *, cumulative: bool) -> list[int]:
        """The client acknowledges these ids. Those it was sent are passed on at once; others are looked up first.

        Returns the positions that may stand for more messages than is known here; of those the first is acknowledged.
        Raises Unavailable if one cannot be looked up now.
        """
        self._lookups += 1
        try:
            return await self._acknowledge(ids, cumulative=cumulative)
        finally:
            self._lookups -= 1
            self._looked_up.set()

    async def looked_up(self) -> None:
        """Wait until nothing that was acknowledged is being looked up any more."""
        while self._lookups:
            self._looked_up.clear()
            await self._looked_up.wait(self._gateway.ports)

    async def _acknowledge(self, ids: list[Any], *, cumulative: bool) -> list[int]:
        unsure: list[int] = []
        unknown = [(one, position_of(one)) for one in self._acknowledge_each(ids, cumulative=cumulative)]
        named = [] if self.is_reader else [(one, at) for one, at in unknown if at is not None]
        await self._extent.refresh([at for _, at in named])
        failure: SluiceError | None = None
        for one, at in named:
            end = self._extent.end_of(at)
            if end < at:  # nothing is there to be done with; what comes later is not meant
                self._cumulative = min(self._cumulative, self._extent.last)
                continue
            pieces = self._gateway.pieces
            count, sure = pieces.count(self._key, at, one.ack_set)
            if cumulative and not sure and self._begins(at + 1):
                count, sure = 1, True  # in the middle of what begins there, clients say what lies before it
            known = sure or pieces.begins(self._key, at)
            # the rest of the producer's batch was sent apart, or to others
            apart = known or self._apart or self.asked.settings.type not in ONE_HAS_ALL
            run: DecodedRun | None = None
            if not apart or (not known and count > 1):
                try:
                    run = await self.payloads.run(ledger_of(at), entry_of(at), patience=PATIENCE_MS)
                except NotFound:  # everybody is done with it
                    continue
                except SluiceError as error:
                    failure = error
                    continue
            if apart:
                count = min(count, end - at + 1 if run is None else rest_of_batch(run, at))
                self._done(at + acknowledged_rows(count, one.ack_set), cumulative=cumulative)
                unsure += [] if sure else [at]
            elif run is not None:
                self._done(rows_behind(run, at, one), cumulative=cumulative)
        if failure is not None:
            raise failure
        return unsure

    def _done(self, rows: Rows, *, cumulative: bool) -> None:
        """The client acknowledges these positions (ascending), whichever consumer was sent them."""
        self._part.acknowledge_positions(rows)
        if cumulative and len(rows):
            self._acknowledge_up_to(int(rows[-1]))

    def _begins(self, at: int) -> bool:
        """Return whether a sent message is known to begin at a position."""
        return self._sent.get(at) is not None or self._gateway.pieces.begins(self._key, at)

    async def stand_alone(self, positions: list[int]) -> bool:
        """Return whether none of these can have stood for more than one message. Raises Unavailable."""
        for at in positions:
            try:
                run = await self.payloads.run(ledger_of(at), entry_of(at), patience=PATIENCE_MS)
            except NotFound:  # everybody is done with it
                continue
            if "batch_index" not in run.rows.schema.names:
                continue
            row = entry_of(at) - run.first_entry
            index = run.rows.column("batch_index")[row : row + 2].to_pylist()
            if len(index) == 2 and index[0] is not None and index[1] == index[0] + 1:
                return False
        return True

    def _forget(self, positions: Rows) -> list[tuple[Received, Rows]]:
        """Take frames from the client's unacknowledged ones; return their rows, by part. The client may still name the
        ids, so the gateway remembers how many rows each stands for.
        """
        rows, counts = self._sent.remove(positions)
        known = counts > 0
        if known.any():
            self._gateway.pieces.remember(self._key, positions[known], counts[known])
        return rows

    def acknowledge_sent(self, ids: Sequence[bytes], *, cumulative: bool) -> list[Any]:
        """The client is done with these, which are as it sent them; returns those that it was not sent here."""
        if cumulative:
            return self._acknowledge_each(parsed(ids), cumulative=True)
        positions, others = read_ids(ids, self._gateway.repeated_from)
        unknown = self._acknowledge_each(others, cumulative=False)
        if len(positions):
            known = self._sent.known(positions)
            for part, rows in self._forget(positions[known]):
                self._part.acknowledge(part, rows)
            unknown += [MessageId(ledger=ledger_of(at), entry=entry_of(at)) for at in positions[~known].tolist()]
        return unknown

    def _acknowledge_each(self, ids: list[Any], *, cumulative: bool) -> list[Any]:
        """The same, one id after the other; what several stand for as a whole is taken together."""
        unknown: list[Any] = []
        whole: list[int] = []
        together = not cumulative and len(ids) >= TOGETHER_FROM
        rows_of: dict[Received, list[Rows]] = {}
        for one in ids:
            at = position_of(one)
            if together and not one.ack_set and at is not None and at in self._sent:
                whole.append(at)
                continue
            sent = None if at is None else self._sent.get(at)
            if one.ack_set and self.asked.settings.type in ONE_HAS_ALL:
                self._part.by_index = True
            if sent is None or at is None:
                unknown.append(one)
                if cumulative and at is not None:
                    self._acknowledge_up_to(at - 1)
                continue
            rows = sent.rows(one.ack_set)
            if cumulative:
                self._acknowledge_up_to(int(sent.part.positions[rows[-1]]) if len(rows) else at - 1)
                continue
            if len(rows) == sent.size:
                self._sent.pop(at)
                self._gateway.pieces.remember(self._key, np.array([at]), np.array([sent.size]))
            rows_of.setdefault(sent.part, []).append(rows)
        for part, rows in self._forget(np.array(whole, np.int64)) if whole else ():
            self._part.acknowledge(part, rows)
        for part, several in rows_of.items():
            self._part.acknowledge(part, np.concatenate(several))
        return unknown

    def _acknowledge_up_to(self, last: int) -> None:
        """Everything up to this position is done."""
        self._cumulative = max(self._cumulative, last)
        for entry in [entry for entry in self._sent if entry <= self._cumulative]:
            sent = self._sent.get(entry)
            assert sent is not None
            rows = sent.rows()
            rows = rows[sent.part.positions[rows] <= self._cumulative]
            self._part.acknowledge(sent.part, rows)
            if len(rows) == sent.size:
                self._sent.pop(entry)
                self._gateway.pieces.remember(self._key, np.array([entry]), np.array([sent.size]))

    async def confirmed(self) -> None:
        """Wait until every acknowledgement so far is durable. Raises Fenced if a session was lost before they were."""
        await self._part.wait_confirmed()

    def redeliver(self, ids: list[Any]) -> Coroutine[Any, Any, None]:
        """Give messages back, to be sent again; without ids everything that is not acknowledged. From here on nothing
        goes out that lies behind these. What is returned waits until the subscription has it durably.
        """
        if ids:
            named = [at for one in ids if (at := position_of(one)) is not None]
            return self._give_back(self._sent.remove(np.array(named, np.int64))[0])
        self._forget(np.array(list(self._sent), np.int64))
        for part in self._unsent:
            if not self.is_reader:  # which hands out again what is open
                part.close()
            self._granted -= len(part)
        self._unsent.clear()
        self._came_at = None
        if self._whole is not None:
            self._whole.clear()
        self._grant()
        self._look_for_room()
        return self._part.redeliver_all()

    async def _give_back(self, some: list[tuple[Received, Rows]]) -> None:
        if some:
            await self._part.nack(some, 0)

    def come_back(self) -> None:
        """The client has to subscribe again."""
        self._lost(self)

    async def close(self) -> None:
        """Leave; messages that are still held go to the others in order."""
        if self.closed:
            return
        self.closed = True
        self._forget(np.array(list(self._sent), np.int64))
        self._unsent.clear()
        if self._whole is not None:
            self._whole.clear()
        if self.opened:
            await self._part.close()
        elif isinstance(self._part, PartitionConsumer):
            self._part.closing = True  # it tries no more, and `open` closes it

    def unacknowledged(self) -> int:
        """Messages that the client has and is not done with."""
        return self._sent.messages
