"""The host of a client, as Kafka writes it: Java's text of an address, which begins with the name of the host, here unknown."""

from __future__ import annotations


def client_host(host: str) -> str:
    """`/127.0.0.1` for `127.0.0.1`."""
    return host if host.startswith("/") or not host else f"/{host}"
