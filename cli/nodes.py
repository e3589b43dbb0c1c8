"""`sluice nodes ...`: takes machines out of a cluster that goes on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.output import say
from sluice.cli.target import Target, takes

if TYPE_CHECKING:
    from sluice.cluster.client.client import Client

app = typer.Typer(no_args_is_help=True, help="Take machines out of a cluster that goes on.")

LOOK_S = 0.5

NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="The machine's address, or the node's id, as `status` shows them.")
]


@app.command()
@takes()
def drain(
    target: Target,
    node: NodeArgument,
    keep_ledgers: Annotated[
        bool, typer.Option("--keep-ledgers", help="Copy no ledgers: the machine comes back with its disk.")
    ] = False,
) -> None:
    """Move owners, gateways and ledgers away from a node that is to be taken down. Waits until all have moved.

    Ctrl-C lets the node be used again; what has moved stays where it is.
    """
    with target.join() as client:
        try:
            told = client.drain_node(node, keep_ledgers=keep_ledgers)
            _wait(client, told)
        except KeyboardInterrupt:
            told = client.uncordon_node(node)  # the controller has heard, or will hear, what was asked before
            say(f"{told['address']} is used again; what has moved stays where it is")
            raise
        say(f"{told['address']} is drained: Ray can be stopped there")


@app.command()
@takes()
def uncordon(target: Target, node: NodeArgument) -> None:
    """Use a drained node again. One that ends and joins again needs no such word."""
    with target.join() as client:
        told = client.uncordon_node(node)
    say(f"{told['address']} is used again")


def _wait(client: Client, told: dict[str, Any]) -> None:
    """Wait until the node is empty; print what is left when that changes. Raises Conflict if it is used again."""
    from sluice.storage.errors import Conflict, Unavailable

    node, said = told["node"], ""
    while not told["done"]:
        left = [
            f"{told[name]} {name if told[name] != 1 else name[:-1]}" for name in ("owners", "gateways", "fragments")
        ]
        rest = ", ".join(each for each in left if not each.startswith("0 "))
        line = f"still on {told['address']}: {rest or 'processes that are about to end'}"
        line += f" ({told['problem']})" if told["problem"] else ""
        if line != said:
            say(line)
            said = line
        time.sleep(LOOK_S)  # the controller tells nobody by itself
        try:
            told = client.drain_status(node)
        except Unavailable as error:
            told = {**told, "problem": str(error)}
        if not told["drained"]:
            raise Conflict(f"{told['address']} is not drained any more: somebody lets it be used again")
