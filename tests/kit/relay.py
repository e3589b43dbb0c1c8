"""Delays and loses packets between machines, where the kernel has no netem: they make a detour through this process.

It runs in the namespace of the machines' router (tests.kit.machines) and has a device there, to which the router
sends the packets of the pairs that are to suffer. Those that are not lost are written back to the device when their
time has come, and the router sends them on their way. Commands come on standard input, a line each: a JSON list of
rules `[sender, receiver, delay in milliseconds, part that is lost]`, which replaces all earlier ones.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import random
import selectors
import socket
import struct
import sys
import time

DEVICE = "relay"
_TUNSETIFF, _TUN, _NO_PACKET_INFORMATION = 0x400454CA, 0x0001, 0x1000
_LARGEST = 1 << 16
MOST_WAITING = 20_000
"""Packets: what comes beyond them is lost, as in a router whose queue is full."""

Rules = dict[tuple[bytes, bytes], tuple[float, float]]
"""By sender and receiver: seconds of delay, and the part that is lost."""


def rules_of(line: str) -> Rules:
    """The rules that a command has."""
    return {
        (socket.inet_aton(sender), socket.inet_aton(receiver)): (delay_ms / 1000, loss)
        for sender, receiver, delay_ms, loss in json.loads(line)
    }


class Relay:
    """The fate of each packet: passed on, delayed or dropped. Without I/O; times are monotonic seconds."""

    def __init__(self, seed: int = 0) -> None:
        self.rules: Rules = {}
        self._rng = random.Random(seed)
        self._waiting: list[tuple[float, int, bytes]] = []
        self._count = 0

    def take(self, packet: bytes, now: float) -> None:
        """A packet of IPv4 has come. One that no rule concerns is not delayed."""
        delay, loss = self.rules.get((packet[12:16], packet[16:20]), (0.0, 0.0))
        if self._rng.random() >= loss and len(self._waiting) < MOST_WAITING:
            self._count += 1
            heapq.heappush(self._waiting, (now + delay, self._count, packet))

    def due(self, now: float) -> list[bytes]:
        """Take the packets that are to go on now, in the order in which they fall due."""
        found = []
        while self._waiting and self._waiting[0][0] <= now:
            found.append(heapq.heappop(self._waiting)[2])
        return found

    def wait(self, now: float) -> float | None:
        """Seconds until the next packet is due; None if none waits."""
        return max(0.0, self._waiting[0][0] - now) if self._waiting else None


def main() -> None:
    """Relay until standard input ends."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _TUN | _NO_PACKET_INFORMATION))
    relay = Relay()
    print("ready", flush=True)
    with selectors.DefaultSelector() as selector:
        selector.register(device, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(relay.wait(time.monotonic())):
                if key.fileobj == device:
                    _read(device, relay)
                elif line := sys.stdin.readline():
                    relay.rules = rules_of(line)
                    print("ready", flush=True)
                else:
                    return
            for packet in relay.due(time.monotonic()):
                os.write(device, packet)


def _read(device: int, relay: Relay) -> None:
    """Take what has come."""
    try:
        while True:
            relay.take(os.read(device, _LARGEST), time.monotonic())
    except BlockingIOError:
        return


if __name__ == "__main__":
    main()
