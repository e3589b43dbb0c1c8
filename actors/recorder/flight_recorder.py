"""The flight recorder of a process: writes the calls of its dispatchers into a ring of files, in the background.

The path of a message never waits for it. Calls gather in memory, and a task that is there only while there are some
writes them every `EVERY_MS`. A process that is killed loses at most those of that time. Dispatchers whose last snapshot
is in the older half of the ring are asked for a new one, so a replay can begin in the newer half. With each file they
are few, because a snapshot takes processor time.
"""

from __future__ import annotations

import heapq
from functools import partial

from sluice.actors.key_shared import History, KeySharedDispatcher
from sluice.actors.messages import SubscriptionSettings
from sluice.actors.ports import DiskFailed, DiskFull, Ports
from sluice.actors.recorder.flight_file import EVERY_MS, HEADER, RecordedCalls, RecordedSubscription, pack
from sluice.actors.recorder.recorded import RecordedDecisions, Recording, RecordingRoom
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import Unavailable

KEPT_MS = 3_600_000
PREFIX = "flight-"
_FILES = 8
"""Files of a full ring."""
_SNAPSHOTS = 128
"""The most dispatchers that are asked for a snapshot with a new file."""


class FlightRecorder:
    """Off until it is opened, and again when its disk fails."""

    def __init__(self) -> None:
        self._ports: Ports | None = None
        self._limit = 0
        self._recordings: dict[RecordedSubscription, Recording] = {}
        self._left: list[RecordedCalls] = []
        """The last calls of dispatchers that have ended."""
        self._ring: list[tuple[str, int, int]] | None = None
        """Name, bytes and time (ms) of the last record of each file, oldest first; None: not looked up yet."""
        self._next = 0
        self._room, self._hurry = RecordingRoom(self._wake), Signal()
        self._closing, self._idle = False, Signal()
        """Idle is set while nothing is being written."""
        self._idle.set()

    @property
    def on(self) -> bool:
        """Whether calls are kept."""
        return self._ports is not None

    def open(self, ports: Ports, limit: int) -> None:
        """Keep `limit` bytes of calls. ports: those of the process, with a disk of its own for this."""
        if self._ports is None and limit > 0:
            self._ports, self._limit = ports, limit

    async def close(self) -> None:
        """Write what was kept, and keep nothing more."""
        ports, self._closing = self._ports, True
        if ports is not None:
            self._hurry.set()
            await self._idle.wait(ports)
            self._ports = None

    def decisions(
        self,
        of: tuple[str, int, str, int],
        settings: SubscriptionSettings,
        *,
        partition: int,
        first_consumer: int,
        history: History,
    ) -> KeySharedDispatcher:
        """The decisions of a subscription, recorded if this is on; the arguments are theirs. of: see
        RecordedSubscription.
        """
        if self._ports is None:
            return KeySharedDispatcher(settings, partition=partition, first_consumer=first_consumer, history=history)
        recording = Recording(RecordedSubscription(*of), self._room)
        self._recordings[recording.of] = recording
        return RecordedDecisions(
            settings,
            recording,
            partition=partition,
            first_consumer=first_consumer,
            history=history,
            now=self._ports.clock.now(),
        )

    def remark(self, decisions: KeySharedDispatcher, text: str) -> None:
        """Keep a sentence about the dispatcher of these decisions, if they are recorded."""
        if isinstance(decisions, RecordedDecisions) and self._ports is not None:
            decisions.recording.remark(self._ports.clock.now(), text)

    def end(self, decisions: KeySharedDispatcher, reason: str) -> None:
        """End the recording of a dispatcher that has ended; write its last calls, with the reason."""
        if isinstance(decisions, RecordedDecisions) and self._ports is not None:
            recording = decisions.recording
            self.remark(decisions, f"the owner ended: {reason}")
            chunk = recording.taken(self._ports.clock.now())
            if chunk is not None:
                self._left.append(chunk)
            if self._recordings.get(recording.of) is recording:
                del self._recordings[recording.of]
            self._wake(hurry=True)  # its process may end with it

    def _wake(self, hurry: bool) -> None:
        if hurry:
            self._hurry.set()
        if not self._room.awake and self._ports is not None:
            self._room.awake = True
            self._idle.clear()
            self._ports.spawn(self._write(self._ports), "recorder")

    async def _write(self, ports: Ports) -> None:
        """Write until nothing has come for the usual time; one task at a time, because chunks keep their order."""
        try:
            while True:
                await self._hurry.wait(ports, 0 if self._closing else EVERY_MS)
                self._hurry.clear()
                now = ports.clock.now()
                chunks, self._left = self._left, []
                filled, self._room.filled = self._room.filled, []
                chunks += [chunk for each in filled if (chunk := each.taken(now)) is not None]
                if not chunks:
                    self._room.awake = False
                    return
                await self._append(ports, await ports.work(partial(_packed, chunks)), now)
        except (DiskFailed, DiskFull, Unavailable) as error:
            ports.log("recorder_off", error=str(error))
            self._ports = None  # `awake` stays, so nobody begins again
            for recording in self._recordings.values():
                recording.stop()
        finally:
            self._idle.set()

    async def _append(self, ports: Ports, packed: list[bytes], now: int) -> None:
        disk = ports.disk
        assert disk is not None
        if self._ring is None:
            names = [name for name in await disk.names() if name.startswith(PREFIX)]
            self._ring = [(name, await disk.size(name), now) for name in names]
            self._next = 1 + max((int(name.removeprefix(PREFIX)) for name in names), default=0)
            self._begin_file()
        name, size, _ = self._ring[-1]
        if size and size + sum(map(len, packed)) > self._limit // _FILES:
            self._begin_file()
            name, size, _ = self._ring[-1]
            self._ask_for_snapshots()
        parts = packed if size else [HEADER, *packed]
        size += sum(map(len, parts))
        self._ring[-1] = name, size, now
        await disk.append(name, parts, sync=False)
        while len(self._ring) > 1 and (
            sum(size for _, size, _ in self._ring) > self._limit or self._ring[0][2] < now - KEPT_MS
        ):
            await disk.delete(self._ring.pop(0)[0])

    def _ask_for_snapshots(self) -> None:
        for recording in self._recordings.values():
            recording.age += 1
        old = [recording for recording in self._recordings.values() if recording.age >= _FILES // 2]
        for recording in heapq.nlargest(_SNAPSHOTS, old, key=lambda recording: recording.age):
            recording.ask_for_snapshot()

    def _begin_file(self) -> None:
        assert self._ring is not None
        self._ring.append((f"{PREFIX}{self._next:08}", 0, 0))
        self._next += 1


def _packed(chunks: list[RecordedCalls]) -> list[bytes]:
    return list(map(pack, chunks))
