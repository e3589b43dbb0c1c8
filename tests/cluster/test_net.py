"""Calls by name: where a process listens, as it was last said while nobody can say it now."""

from __future__ import annotations

from pathlib import Path

from actors.host import Answer
from actors.ports import Unknown
from actors.wire import Packed, pack
from cluster.net import NAMING, DirectNet, Listening, Whereabouts, open_endpoint
from cluster.wire.endpoint import Endpoint

TOKEN = b"t" * 64
TIMEOUT = 30_000


class Named:
    """A process that answers."""

    async def answer(self, actor: str, kind: str, packed: Packed) -> Answer:
        return pack(Listening(reason="here"))


class Finder:
    """Says where one process listens, until it is told to say something else."""

    def __init__(self, found: Endpoint | Unknown) -> None:
        self.found = found

    async def __call__(self, host: str) -> Endpoint | Unknown:
        return self.found


async def test_who_ended_is_gone_although_ray_does_not_know_it(tmp_path: Path) -> None:
    """For a minute Ray may say of the processes of a lost node that they do not answer."""
    endpoint, listener = open_endpoint("host-a", Named(), str(tmp_path), "127.0.0.1", TOKEN)
    finder = Finder(endpoint)
    net = DirectNet(None, finder, TOKEN)
    assert isinstance(await net.call(f"host-a/{NAMING}", Whereabouts(host="x"), TIMEOUT), Listening)
    finder.found = Unknown("host-a does not answer")
    net.part("host-a")
    assert isinstance(await net.call(f"host-a/{NAMING}", Whereabouts(host="x"), TIMEOUT), Listening)
    listener.close()
    for _ in range(2):  # it is so however often it is asked
        net.part("host-a")
        told = await net.call(f"host-a/{NAMING}", Whereabouts(host="x"), TIMEOUT)
        assert isinstance(told, Unknown)
        assert told.gone
    unknown = await net.call(f"host-b/{NAMING}", Whereabouts(host="x"), TIMEOUT)
    assert isinstance(unknown, Unknown)
    assert not unknown.gone
    net.close()
