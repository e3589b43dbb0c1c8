"""The handshake: both sides prove that they have the cluster's key, and the key never travels.

    caller                                        listener
    HELLO      whom it wants, its nonce       ->
               its nonce                      <-  CHALLENGE
    PROOF      HMAC(key, caller, both nonces) ->
               HMAC(key, listener, ...)       <-  WELCOME

Each proof covers its role, the name of the process that is wanted and both nonces: none can be sent back, used for
another process, or used again. The caller proves itself first, so that nobody learns anything from a process that it
cannot prove itself to. The listener's name is part of it: a port that another process has by now answers that it is
somebody else, and the caller knows that the one it wanted has gone.

HELLO and CHALLENGE also tell which versions of the wire (what follows the handshake: frames and requests) each side
speaks, and both speak the newest one that both know. So a cluster is upgraded one machine at a time. Two that have none
in common refuse each other, and say both. What says no version is of the first one.

The handshake protects the door, not the road: between machines, use TLS (cluster.wire.tls). Each proof then covers
the TLS connection as well, so that a man in the middle cannot pass it on.
"""

from __future__ import annotations

import hmac
import secrets
from typing import NamedTuple, TypeVar

import msgspec

from sluice.cluster.wire.frames import CHALLENGE, HELLO, PROOF, REFUSED, WELCOME, MalformedFrame, WireFrame, encode
from sluice.storage.format.frame import Buffer

NONCE_BYTES = 32
MAX_GREETING = 4096
"""Most bytes of a frame before both sides have proved themselves."""

S = TypeVar("S", bound=msgspec.Struct)


class Versions(NamedTuple):
    """The versions of the wire that a process speaks, from the oldest to the newest."""

    oldest: int = 1
    newest: int = 1

    def __str__(self) -> str:
        return f"version {self.newest}" if self.oldest == self.newest else f"versions {self.oldest} to {self.newest}"


OURS = Versions()


class HandshakeRefused(Exception):
    """The other side refuses this connection, or is not trusted. elsewhere: it is another process."""

    def __init__(self, reason: str, *, elsewhere: bool = False) -> None:
        super().__init__(reason)
        self.elsewhere = elsewhere


class _Hello(msgspec.Struct):
    wanted: str
    nonce: bytes
    versions: Versions = Versions()


class _Challenge(msgspec.Struct):
    nonce: bytes
    versions: Versions = Versions()


class _Proof(msgspec.Struct):
    proof: bytes


class _Refusal(msgspec.Struct):
    reason: str
    elsewhere: bool = False


class Caller:
    """The calling side. Send `hello`, then the answers of `receive_frame`, until `done`; then `version` is spoken."""

    def __init__(self, key: bytes, wanted: str, versions: Versions = OURS) -> None:
        self.done = False
        self.version = 0
        self._key, self._wanted, self._versions = key, wanted, versions
        self._mine, self._theirs = secrets.token_bytes(NONCE_BYTES), b""

    def hello(self) -> list[Buffer]:
        """The first bytes to send."""
        return encode(HELLO, 0, b"", msgspec.msgpack.encode(_Hello(self._wanted, self._mine, self._versions)))

    def receive_frame(self, frame: WireFrame, binding: bytes = b"") -> list[Buffer]:
        """The answer to a frame, empty if there is none. binding: as in `prove`. Raises HandshakeRefused,
        MalformedFrame.
        """
        if frame.kind == REFUSED:
            said = _decode(_Refusal, frame)
            raise HandshakeRefused(said.reason, elsewhere=said.elsewhere)
        if frame.kind == CHALLENGE and not self._theirs:
            told = _decode(_Challenge, frame)
            self.version = _agreed(self._versions, told.versions, self._wanted)
            self._theirs = _nonce(told.nonce)
            proof = prove(self._key, b"caller", self._wanted, self._mine, self._theirs, binding)
            return encode(PROOF, 0, b"", msgspec.msgpack.encode(_Proof(proof)))
        if frame.kind == WELCOME and self._theirs:
            expected = prove(self._key, b"listener", self._wanted, self._mine, self._theirs, binding)
            if not hmac.compare_digest(expected, _decode(_Proof, frame).proof):
                raise HandshakeRefused(f"what answers for {self._wanted} does not have this cluster's token")
            self.done = True
            return []
        raise MalformedFrame("this is not how a connection begins")


class Greeter:
    """The listening side. Send what `receive_frame` returns, until `done`; from then on `version` is spoken."""

    def __init__(self, key: bytes, name: str, versions: Versions = OURS) -> None:
        self.done = False
        self.version = 0
        self._key, self._name, self._versions = key, name, versions
        self._mine, self._theirs = b"", b""

    def receive_frame(self, frame: WireFrame, binding: bytes = b"") -> list[Buffer]:
        """The answer to a frame. binding: see `prove`. Raises HandshakeRefused (tell it with `refusal`),
        MalformedFrame.
        """
        if frame.kind == HELLO and not self._theirs:
            said = _decode(_Hello, frame)
            if said.wanted != self._name:
                raise HandshakeRefused("another process listens here", elsewhere=True)
            self.version = _agreed(self._versions, said.versions, "the caller")
            self._mine, self._theirs = secrets.token_bytes(NONCE_BYTES), _nonce(said.nonce)
            return encode(CHALLENGE, 0, b"", msgspec.msgpack.encode(_Challenge(self._mine, self._versions)))
        if frame.kind == PROOF and self._theirs and not self.done:
            expected = prove(self._key, b"caller", self._name, self._theirs, self._mine, binding)
            if not hmac.compare_digest(expected, _decode(_Proof, frame).proof):
                raise HandshakeRefused("the caller does not have this cluster's token")
            self.done = True
            proof = prove(self._key, b"listener", self._name, self._theirs, self._mine, binding)
            return encode(WELCOME, 0, b"", msgspec.msgpack.encode(_Proof(proof)))
        raise MalformedFrame("this is not how a connection begins")


def refusal(reason: str, *, elsewhere: bool = False) -> list[Buffer]:
    """The frame that tells the other side why its connection ends."""
    return encode(REFUSED, 0, b"", msgspec.msgpack.encode(_Refusal(reason, elsewhere)))


def prove(key: bytes, role: bytes, name: str, callers: bytes, listeners: bytes, binding: bytes = b"") -> bytes:
    """A proof that only a holder of the key can give for this connection. binding: of its TLS channel, or empty."""
    parts = (b"sluice", role, name.encode(), callers, listeners, *([binding] if binding else []))
    said = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return hmac.digest(key, said, "sha256")


def _agreed(ours: Versions, theirs: Versions, who: str) -> int:
    """The newest version that both sides speak. Raises HandshakeRefused if there is none."""
    version = min(ours.newest, theirs.newest)
    if version < max(ours.oldest, theirs.oldest):
        raise HandshakeRefused(
            f"this process speaks {ours} of the wire, and {who} {theirs}: upgrade the older one of the two"
        )
    return version


def _nonce(nonce: bytes) -> bytes:
    if len(nonce) != NONCE_BYTES:
        raise MalformedFrame(f"a nonce of {len(nonce)} bytes")
    return nonce


def _decode(kind: type[S], frame: WireFrame) -> S:
    try:
        return msgspec.msgpack.decode(frame.head, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise MalformedFrame(f"a greeting could not be read: {error}") from None
