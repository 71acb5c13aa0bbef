"""Connecting to a host: resolves its name and tries its addresses, without delaying other connections.

On one machine a dead process refuses connections at once. In a network a dead host does not answer, and the resolver for its
name may not answer either. Rules:

- A name is resolved for each connection, because a restarted container may have another address.
- At most one look-up per name is in progress, and connections to the same name share it. A look-up that hangs occupies a thread
  (`resolver.py`) and cannot be cancelled, so a second one would only take another thread. Addresses are not looked up.
- Every address of a name is tried. The next one is tried when the one before has failed, or has not answered for a moment (as in
  RFC 8305). The first connection that is established is used.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from ipaddress import ip_address
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from strandline.protocol.rpc.resolver import look_up

P = TypeVar("P", bound=asyncio.BaseProtocol)

NEXT_ADDRESS_S = 0.1
"""Seconds after which the next address of a name is tried too, if the previous one has not responded."""

_Lookups = dict[str, "asyncio.Task[list[str]]"]
_lookups: WeakKeyDictionary[asyncio.AbstractEventLoop, _Lookups] = WeakKeyDictionary()
"""Per loop and name: the look-up in progress."""


async def dial(make: Callable[[], P], host: str, port: int, *, drop: Callable[[P], None], tls: ssl.SSLContext | None = None) -> P:
    """Connect to the host and return the protocol that `make` created; with `tls`, after the handshake.

    Raises OSError if that fails: `gaierror` if the name cannot be resolved, `ConnectionRefusedError` if every address refused,
    else another error of one of the addresses. `drop` closes a connection that was established after another one."""
    addresses = await resolve(host)
    if len(addresses) == 1:
        return await _attempt(make, addresses[0], port, host, tls)
    return await _first(lambda address: _attempt(make, address, port, host, tls), addresses, drop)


def is_unknown_host(error: BaseException | None) -> bool:
    """Return True if the resolver reported that the name does not exist, and False if it did not respond."""
    return isinstance(error, socket.gaierror) and error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None))


def is_unreachable(error: BaseException | None) -> bool:
    """Return True if the host refused the connection or does not exist, and False after a timeout."""
    return isinstance(error, ConnectionRefusedError) or is_unknown_host(error)


# -- names ------------------------------------------------------------------------------------------------------------


async def resolve(host: str) -> list[str]:
    """The host's addresses, each once, in the system's order. Raises OSError if it cannot be resolved."""
    if _is_address(host):
        return [host]
    loop = asyncio.get_running_loop()
    lookups = _lookups.setdefault(loop, {})
    lookup = lookups.get(host)
    if lookup is None:
        lookup = lookups[host] = loop.create_task(_look_up(host), name=f"resolve {host}")
        lookup.add_done_callback(lambda done: _on_looked_up(lookups, host, done))
    return await asyncio.shield(lookup)


def forget(loop: asyncio.AbstractEventLoop) -> None:
    """Drop the look-ups of a loop that runs no more: those without an answer refer to the loop and would keep it alive."""
    _lookups.pop(loop, None)


def is_looking_up(host: str) -> bool:
    """Return True while a look-up of this name is in progress."""
    return host in _lookups.get(asyncio.get_running_loop(), {})


async def _look_up(host: str) -> list[str]:
    """A coroutine, so that it can run as a task, which the end of the loop cancels. A bare future of a hanging look-up would keep
    the loop alive."""
    return await look_up(host)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _on_looked_up(lookups: _Lookups, host: str, done: asyncio.Task[list[str]]) -> None:
    del lookups[host]
    if not done.cancelled():
        done.exception()  # This marks the error as retrieved, because perhaps no connection waits for the look-up any longer.


# -- addresses --------------------------------------------------------------------------------------------------------


async def _attempt(make: Callable[[], P], address: str, port: int, host: str, tls: ssl.SSLContext | None) -> P:
    loop = asyncio.get_running_loop()
    if tls is None:
        _, protocol = await loop.create_connection(make, address, port)
    else:  # The certificate names the host, not its address.
        _, protocol = await loop.create_connection(make, address, port, ssl=tls, server_hostname=host)
    return protocol


async def _first(attempt_at: Callable[[str], Coroutine[Any, Any, P]], addresses: list[str], drop: Callable[[P], None]) -> P:
    loop = asyncio.get_running_loop()
    attempts: dict[asyncio.Task[P], None] = {}
    errors: list[OSError] = []
    try:
        while addresses or attempts:
            if addresses:
                attempts[loop.create_task(attempt_at(addresses[0]))] = None
                addresses = addresses[1:]
            gap_s = NEXT_ADDRESS_S if addresses else None
            await asyncio.wait(attempts, timeout=gap_s, return_when=asyncio.FIRST_COMPLETED)
            for attempt in [attempt for attempt in attempts if attempt.done()]:
                del attempts[attempt]
                error = attempt.exception()
                if error is None:
                    return attempt.result()
                if not isinstance(error, OSError):
                    raise error
                errors.append(error)
    finally:
        for attempt in attempts:
            _abandon(attempt, drop)
    raise next((error for error in errors if not isinstance(error, ConnectionRefusedError)), errors[-1])


def _abandon(attempt: asyncio.Task[P], drop: Callable[[P], None]) -> None:
    def on_done(done: asyncio.Task[P]) -> None:
        if not done.cancelled() and done.exception() is None:
            drop(done.result())

    attempt.cancel()
    attempt.add_done_callback(on_done)
