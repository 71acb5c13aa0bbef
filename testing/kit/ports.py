"""Reserved ports: a node that was down for a while must find its own port free again.

A socket that is bound to the port and does not listen keeps other programs from binding it. Connections to the port are
refused, as on a host where no program listens. The node's own listener can bind the same port, because both sockets set
SO_REUSEADDR. On systems that do not permit this, the port is chosen but not reserved.
"""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


class ReservedPort:
    def __init__(self) -> None:
        self._socket: socket.socket | None = socket.socket()
        self._socket.bind((HOST, 0))
        self.port = int(self._socket.getsockname()[1])
        # Set after bind: with the option set before, another search for a free port could get this one.
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
