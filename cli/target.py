"""What nearly every command is given: a topic or a subscription of it, how to print, and where the cluster is.

A command that is decorated with `takes` has these as one `Target`, its first parameter; its others are its own options.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal

from sluice.cli.options import AddressOption, DataDirOption, JsonOption, SubscriptionArgument, TopicArgument
from sluice.cli.session import joined

if TYPE_CHECKING:
    from sluice.cluster.client.client import Client


@dataclass(frozen=True, slots=True)
class Target:
    """topic, subscription: empty if the command did not ask for one. json: False if it did not ask."""

    topic: str = ""
    subscription: str = ""
    json: bool = False
    address: str | None = None
    data_dir: Path | None = None

    def join(self) -> AbstractContextManager[Client]:
        """A client of the running cluster, closed at the end. Raises Unavailable."""
        return joined(self.address, self.data_dir)


_ARGUMENTS = {"topic": TopicArgument, "subscription": SubscriptionArgument}
_OPTIONS = {"json": (JsonOption, False), "address": (AddressOption, None), "data_dir": (DataDirOption, None)}


def takes(
    *names: Literal["topic", "subscription", "json"],
) -> Callable[[Callable[Concatenate[Target, ...], None]], Callable[..., None]]:
    """Give a command these arguments, --address and --data-dir, as the `Target` that is its first parameter."""

    def decorate(command: Callable[Concatenate[Target, ...], None]) -> Callable[..., None]:
        kind = Parameter.KEYWORD_ONLY
        shared = [Parameter(name, kind, annotation=_ARGUMENTS[name]) for name in names if name in _ARGUMENTS]
        own = [each.replace(kind=kind) for each in _own(command)]
        for name, (annotation, default) in _OPTIONS.items():
            if name != "json" or "json" in names:
                own.append(Parameter(name, kind, annotation=annotation, default=default))
        mine = {*names, "address", "data_dir"}

        @functools.wraps(command)
        def run(**given: Any) -> None:
            target = Target(**{name: given.pop(name) for name in mine})
            command(target, **given)

        del run.__wrapped__  # whoever asks for its parameters gets those below
        run.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in (*shared, *own)}
        return run

    return decorate


def _own(command: Callable[..., None]) -> list[Parameter]:
    return list(inspect.signature(command, eval_str=True).parameters.values())[1:]
