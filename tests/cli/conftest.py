"""A made-up client and launcher, so that commands are tested without a cluster: what they ask, and what they show."""

from __future__ import annotations

import functools
import io
import signal
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main

from sluice.cli.exit_codes import run
from sluice.storage.errors import NotFound

Outcome = tuple[int, str, str]
Cli = Callable[..., Outcome]


@dataclass
class Message:
    """A received message, with the methods that the commands use."""

    payload: bytes
    key_bytes: bytes | None
    number: int

    def data(self) -> bytes:
        """The payload."""
        return self.payload

    def key(self) -> bytes | None:
        """The key."""
        return self.key_bytes

    def message_id(self) -> str:
        """Ledger and entry."""
        return f"1:{self.number}"

    def redelivery_count(self) -> int:
        """How often it came before."""
        return self.number % 2

    def publish_timestamp(self) -> int:
        """Milliseconds since 1970."""
        return 1_700_000_000_000


@dataclass
class FakeClient:
    """Records every call, and answers from what the test put in."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    inbox: deque[Message] = field(default_factory=deque)
    closed: int = 0

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed += 1

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append((name, *arguments, named))
            answer = self.answers.get(name, [])
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return call

    def create_producer(self, topic: str) -> FakeClient:
        """Return this client as its own producer."""
        self.calls.append(("create_producer", topic))
        return self

    def subscribe(self, topic: str, subscription: str, **named: Any) -> FakeClient:
        """Return this client as its own consumer. Raises NotFound for the topic `missing`."""
        if topic == "missing":
            raise NotFound("there is no topic 'missing'")
        self.calls.append(("subscribe", topic, subscription, named))
        return self

    def dead_letters(self, topic: str, subscription: str) -> FakeClient:
        """The dead letters of its own."""
        self.calls.append(("dead_letters", topic, subscription))
        return self

    def batches(self, patience: int | None) -> Iterator[FakeClient]:
        """The inbox as one batch; then nothing comes any more."""
        yield self

    def messages(self) -> Iterator[Message]:
        """The messages of the inbox; Ctrl-C where the test put one."""
        while self.inbox:
            message = self.inbox.popleft()
            if message.payload == b"ctrl-c":
                raise KeyboardInterrupt
            yield message

    def close(self) -> None:
        """Counted."""
        self.closed += 1


def _connect(address: tuple[str, int], timeout: float) -> io.BytesIO:
    """Connect to any port but 1, where nobody listens."""
    if address[1] == 1:
        raise ConnectionRefusedError(111, "Connection refused")
    return io.BytesIO()


@pytest.fixture(scope="session", autouse=True)
def _one_tree_of_commands() -> Iterator[None]:
    """Typer reads the signatures of all commands once, and not for each command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.main.get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """The made-up client behind `sluice.connect`; `client.calls[0]` is the connection itself."""
    made = FakeClient()

    def connect(address: str | None, *, data_dir: Path) -> FakeClient:
        made.calls.append(("connect", address))
        return made

    monkeypatch.setattr("sluice.connect", connect)
    monkeypatch.setattr(
        "sluice.cluster.launch.discovery.find", lambda folder: None if folder.name == "down" else ("a:1", None)
    )
    return made


@pytest.fixture
def fake_module(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put these attributes in place of a module's own."""

    def put(name: str, **attributes: Any) -> None:
        for attribute, value in attributes.items():
            monkeypatch.setattr(import_module(name), attribute, value)

    return put


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Cli]:
    """Run a command line in this process: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("socket.create_connection", _connect)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def call(*arguments: str) -> Outcome:
        code = run(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    yield call
    for number, handler in before.items():
        signal.signal(number, handler)
