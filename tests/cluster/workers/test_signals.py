"""A program with a pool that is told to end: SIGTERM, which Kubernetes sends, and Ctrl-C do the same."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sluice
from sluice.cluster.base.signals import TERMINATED, unwind_at_sigterm
from tests.cluster.helpers import PATIENCE_S, PYTHON, ROOT, eventually

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import pathlib, sys, threading, time
import sluice

folder = pathlib.Path(sys.argv[1])

def handle(message):
    (folder / "begun").touch()
    while not (folder / "go on").exists():
        time.sleep(0.01)
    (folder / "handled").touch()

with sluice.connect(embedded=True, data_dir=folder / "data") as client:
    client.create_topic("orders")
    with client.create_producer("orders") as producer:
        producer.send(b"1", partition_key="k")
    with sluice.Workers("orders", "billing", handle, client=client):
        threading.Event().wait()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_a_handler_finish(tmp_path: Path, number: signal.Signals) -> None:
    child = subprocess.Popen([PYTHON, "-c", PROGRAM, str(tmp_path)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        eventually((tmp_path / "begun").exists, lambda: f"no handler has begun: {child.poll()}")
        child.send_signal(number)
        (tmp_path / "go on").touch()
        _, errors = child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
    assert (tmp_path / "handled").exists(), errors
    assert child.returncode == (TERMINATED if number == signal.SIGTERM else -signal.SIGINT)
    with sluice.connect(embedded=True, data_dir=tmp_path / "data") as client:
        client.subscribe("orders", "billing").close()
        assert client.stats("orders", "billing")[0]["msgBacklog"] == 0


@contextmanager
def sigterm_is(handler: Callable[..., object] | signal.Handlers) -> Iterator[None]:
    """Have this handler for the length of a `with` block."""
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def test_sigterm_is_as_it_was_after_the_last_pool() -> None:
    with sigterm_is(signal.SIG_DFL):
        first, second = unwind_at_sigterm(), unwind_at_sigterm()
        for put_back in (first, first):
            put_back()
            with pytest.raises(SystemExit) as ended:
                signal.raise_signal(signal.SIGTERM)
            assert ended.value.code == TERMINATED
        second()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_handler_of_the_program_stays() -> None:
    def own(*_: object) -> None:
        """Handle the signal as the program wants."""

    with sigterm_is(own):
        put_back = unwind_at_sigterm()
        assert signal.getsignal(signal.SIGTERM) is own
        put_back()
        assert signal.getsignal(signal.SIGTERM) is own
