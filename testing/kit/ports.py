"""Ports that stay ours: a node that is down for a while must find its own free again.

A socket that is bound to the port, and does not listen, keeps everybody else from it. Whoever connects there is refused,
as by a host where nobody listens. The node's own listener can be bound beside it, since both allow the re-use of
addresses; where the system does not play along (not every one does), the port is only looked for.
"""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


class ReservedPort:
    def __init__(self) -> None:
        self._socket: socket.socket | None = socket.socket()
        self._socket.bind((HOST, 0))
        self.port = int(self._socket.getsockname()[1])
        # Only now: whoever looks for a port of their own must not get this one.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not self._can_be_shared():
            self.release()

    def _can_be_shared(self) -> bool:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, self.port))
                probe.listen()
            except OSError:
                return False
        return True

    def release(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
