"""TLS between machines: both sides show a certificate of the cluster's own authority.

The certificate says that a process may speak at all, the token (cluster.wire.handshake) which process it is, and the
proof of the token covers the TLS connection itself: nobody can stand between two processes and pass on what they say,
not even with a certificate of the cluster. Names in certificates are not looked at, because processes are found by
address and prove their own names.

The bytes pass through memory in place of OpenSSL's own sockets, so that one event loop, one reader of frames and one
count of what waits serve connections of either sort. Descriptors cannot travel in here; payloads go in the stream.
"""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from sluice.cluster.base.certificates import load_own, load_trusted
from sluice.cluster.wire.frames import MalformedFrame
from sluice.cluster.wire.handshake import HandshakeRefused
from sluice.storage.errors import Invalid
from sluice.storage.format.frame import Buffer

_HANDSHAKE, _ALERT = 0x16, 0x15
"""First byte of what TLS begins with; anything else comes from a peer that does not speak it."""
_FLIGHTS = 6
"""Turns of a handshake within one process: more than it takes."""


class TlsFiles(NamedTuple):
    """Paths of PEM files: the trusted authorities, the own certificate with its chain, and its key."""

    trust_certs: str
    certificate: str
    key: str


class NotTls(MalformedFrame):
    """The first bytes of a connection are no TLS."""


def files_of(settings: Mapping[str, Any]) -> TlsFiles | None:
    """The files that settings name; None if they name none. Raises Invalid if some are missing."""
    names = ("tls_trust_certs_file", "tls_certificate_file", "tls_key_file")
    paths = [str(settings.get(name) or "") for name in names]
    missing = [name for name, path in zip(names, paths, strict=True) if not path]
    if len(missing) == len(names):
        return None
    if missing:
        raise Invalid(f"TLS between machines needs three files; {' and '.join(missing)} is not set")
    return TlsFiles(*paths)


class Trust:
    """The TLS contexts of a process. Replaced files are read again, if they are valid.

    Raises Invalid in one line if a file cannot be used.
    """

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._stamps = _stamps(files)
        self._contexts = checked(files)

    def secured(self, *, server_side: bool) -> Secured:
        """The TLS of a new connection."""
        try:
            stamps = _stamps(self.files)
            if stamps != self._stamps:
                self._contexts, self._stamps = checked(self.files), stamps
        except Invalid:
            pass  # they are being replaced, one after the other
        return Secured(self._contexts[server_side], server_side=server_side)


@functools.lru_cache(maxsize=16)
def trust_in(files: TlsFiles) -> Trust:
    """One object for all callers that name the same files. Raises Invalid."""
    return Trust(files)


def trust_of(files: TlsFiles | None) -> Trust | None:
    """None if no TLS is wanted. Raises Invalid."""
    return None if files is None else trust_in(files)


def checked(files: TlsFiles) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of the calling and the listening side, after they have shaken hands with each other.

    Raises Invalid in one line: a file that is missing, a key that others can read or that belongs to another
    certificate, a certificate that has expired or that the authority has not signed.
    """
    calling, listening = (_context(side, files) for side in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER))
    caller, listener = Secured(calling, server_side=False), Secured(listening, server_side=True)
    try:
        for _ in range(_FLIGHTS):
            for one, other in ((caller, listener), (listener, caller)):
                if said := one.sealed():
                    other.receive_data(said)
    except HandshakeRefused as error:
        raise Invalid(f"tls_certificate_file {files.certificate} cannot be used: {error}") from None
    return calling, listening


def _context(side: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # what is bound to a connection must not come from an earlier one
    load_trusted(context, "tls_trust_certs_file", files.trust_certs)
    load_own(context, ("tls_certificate_file", files.certificate), ("tls_key_file", files.key))
    return context


def _stamps(files: TlsFiles) -> tuple[tuple[int, int], ...]:
    try:
        return tuple((status.st_mtime_ns, status.st_ino) for status in map(os.stat, files))
    except OSError as error:
        raise Invalid(f"{error.filename} cannot be read: {error.strerror}") from None


class Secured:
    """The TLS of one connection: encrypts bytes for the socket, and decrypts bytes from it."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._early: list[bytes] = []
        self._begun = False
        self.binding = b""
        """A secret that only the two ends of this connection know, unless TLS is broken; empty before it stands.

        It is the caller's Finished message, Python's only binding. It is sound here because TLS 1.3 makes it from the
        keys of this very connection, and none is ever resumed.
        """
        self._shake_hands()

    def sealed(self, pieces: Sequence[Buffer] = ()) -> bytes:
        """The bytes to send now: TLS's own, and these. Before the handshake is over, these wait."""
        if not self.binding:
            self._early += [bytes(piece) for piece in pieces]
        else:
            self._write(pieces)
        return self._outgoing.read()

    def receive_data(self, data: Buffer) -> None:
        """Take bytes that came; there may be bytes to send now. Raises HandshakeRefused, NotTls."""
        if not self._begun:
            self._begun = True
            if data[0] not in (_HANDSHAKE, _ALERT):
                raise NotTls("TLS is spoken here; set tls_trust_certs_file, tls_certificate_file and tls_key_file")
        self._incoming.write(data)
        self._shake_hands()

    def read(self, room: memoryview) -> int:
        """Read bytes in clear into a buffer; return how many, 0 if there are none now.

        Raises HandshakeRefused, ConnectionResetError.
        """
        if not self.binding:
            return 0
        try:
            count = cast(int, self._tls.read(len(room), room))  # into a buffer it reads a number of bytes
        except ssl.SSLWantReadError:
            return 0
        except ssl.SSLZeroReturnError:
            count = 0
        except ssl.SSLError as error:
            raise HandshakeRefused(_said(error)) from None
        if not count:
            raise ConnectionResetError("the other side has closed the connection")
        return count

    def _write(self, pieces: Sequence[Buffer]) -> None:
        for piece in pieces:
            if len(piece):
                self._tls.write(piece)

    def _shake_hands(self) -> None:
        if self.binding:
            return
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise HandshakeRefused(_said(error)) from None
        self.binding = self._tls.get_channel_binding("tls-unique") or b""
        early, self._early = self._early, []
        self._write(early)


_ALERTS = {
    "TLSV1_ALERT_UNKNOWN_CA": "the other side does not trust the authority of this side's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the certificate of this side has expired, the other side says",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other side wants a certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the other side shows no certificate",
}


def _said(error: ssl.SSLError) -> str:
    """One line about what went wrong."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {error.verify_message}"
    reason = str(error.reason or error)
    return _ALERTS.get(reason) or f"TLS failed: {reason.replace('_', ' ').lower()}"
