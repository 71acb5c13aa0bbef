"""Bounded waits for a condition, and free ports: what the tests of every room need."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

WITHIN_S = 10.0


async def until(condition: Callable[[], object], what: str = "", within_s: float = WITHIN_S) -> None:
    """Wait until the condition holds. AssertionError: it does not within `within_s` seconds; the message names it."""
    try:
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s: {what or condition}") from None


def free_ports(count: int) -> list[int]:
    """Different ports of loopback on which no process listens."""
    sockets = [socket.socket() for _ in range(count)]
    for probe in sockets:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in sockets]
    for probe in sockets:
        probe.close()
    return ports


def free_port() -> int:
    (port,) = free_ports(1)
    return port
