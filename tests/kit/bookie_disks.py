"""A bookie on a real disk, as a data folder has it, for tests of what reads such folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from sluice.actors.bookie import Bookie, BookieSettings
from sluice.actors.messages import AddRun
from sluice.actors.ports import Net, Ports
from sluice.cluster.base.real import RealClock, StructuredLog, Tasks, make_rng
from sluice.cluster.host.disk import FileDisk
from sluice.cluster.host.store_ports import AsyncMeta
from tests.actors.bookie.world import NoNet


async def store_runs(
    folder: Path, name: str, meta: AsyncMeta, requests: Sequence[AddRun], *, cluster: str = ""
) -> None:
    """Let a bookie store runs on its disk in a data folder, and stop."""
    disk = FileDisk(folder / "bookies" / name)
    tasks = Tasks(name)
    ports = Ports(
        me=name,
        clock=RealClock(),
        net=cast(Net, NoNet()),
        objects=None,  # type: ignore[arg-type]
        meta=meta,
        rng=make_rng(),
        spawn=tasks,
        log=StructuredLog(name),
        disk=disk,
    )
    settings = BookieSettings(min_free_bytes=0, reserve_bytes=4096)
    bookie = Bookie(ports, bookie_id=name, settings=settings, cluster=cluster)
    await bookie.start()
    for request in requests:
        await bookie.handle(request)
    await bookie.stop("done")
    tasks.cancel_all()
    disk.close()
