"""The options of nearly every command: a topic or a subscription of it, how to print, and where the cluster is.

A command that is decorated with `takes` gets them as one `Target`, its first parameter. The other parameters are the
command's own options.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal

from sluice.cli.options import (
    AddressOption,
    ConfigOption,
    DataDirOption,
    EverywhereOption,
    JsonOption,
    RoleTokenOption,
    SubscriptionArgument,
    TopicArgument,
)
from sluice.cluster.base.version import COMMAND
from sluice.storage.errors import Unavailable

if TYPE_CHECKING:
    from sluice.cluster.client.client import Client
    from sluice.cluster.http.admin_client import AdminClient


@dataclass(frozen=True, slots=True)
class Target:
    """topic, subscription: empty if the command did not ask for one. json, everywhere: False if it did not ask."""

    topic: str = ""
    subscription: str = ""
    json: bool = False
    address: str | None = None
    data_dir: Path | None = None
    role_token: str | None = None
    config: Path | None = None
    everywhere: bool = False

    @contextmanager
    def join(self) -> Iterator[Client]:
        """A client of the running cluster, closed at the end: the one at the address, else the one of the data folder.

        Raises Unavailable if there is none: unlike `sluice.connect`, a command never starts one in passing, because it
        would end with the command.
        """
        import sluice
        from sluice.cluster.launch import discovery
        from sluice.cluster.settings.config import load

        values = load(None, address=self.address, data_dir=self.data_dir).values
        if values.address is None and discovery.find(values.data_dir) is None:
            raise Unavailable(f"no cluster is running on {values.data_dir.absolute()}; start one with `{COMMAND} up`")
        with sluice.connect(values.address, data_dir=values.data_dir) as client:
            yield client

    def http(self) -> AdminClient:
        """A caller of the running cluster's admin HTTP. Raises NotFound."""
        from sluice.cluster.http.admin_client import AdminClient
        from sluice.cluster.settings.config import load

        return AdminClient(load(None, data_dir=self.data_dir).values.data_dir, self.role_token)


def topic_path(topic: str) -> str:
    """The tenant, namespace and name of a topic as they stand in a path of Pulsar's. Raises Invalid."""
    from urllib.parse import quote

    from sluice.actors.ownership.names import check_name
    from sluice.actors.pulsar.topic_names import full_name

    return quote(full_name(check_name("topic", topic)).removeprefix("persistent://"), safe="/")


_ARGUMENTS = {"topic": TopicArgument, "subscription": SubscriptionArgument}
_OPTIONS = {
    "json": (JsonOption, False),
    "everywhere": (EverywhereOption, False),
    "role_token": (RoleTokenOption, None),
    "address": (AddressOption, None),
    "data_dir": (DataDirOption, None),
    "config": (ConfigOption, None),
}


def takes(
    *names: Literal["topic", "subscription", "json", "role_token", "everywhere", "config"],
) -> Callable[[Callable[Concatenate[Target, ...], int | None]], Callable[..., int | None]]:
    """Give a command these arguments, --address and --data-dir, as the `Target` that is its first parameter.

    A command with `role_token` asks by HTTP, and one with `config` reads files of this machine: --address has no
    meaning for them.
    """
    mine = {*names, "data_dir"} | ({"address"} if not {"role_token", "config"} & {*names} else set())

    def decorate(command: Callable[Concatenate[Target, ...], int | None]) -> Callable[..., int | None]:
        kind = Parameter.KEYWORD_ONLY
        shared = [Parameter(name, kind, annotation=_ARGUMENTS[name]) for name in names if name in _ARGUMENTS]
        own = [each.replace(kind=kind) for each in _own(command)]
        for name, (annotation, default) in _OPTIONS.items():
            if name in mine:
                own.append(Parameter(name, kind, annotation=annotation, default=default))

        @functools.wraps(command)
        def run(**given: Any) -> int | None:
            target = Target(**{name: given.pop(name) for name in mine})
            return command(target, **given)

        del run.__wrapped__  # whoever asks for its parameters gets those below
        run.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in (*shared, *own)}
        return run

    return decorate


def _own(command: Callable[..., int | None]) -> list[Parameter]:
    return list(inspect.signature(command, eval_str=True).parameters.values())[1:]
