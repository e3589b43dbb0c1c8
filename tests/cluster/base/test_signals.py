"""A signal that comes while Ray starts waits until it can be obeyed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from sluice.cluster.base.signals import SIGNALS, held_back


class Told(Exception):
    """The error that our handler raises."""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Handlers of our own, and those of before put back."""
    before = {name: signal.getsignal(name) for name in SIGNALS}

    def tell(number: int, _frame: object) -> None:
        raise Told(number)

    for name in SIGNALS:
        signal.signal(name, tell)
    yield
    for name, handler in before.items():
        signal.signal(name, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_waits_for_the_end_of_the_start(number: signal.Signals) -> None:
    steps = []
    with pytest.raises(Told) as told, held_back():  # noqa: PT012
        signal.raise_signal(number)
        steps.append("went on")
    assert steps == ["went on"]
    assert told.value.args == (number,)


def test_the_second_signal_is_obeyed_at_once() -> None:
    steps = []
    with pytest.raises(Told) as told, held_back():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        steps.append("went on")
    assert steps == []
    assert told.value.args == (signal.SIGTERM,)


def test_an_error_of_the_start_does_not_swallow_the_signal() -> None:
    with pytest.raises(Told) as told, held_back():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        raise ValueError("the start failed")
    assert isinstance(told.value.__context__, ValueError)


def test_handlers_that_the_start_replaces_are_put_back() -> None:
    mine = signal.getsignal(signal.SIGTERM)
    with held_back():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is mine


def test_an_ignored_signal_stays_ignored() -> None:
    """A start within a clean-up that ignores signals does not disturb it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with held_back():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_thread_is_left_alone() -> None:
    def start() -> None:
        with held_back():
            done.append(True)

    done: list[bool] = []
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert done == [True]
