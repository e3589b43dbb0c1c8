"""`sluice workers ...`: pools of workers that run in the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.options import WatchOption
from sluice.cli.output import say, show, show_json, show_one, watch
from sluice.cli.target import Target, takes
from sluice.storage.dates import iso_time

if TYPE_CHECKING:
    from sluice.cluster.client.client import Client

app = typer.Typer(no_args_is_help=True, help="Show and steer pools of workers.")

SILENT_S = 10
LOOK_S = 0.5

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the pool.")]


def _rows(client: Client, name: str = "", *, tails: bool = False) -> list[dict[str, Any]]:
    from sluice.cluster.workers.registry import pools

    return pools(client, name, tails=tails)


def _state(row: dict[str, Any]) -> str:
    if row.get("stopped"):
        return "stopped"
    if time.time() * 1000 - row["reported_at"] > SILENT_S * 1000:
        return "no keeper reports"
    return "draining" if row["draining"] else "running"


def _last_line(text: str) -> str:
    return "".join(text.strip().splitlines()[-1:])


def _short(row: dict[str, Any]) -> dict[str, Any]:
    told = row["status"]
    return {
        "name": row["name"],
        "topic": row["topic"],
        "subscription": row["subscription"],
        "lives": "in a program" if row["kind"] == "program" else row["kind"],
        "state": _state(row),
        "workers": f"{len(told.get('workers', {}))} of {row['min_workers']} to {row['max_workers']}",
        "handled": told.get("handled", 0),
        "failed": told.get("failed", 0),
        "replaced": told.get("replaced", 0),
        "oldest ms": told.get("oldest_age_ms", 0),
        "version": row["version"],
        "reason": _last_line(row.get("stopped", "")) or told.get("reason", ""),
    }


@app.command("list")
@takes("json")
def list_pools(target: Target, again: WatchOption = False) -> None:
    """List the pools of workers, with how each stands."""
    with target.join() as client:

        def once() -> None:
            rows = _rows(client)
            show(rows if target.json else [_short(row) for row in rows], target.json)

        watch(again, once)


@app.command()
@takes("json")
def status(target: Target, name: NameArgument, again: WatchOption = False) -> None:
    """Show one pool: its workers, what failed last, and what happened."""
    with target.join() as client:

        def once() -> None:
            row = _rows(client, name)[0]
            if target.json:
                show_json(row)
            else:
                _show(row)

        watch(again, once)


def _show(row: dict[str, Any]) -> None:
    told = row["status"]
    show_one({key: value for key, value in _short(row).items() if value != ""}, False)
    if row.get("stopped"):
        show([{"stopped": row["stopped"]}], False, title="why it has stopped")
    where, versions, overdue = (told.get(name, {}) for name in ("where", "versions", "overdue"))
    workers = [
        {
            "worker": worker,
            "state": state,
            "version": versions.get(worker, ""),
            "process": where.get(worker, ""),
            "takes too long with": ", ".join(overdue.get(worker, [])),
        }
        for worker, state in told.get("workers", {}).items()
    ]
    show(workers, False, title="workers")
    failures = [{"key": key, "traceback": text} for key, text in told.get("failures", {}).items()]
    if failures:
        show(failures, False, title="keys that failed last")
    events = [{"at": iso_time(at), "event": text} for at, text in told.get("events", [])]
    if events:
        show(events, False, title="events")


@app.command()
@takes()
def scale(
    target: Target,
    name: NameArgument,
    workers: Annotated[int, typer.Argument(min=1, max=1_000, help="How many there are to be at the least.")],
    most: Annotated[int | None, typer.Argument(min=1, max=1_000, help="At the most. Default: as many.")] = None,
) -> None:
    """Set how many workers a pool has. Its program's own numbers hold again when the program restarts the pool."""
    from sluice.cluster.workers.registry import scale as scale_pool

    with target.join() as client:
        scale_pool(client, name, workers, workers if most is None else most)
        until = f" to {most}" if most not in (None, workers) else ""
    say(f"{name} is to have {workers}{until} workers")


@app.command()
@takes()
def drain(
    target: Target,
    name: NameArgument,
    forget: Annotated[bool, typer.Option("--forget", help="Only forget the name of a pool that nobody keeps.")] = False,
) -> None:
    """Let a pool finish what is under way, hand over its keys, and end. Waits for it."""
    from sluice.cluster.workers.registry import drain as drain_pool

    with target.join() as client:
        drain_pool(client, name, forget=forget)
        if not forget:
            _wait_for_end(name, lambda: _rows(client, name)[0])
    say(f"{name} is {'forgotten' if forget else 'drained'}")


def _wait_for_end(name: str, row: Callable[[], dict[str, Any]]) -> None:
    """Wait until the pool has ended. Raises Conflict if it was started again, because nobody wants that one to end."""
    from sluice.storage.errors import Conflict, NotFound

    told = ""
    while True:
        try:
            now = row()
        except NotFound:
            return
        if not now["draining"]:
            raise Conflict(f"{name} is not drained any more: somebody has started it again")
        line = f"{len(now['status'].get('workers', {}))} workers go on" if _state(now) == "draining" else _state(now)
        if line != told:
            say(line)
            told = line
        time.sleep(LOOK_S)  # a keeper tells nobody but the controller


@app.command()
@takes("json")
def logs(target: Target, name: NameArgument) -> None:
    """Show the last lines that each worker of a pool has written, and what became of the workers."""
    with target.join() as client:
        row = _rows(client, name, tails=True)[0]
    if target.json:
        show_json({"events": row["status"].get("events", []), "tails": row["tails"]})
        return
    for at, text in row["status"].get("events", []):
        print(f"{iso_time(at)} {text}")
    for worker, text in row["tails"].items():
        for line in text.splitlines():
            print(f"{worker}: {line}")
