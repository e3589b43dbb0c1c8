"""One message that may not be stored fails alone, whatever was gathered with it; a batch is cut where it must be."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import Located, LocateTopic, OpenProducer, ProducerOpened, Publish, Published
from sluice.actors.ports import Ports
from sluice.actors.producer import batches as batches_module
from sluice.actors.producer.batches import Outgoing, cut
from sluice.actors.producer.producer import PartitionProducer, ProducerConfig
from sluice.actors.runtime.host import Actor
from sluice.storage.errors import Invalid, SluiceError, Terminated
from sluice.storage.format.batch import MAX_RUN_MESSAGES, StoredBatch, decode_body, make_batch
from sluice.storage.format.frame import make_run
from tests.sim.world import World

REFUSED = b"refused"


def batch_of(payloads: list[bytes]) -> StoredBatch:
    """Return a batch of the payloads, all of one key."""
    data = pa.record_batch({"key": ["k"] * len(payloads), "payload": pa.array(payloads, pa.binary())})
    return make_batch(data, now=1, producer="p")


class Owner(Actor):
    """The owner of a partition, who refuses each run with a message that it may not store."""

    def __init__(self, ports: Ports, error: SluiceError) -> None:
        super().__init__(ports)
        self.error = error
        self.stored: list[bytes] = []
        self.asked: list[tuple[int, int]] = []

    async def on_locate_topic(self, _: LocateTopic) -> Located:
        """Answer that the topic is here."""
        return Located(addresses=[self.ports.me])

    async def on_open_producer(self, _: OpenProducer) -> ProducerOpened:
        """A session."""
        return ProducerOpened(session=7, last_sequence=-1, epoch=2)

    async def on_publish(self, asked: Publish) -> Published:
        """All of it, or none."""
        assert asked.payload.data is not None
        self.asked.append((asked.first_sequence, asked.count))
        rows = decode_body(asked.payload.data[4 * asked.count :], asked.shape, asked.count)
        payloads = rows.column("payload").to_pylist()
        if REFUSED in payloads:
            raise self.error
        self.stored += payloads
        return Published(ledger=1, first_entry=len(self.stored) - len(payloads), count=asked.count)


def published(batches: list[StoredBatch], *, single: bool, error: SluiceError) -> tuple[Owner, dict[int, bool]]:
    """Publish these; the owner, and of each row in all of them whether it was stored."""
    owners: list[Owner] = []
    stored: dict[int, bool] = {}

    async def run(world: World) -> None:
        def owner(ports: Ports) -> Owner:
            owners.append(Owner(ports, error))
            return owners[0]

        address = await world.start("owner", owner, fixed=True)
        ports = world.client("client")
        producer = PartitionProducer(ports, Directory(ports, address), ProducerConfig("t", 0, "p", "p-1"))
        await producer.open()

        def done(rows: np.ndarray, first: int, error: SluiceError | None) -> None:
            for row in rows.tolist():
                assert row not in stored
                stored[row] = error is None

        first = 0
        for batch in batches:
            rows = np.arange(first, first + len(batch))
            producer.send(Outgoing(batch, first, rows, done, single=single))
            first += len(batch)
        await producer.flush()
        producer.close()

    World(1).play(run)
    return owners[0], stored


def payloads_with(refused: set[int], count: int) -> list[bytes]:
    """Return `count` payloads; those at the numbers in `refused` are refused."""
    return [REFUSED if number in refused else b"%d" % number for number in range(count)]


@pytest.mark.parametrize("refused", [{0}, {7}, {19}, {3, 4, 11}, set(range(20))])
def test_a_refused_message_fails_alone(refused: set[int]) -> None:
    payloads = payloads_with(refused, 20)
    owner, stored = published([batch_of(payloads)], single=True, error=Invalid("it has a key and a delay"))
    assert stored == {row: row not in refused for row in range(20)}
    assert owner.stored == [payload for payload in payloads if payload != REFUSED]


def test_a_refused_batch_fails_as_one_and_alone() -> None:
    """A batch that was sent as one is not divided; batches that were only gathered with it are stored."""
    batches = [batch_of(payloads_with(refused, 4)) for refused in (set[int](), {2}, set[int]())]
    owner, stored = published(batches, single=False, error=Invalid("it has a key and a delay"))
    assert stored == {row: not 4 <= row < 8 for row in range(12)}
    assert owner.stored == [b"0", b"1", b"2", b"3"] * 2


def test_refusal_that_blames_no_message_is_asked_once() -> None:
    owner, stored = published([batch_of([REFUSED] * 20)], single=True, error=Terminated("it takes no more"))
    assert owner.asked == [(0, 20)]
    assert stored == dict.fromkeys(range(20), False)


def test_a_batch_is_cut_at_so_many_messages() -> None:
    count = 2 * MAX_RUN_MESSAGES + 1
    batch = batch_of([b"x"] * count)
    pieces = cut(batch, np.arange(count))
    assert [len(piece) for piece, _ in pieces] == [MAX_RUN_MESSAGES, MAX_RUN_MESSAGES, 1]
    assert np.concatenate([rows for _, rows in pieces]).tolist() == list(range(count))


def test_a_batch_is_cut_at_so_many_bytes() -> None:
    """Each piece fits into a run, as large as it is, and a run that is needed less is not made."""
    megabytes = 4
    payload = bytes(megabytes << 20)
    batch = batch_of([payload] * 18)
    pieces = cut(batch, np.arange(18))
    assert [len(piece) for piece, _ in pieces] == [9, 9]
    for piece, _ in pieces:
        assert make_run(piece).count == 9


def test_a_message_beyond_every_limit_is_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "BODY_BYTES", 200)
    pieces = cut(batch_of([b"a", b"x" * 1_000, b"c", b"d"]), np.arange(4))
    assert [rows.tolist() for _, rows in pieces] == [[0], [1], [2, 3]]
