"""The TLS handshake of a server, run by a loop's `start_tls`: sends an alert to the client when the handshake fails.

When a handshake fails, OpenSSL leaves an alert for the client in the outgoing buffer. uvloop, and asyncio before gh-98078, close
the connection without sending it. Sending it and closing the socket at once is not enough: with TLS 1.3 a client has finished its
handshake before the server checks its certificate, so its first request is on the way. If the socket is closed when the request
arrives, the connection is reset, and the client may see the reset before the alert.

Therefore a handshake that failed with an alert pretends to the loop that it waits for more bytes. The loop then sends the alert
and reads on, the handshake ignores what the client sends, and the owner of the connection ends it.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import NoReturn, cast

OnRefused = Callable[[ssl.SSLError], None]
"""Called once, before the loop sends the alert."""

_IGNORED_BYTES_MAX = 256 * 1024
"""How many bytes are ignored after the alert before the connection is closed: far more than a client sends before it reads."""


def handshake_context(context: ssl.SSLContext, on_refused: OnRefused) -> ssl.SSLContext:
    """Return an object that stands in for `context` in one `start_tls`. `context` must have `sslobject_class` ServerHandshake."""
    return cast(ssl.SSLContext, _OneHandshake(context, on_refused))


class ServerHandshake(ssl.SSLObject):
    """One handshake. It changes nothing once the handshake is complete."""

    _on_refused: OnRefused | None = None
    _ignored: int | None = None
    """Number of bytes received since the handshake failed; None if it has not failed."""
    _incoming: ssl.MemoryBIO | None = None
    _outgoing: ssl.MemoryBIO | None = None

    def watch(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, on_refused: OnRefused) -> None:
        """Set the buffers of the handshake, and the function to call if it fails."""
        self._incoming, self._outgoing, self._on_refused = incoming, outgoing, on_refused

    def do_handshake(self) -> None:
        """Continue the handshake, or ignore what has arrived if it has failed."""
        if self._ignored is not None:
            self._ignore()
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as e:
            if self._on_refused is None or self._outgoing is None or not self._outgoing.pending:
                raise  # There is no alert to send: the client sent one itself, or it does not speak TLS.
            self._ignored = 0
            self._on_refused(e)
            self._ignore()
        self._incoming = self._outgoing = self._on_refused = None  # This object lives as long as the connection.

    def _ignore(self) -> NoReturn:
        """Raise the error that makes the loop write what is in the outgoing buffer and read on, or close the connection if the
        client has sent too much."""
        assert self._incoming is not None
        assert self._ignored is not None
        self._ignored += len(self._incoming.read())
        if self._ignored > _IGNORED_BYTES_MAX:
            raise ssl.SSLError(ssl.SSL_ERROR_SSL, "the client continues after a fatal alert")
        raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "the handshake has failed")


class _OneHandshake:
    """Stands for a context in one `start_tls`, which only creates the TLS object with it, and checks that it is an `SSLContext`.

    The TLS object must know its connection, and a loop does not say for which connection it creates one. Another context per
    connection would read the certificates again."""

    __class__ = ssl.SSLContext  # type: ignore[assignment]
    """`isinstance` reads this attribute."""

    def __init__(self, context: ssl.SSLContext, on_refused: OnRefused) -> None:
        self._context = context
        self._on_refused: OnRefused | None = on_refused

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, server_side: bool, server_hostname: None
    ) -> ssl.SSLObject:
        handshake = self._context.wrap_bio(incoming, outgoing, server_side, server_hostname)
        assert isinstance(handshake, ServerHandshake)
        assert self._on_refused is not None
        handshake.watch(incoming, outgoing, self._on_refused)
        self._on_refused = None  # The loop keeps this object as long as the connection.
        return handshake
