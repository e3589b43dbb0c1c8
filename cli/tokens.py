"""`sluice tokens ...`: keys and tokens for clients of Apache Pulsar."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.output import say
from sluice.cluster.base.version import COMMAND

app = typer.Typer(no_args_is_help=True, help="Make keys, and tokens for clients of Apache Pulsar.")


@app.command("create-key")
def create_key(file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file, for its owner alone.")]) -> None:
    """Make a secret that tokens are signed with, for `pulsar_token_key_file`."""
    from sluice.cluster.gateway.tokens import make_key

    make_key(file)
    say(f"{file} holds a new secret; {COMMAND} up --set pulsar_token_key_file={file}")


@app.command()
def create(
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="The secret, as create-key makes it.")],
    role: Annotated[
        list[str], typer.Option("--role", help="The client's role; with --claim several times for several.")
    ],
    expires: Annotated[str, typer.Option("--expires", help="When it ends: 12h, 30d. Default: never.")] = "",
    claim: Annotated[str, typer.Option("--claim", help="Where the roles stand: pulsar_token_auth_claim.")] = "sub",
    audience: Annotated[str, typer.Option("--audience", help="For which audience it is.")] = "",
    issuer: Annotated[str, typer.Option("--issuer", help="From which issuer it is.")] = "",
) -> None:
    """Print a token for a role. Its bearer has that role: hand the token over as you would a password."""
    from sluice.cluster.gateway.tokens import SUBJECT, make_token
    from sluice.cluster.settings.config import parse_duration
    from sluice.storage.errors import Invalid

    if claim == SUBJECT and len(role) > 1:
        raise Invalid("a subject is one role: name another claim with --claim, and in pulsar_token_auth_claim")
    try:
        lasts = parse_duration(expires) // 1000 if expires else None
    except ValueError as error:
        raise Invalid(f"--expires: {error}") from None
    given = {claim: role[0] if len(role) == 1 else role, "aud": audience, "iss": issuer}
    print(make_token(key, {name: value for name, value in given.items() if value}, lasts))
