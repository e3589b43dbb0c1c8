"""The things that a process that was forked from a program must leave to its parent.

A forked child has a copy of everything but the threads: of locks on data folders, of sockets that listen or are
connected, of hooks that run when the interpreter ends. As long as it lives it keeps the locks and the ports although
its parent has ended, and its end would be taken for the end of the program. So the child gives back, before anything
else of it runs, what was named here. And code that ends or removes something at the end of the program asks first
whether it is still in the process that made it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterator

_kept: dict[int, tuple[int, int]] = {}
"""Descriptors by number, with the device and inode that they had: another file may have the number by now."""


def keep_from_children(descriptor: int) -> int:
    """Let forked children have no part in this lock or socket. Returns the descriptor; it may be closed at any time."""
    _kept[descriptor] = _identity(descriptor)
    return descriptor


def keep_connection_from_children(transport: asyncio.BaseTransport) -> None:
    """The same for the socket of a connection, if it has one."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        keep_from_children(sock.fileno())


class Birthplace:
    """The process in which an object was made."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process, and not one that was forked from it."""
        return os.getpid() == self.pid


def forget_in_children(forget: Callable[[], object]) -> None:
    """Call a function in every forked child, before anything else of it runs."""
    os.register_at_fork(after_in_child=forget)


@contextlib.contextmanager
def ended_at_exit(cleanup: contextlib.ExitStack) -> Iterator[None]:
    """Close it when the interpreter exits, before threads end that it needs, and before modules are taken apart."""
    if not _registered:
        _registered.append(getattr(threading, "_register_atexit", atexit.register)(_close_all))
    _unclosed[id(cleanup)] = cleanup
    try:
        yield
    finally:
        _unclosed.pop(id(cleanup), None)


def _close_all() -> None:
    for cleanup in list(_unclosed.values()):
        with contextlib.suppress(Exception):
            cleanup.close()


_registered: list[object] = []
_unclosed: dict[int, contextlib.ExitStack] = {}
"""What a program that ends may have left open. A forked child begins with none: the cluster is its parent's."""


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _replace_inherited() -> None:
    """Put an empty file in the place of each. The number stays taken, so closing it later closes nothing else."""
    with contextlib.suppress(OSError):
        empty = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor, identity in _kept.items():
            with contextlib.suppress(OSError):
                if _identity(descriptor) == identity:
                    os.dup2(empty, descriptor, inheritable=False)
        os.close(empty)
    _kept.clear()


forget_in_children(_replace_inherited)
forget_in_children(_unclosed.clear)
