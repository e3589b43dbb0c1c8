"""The knowledge of the controller about pools of workers: a fenced record for each, and what its keeper reported last.

The record names the epoch of the keeper and what is wanted of the pool; it is in the metadata, so a keeper that was
replaced is refused whichever controller it asks. A keeper that Ray has started again after its death claims the pool
once more: the wishes of operators hold for it too, until a program starts the pool again with its own.

An epoch is used once. A pool whose name was forgotten may still have workers, which have heard of its keeper, and a
keeper that comes back: so the first epoch of a name is the time, and no later pool of the name has one of an earlier.

Reports are only in memory: keepers repeat them every second. So a new controller does not know at once which keeper a
pool has, and takes no keeper's silence for its end before it could have heard it. A pool owns nothing that a promise of
the broker depends on. So two keepers at once could do no more than start too many workers, and one that does not
reach the controller goes on.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec

from sluice.actors.messages import ClaimPool, DescribePools, Done, DrainPool, PoolWanted, ReportPool, ScalePool, Text
from sluice.actors.ownership.names import check_name
from sluice.actors.policies.policy_records import decoded
from sluice.actors.ports import Ports
from sluice.actors.runtime.host import Actor
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import Conflict, Corrupt, Fenced, Invalid, NotFound

PREFIX = "workers/"
MOST_POOLS = 1_000
MOST_REPLACED = 8
TRIES = 10
"""Writers of one record that come between are people and keepers that start; there are never many."""
SILENT_MS = 10_000
"""A pool whose keeper reported since then is kept by somebody."""
PROGRAM = "program"
FORGOTTEN_MS = 60_000
"""A pool that lives in a program and has said nothing for so long is not shown."""
TAILS_MS = 5_000
"""How long the last lines of workers are waited for."""


class PoolRecord(msgspec.Struct, kw_only=True, frozen=True):
    """In the metadata. claimed_at: ms since 1970. start, keeper: see messages.ClaimPool. replaced: the last keepers
    before this one. stopped: see messages.ReportPool.
    """

    epoch: int
    topic: str
    subscription: str
    kind: str
    version: str
    min_workers: int
    max_workers: int
    draining: bool = False
    claimed_at: int = 0
    start: str = ""
    stopped: str = ""
    keeper: str = ""
    replaced: tuple[str, ...] = ()


def pool_in(name: str, value: bytes) -> PoolRecord:
    """Decode the record of a pool. Raises Corrupt."""
    return decoded(value, PoolRecord, f"the record of the pool {name}")


class _Status(msgspec.Struct):
    """The part of a keeper's status that is read here."""

    failures: dict[str, str] = {}


def _check_readable(request: ReportPool) -> None:
    """Raise Invalid for a report that nobody could be shown."""
    try:
        msgspec.json.decode(request.status, type=_Status)
        msgspec.json.decode(request.tails or "{}", type=dict)
    except msgspec.DecodeError as error:
        raise Invalid(f"the report of the pool {request.name} cannot be read: {error}") from error


class PoolReport(NamedTuple):
    """A keeper's last report. heard: when, monotonic ms. at: the same, since 1970. record: the pool's record then."""

    heard: int
    at: int
    status: str
    record: PoolRecord


