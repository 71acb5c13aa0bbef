"""Bounds the connections that are in a TLS handshake or in an unfinished authentication.

Their peers are unknown, so their number has a limit of its own, which leaves room for the connections of users. One host may have
half of it, so that a flood from one address does not lock out the others.
"""

from __future__ import annotations


class Unauthenticated:
    """The hosts of the connections that are not authenticated yet, by connection id."""

    def __init__(self, total_max: int) -> None:
        self._total_max = total_max
        self._host_max = (total_max + 1) // 2
        self._hosts: dict[int, str] = {}
        self._per_host: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def add(self, connection_id: int, host: str) -> str | None:
        """Count a connection, once. Returns None, or why it must be closed."""
        if connection_id in self._hosts:
            return None
        if len(self._hosts) >= self._total_max:
            return f"{self._total_max} connections are not authenticated yet"
        if self._per_host.get(host, 0) >= self._host_max:
            return f"{self._host_max} connections of its host are not authenticated yet"
        self._hosts[connection_id] = host
        self._per_host[host] = self._per_host.get(host, 0) + 1
        return None

    def discard(self, connection_id: int) -> None:
        """Stop counting a connection that is authenticated, or closed. Does nothing if it was not counted."""
        host = self._hosts.pop(connection_id, None)
        if host is None:
            return
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]
