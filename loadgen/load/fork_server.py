"""The server that makes the consumer processes of a flood: it has imported everything, and forks.

A consumer needs Ray, Arrow and the broker's client, which take a second of processor time to import. A run has four of
them and as many more as faults call for, so they are imported once, here, in a process without threads, while Ray and
Spark are still starting; each consumer is a fork of it that is there within milliseconds, and a process of its own
that can be killed or stopped. Finding the cluster takes a second and more, so a fork does that before it is asked to
join: if a join must be quick, one is kept ready.

Forks are asked for over a socket, along with which goes the socket that the new process serves: a call is (name,
arguments), an answer (whether it went well, what it gives). A consumer ends when its socket does, and the process that
runs the flood may die at any time: its sockets end with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from sluice.loadgen.load.consume import ConsumeJob, FloodConsumer
from sluice.storage.errors import Unavailable

_COMMAND = "import sys; from sluice.loadgen.load.fork_server import main; main(int(sys.argv[1]))"
_GRACE_S = 5.0


class ForkServer:
    """Starts the process at once and imports in it; `fork` waits for it. Close it when the flood is over."""

    def __init__(self) -> None:
        mine, other = Pipe()
        # A session of its own: Ctrl-C goes to the process that runs the flood, which ends everything in order.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, str(other.fileno())],
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        other.close()
        self._line = mine
        self._one_by_one = threading.Lock()

    def __call__(self, job: ConsumeJob) -> ForkedConsumer:
        """A new process with a consumer that waits for its identity; a loadgen.faults.faults.Spawn.

        Raises Unavailable if there is no such process any more.
        """
        mine, other = Pipe()
        try:
            with self._one_by_one:
                send_handle(self._line, other.fileno(), self._process.pid)
        except OSError as error:
            raise Unavailable("the process that consumers are forked from has ended") from error
        finally:
            other.close()
        return ForkedConsumer(mine, job)

    def close(self) -> None:
        """End it and all that it has forked. Safe to repeat."""
        self._line.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ForkedConsumer:
    """A FloodConsumer in a process of its own; a loadgen.faults.faults.Handle."""

    def __init__(self, line: Connection[Any, Any], job: ConsumeJob) -> None:
        self._line = line
        self._waiting = True
        self._pid = 0
        # The process begins at once, even if no caller waits for it.
        with contextlib.suppress(OSError):
            line.send(("begin", (job,)))

    def ready(self, timeout_s: float) -> int:
        """Wait until the process is up; its process id. Raises Unavailable."""
        if self._waiting:
            self._pid = int(self._answer("begin", timeout_s))
            self._waiting = False
        return self._pid

    def start(self, incarnation: str, consumer_name: str, receiver_queue_size: int) -> None:
        """Join the subscription and begin to work. Raises Unavailable."""
        self._call("start", _GRACE_S * 6, incarnation, consumer_name, receiver_queue_size)

    def stop(self, timeout_s: float) -> None:
        """Leave cleanly and wait for it. Raises Unavailable."""
        self._call("stop", timeout_s, timeout_s - 2)

    def end(self) -> None:
        """End the process if it still lives. Never raises."""
        with contextlib.suppress(OSError):
            self._line.close()
        # A process that was stopped does not see that its socket has ended.
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._pid = 0

    def _call(self, name: str, timeout_s: float, *arguments: Any) -> Any:
        try:
            self._line.send((name, arguments))
        except OSError as error:
            raise Unavailable("a consumer process has ended") from error
        return self._answer(name, timeout_s)

    def _answer(self, name: str, timeout_s: float) -> Any:
        try:
            if not self._line.poll(timeout_s):
                raise Unavailable(f"a consumer process did not answer {name} within {timeout_s:.0f} s")
            good, answer = self._line.recv()
        except (OSError, EOFError) as error:
            raise Unavailable("a consumer process has ended") from error
        if not good:
            raise Unavailable(f"a consumer process says: {answer}")
        return answer


def main(line_fd: int) -> None:
    """The fork server's own process: import, then fork for each socket that comes until there is no one left to ask."""
    from sluice.cluster.base.arrow import without_pandas

    without_pandas()
    line: Connection[Any, Any] = Connection(line_fd)
    # They are not asked how they ended before all is over: so no number of theirs is given to somebody else meanwhile.
    children: list[int] = []
    while True:
        try:
            handle = recv_handle(line)
        except (EOFError, OSError):
            break
        pid = os.fork()
        if not pid:
            line.close()
            _serve(Connection(handle))
            os._exit(0)
        os.close(handle)
        children.append(pid)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _serve(line: Connection[Any, Any]) -> None:
    """Be one consumer until the socket ends."""
    consumer: FloodConsumer | None = None
    while True:
        try:
            name, arguments = line.recv()
            try:
                if consumer is None:
                    consumer = FloodConsumer(*arguments)
                    line.send((True, consumer.ready()))
                else:
                    line.send((True, getattr(consumer, name)(*arguments)))
            except Exception as error:
                # Whatever it was, the asker is told; this process goes on answering.
                line.send((False, f"{type(error).__name__}: {error}"))
        except (EOFError, OSError):
            return