class WorkerPools(Actor):
    """The part of the controller that answers keepers and operators of pools."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._begun = ports.clock.monotonic()
        self._reported: dict[str, PoolReport] = {}
        """The last one, by name of a pool."""
        self._tails: dict[str, str] = {}
        self._tails_wanted: dict[str, Signal] = {}

    async def on_claim_pool(self, request: ClaimPool) -> PoolWanted:
        """See messages.ClaimPool. Raises Invalid, Fenced."""
        for kind, name in (("consumer", request.name), ("topic", request.topic)):
            check_name(kind, name)
        check_name("subscription", request.subscription)
        if request.min_workers > request.max_workers:
            raise Invalid(f"min_workers = {request.min_workers} is more than max_workers = {request.max_workers}")
        pools = await self.ports.meta.keys(PREFIX)
        if PREFIX + request.name not in pools and len(pools) >= MOST_POOLS:
            raise Invalid(f"there are {MOST_POOLS} pools of workers already")
        for _ in range(TRIES):
            number, known = await self._read(request.name)
            if known is not None and request.keeper and known.keeper == request.keeper:
                return self._wanted(request.name, known)
            if known is not None and request.keeper in known.replaced:
                raise Fenced(f"the pool {request.name} has a later keeper")
            record = PoolRecord(
                epoch=known.epoch + 1 if known is not None else self.ports.clock.now(),
                topic=request.topic,
                subscription=request.subscription,
                kind=request.kind,
                version=request.version,
                min_workers=request.min_workers,
                max_workers=request.max_workers,
                claimed_at=self.ports.clock.now(),
                start=request.start,
            )
            if known is not None and known.start and known.start == request.start:
                record = msgspec.structs.replace(known, epoch=record.epoch, claimed_at=record.claimed_at)
            before = () if known is None else tuple(filter(None, (*known.replaced, known.keeper)))
            record = msgspec.structs.replace(record, keeper=request.keeper, replaced=before[-MOST_REPLACED:])
            if await self._write(request.name, number, record):
                return self._wanted(request.name, record)
        raise Conflict(f"too many keepers claim the pool {request.name} at once")

    async def on_report_pool(self, request: ReportPool) -> PoolWanted:
        """See messages.ReportPool. Raises Fenced, Invalid."""
        _check_readable(request)
        number, record = await self._read(request.name)
        if record is None or record.epoch != request.epoch:
            raise Fenced(f"the pool {request.name} has another keeper now, or none")
        if request.ended:
            stopped = request.stopped or record.stopped
            if stopped and record.kind != PROGRAM and not record.draining:
                first = await self._write(request.name, number, msgspec.structs.replace(record, stopped=stopped))
            else:
                first = await self.ports.meta.remove(PREFIX + request.name, number)
            if not first:
                return await self.on_report_pool(request)  # an operator or another keeper was: see what holds now
            self._forget_pool(request.name)
        else:
            clock = self.ports.clock
            self._reported[request.name] = PoolReport(clock.monotonic(), clock.now(), request.status, record)
            if request.tails and (waiting := self._tails_wanted.pop(request.name, None)) is not None:
                self._tails[request.name] = request.tails
                waiting.set()
        return self._wanted(request.name, record)

    async def on_scale_pool(self, request: ScalePool) -> Done:
        """See messages.ScalePool. Raises Invalid, NotFound."""
        if request.min_workers > request.max_workers:
            raise Invalid(f"min_workers = {request.min_workers} is more than max_workers = {request.max_workers}")
        await self._change(request.name, min_workers=request.min_workers, max_workers=request.max_workers)
        return Done()

    async def on_drain_pool(self, request: DrainPool) -> Done:
        """See messages.DrainPool. Raises NotFound, Conflict."""
        number: int | None = None
        record: PoolRecord | None = None
        try:
            number, record = await self._read(request.name)
            if record is None:
                raise NotFound(f"there is no pool of workers {request.name!r}")
        except Corrupt:  # then nobody can keep it, nor change its record
            if not request.forget:
                raise
        kept = record is not None and not record.stopped
        if request.forget or not kept:
            if kept and self._silent_ms(request.name) < SILENT_MS:
                if request.name in self._reported:
                    raise Conflict(f"the pool {request.name} is kept: drain it without forgetting it")
                raise Conflict(f"this controller is new, and may not have heard who keeps {request.name}: ask again")
            if not await self.ports.meta.remove(PREFIX + request.name, number):
                raise Conflict(f"the pool {request.name} was claimed or changed at this moment: ask again")
            self._forget_pool(request.name)
        else:
            await self._change(request.name, draining=True)
        return Done()

    async def on_describe_pools(self, request: DescribePools) -> Text:
        """See messages.DescribePools. Raises NotFound if there is none of the name."""
        if not request.name:
            return Text(json=json.dumps(await self._rows()))
        if request.tails and await self._row(request.name) is not None:
            asked = self._tails_wanted.setdefault(request.name, Signal())
            await asked.wait(self.ports, TAILS_MS)
        row = await self._row(request.name)
        if row is None:
            raise NotFound(f"there is no pool of workers {request.name!r}")
        if request.tails:
            row["tails"] = json.loads(self._tails.pop(request.name, "") or "{}")
        return Text(json=json.dumps([row]))

    def pools_in_short(self) -> list[dict[str, Any]]:
        """Return a row for each pool that reports; failures: the last line of each, by key."""
        rows = []
        for name, (_, _, status, record) in sorted(self._reported.items()):
            told = json.loads(status)
            failures = {key: text.strip().splitlines()[-1:] for key, text in told.get("failures", {}).items()}
            if self._silent_ms(name) <= SILENT_MS:
                rows.append(
                    {
                        "name": name,
                        "topic": record.topic,
                        "subscription": record.subscription,
                        "wanted": [record.min_workers, record.max_workers],
                        "workers": told.get("workers", {}),
                        "oldestAgeMs": told.get("oldest_age_ms", 0),
                        "replaced": told.get("replaced", 0),
                        "reason": told.get("reason", ""),
                        "failures": {key: "".join(last) for key, last in failures.items()},
                    }
                )
        return rows

    async def _rows(self) -> list[dict[str, Any]]:
        """Return the rows of all pools except those with damaged records: asking for one by name raises Corrupt."""
        rows: list[dict[str, Any]] = []
        for key in await self.ports.meta.keys(PREFIX):
            try:
                row = await self._row(key.removeprefix(PREFIX))
            except Corrupt as error:
                self.ports.log("pool_unknown", key=key, error=str(error))
                continue
            rows += [] if row is None else [row]
        return rows

    async def _row(self, name: str) -> dict[str, Any] | None:
        _, record = await self._read(name)
        if record is None:
            return None
        _, at, status, _ = self._reported.get(name, PoolReport(0, 0, "{}", record))
        if record.kind == PROGRAM and self._silent_ms(name) > FORGOTTEN_MS:
            return None  # its program has died without a word
        wanted: dict[str, Any] = msgspec.to_builtins(record)
        return {"name": name, **wanted, "reported_at": at, "status": json.loads(status)}

    def _silent_ms(self, name: str) -> int:
        """How long its keeper has said nothing here, where it can have said something."""
        report = self._reported.get(name)
        return self.ports.clock.monotonic() - (self._begun if report is None else report.heard)

    async def _read(self, name: str) -> tuple[int, PoolRecord | None]:
        """The number of the newest version, 0 if there is none, and the record."""
        found = await self.ports.meta.read(PREFIX + name)
        return (0, None) if found is None else (found.number, pool_in(name, found.value))

    async def _write(self, name: str, number: int, record: PoolRecord) -> bool:
        return await self.ports.meta.create(PREFIX + name, number + 1, msgspec.json.encode(record))

    async def _change(self, name: str, **changes: Any) -> None:
        for _ in range(TRIES):
            number, record = await self._read(name)
            if record is None:
                raise NotFound(f"there is no pool of workers {name!r}")
            if await self._write(name, number, msgspec.structs.replace(record, **changes)):
                return
        raise Conflict(f"the pool {name} is changed by too many at once")

    def _wanted(self, name: str, record: PoolRecord) -> PoolWanted:
        return PoolWanted(
            epoch=record.epoch,
            min_workers=record.min_workers,
            max_workers=record.max_workers,
            draining=record.draining or bool(record.stopped),
            tails=name in self._tails_wanted,
        )

    def _forget_pool(self, name: str) -> None:
        self._reported.pop(name, None)
        self._tails.pop(name, None)
        self._tails_wanted.pop(name, None)
