"""Finding a way to a host: its name is resolved, its addresses are tried, and none of it may hold up anybody else.

On one machine a dead process refuses at once. In a network a dead host is silent, and so may be the resolver that knew
its name. Rules:

- A name is resolved anew for each connection: a container that comes back may have another address.
- One look-up per name is under way at a time, and whoever asks meanwhile shares it. A look-up that hangs occupies a thread
  (`resolver.py`), and cannot be called back; a second one would only take another thread. An address is not looked up.
- Every address of a name is tried. The next one gets its turn when the one before failed, or was silent for a moment
  (as in RFC 8305); the first that answers wins.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import TypeVar
from weakref import WeakKeyDictionary

from strandline.protocol.rpc.resolver import look_up

P = TypeVar("P", bound=asyncio.BaseProtocol)

NEXT_ADDRESS_S = 0.1
"""An address that has not answered by then: the next one is tried, too."""

_Lookups = dict[str, "asyncio.Task[list[str]]"]
_lookups: WeakKeyDictionary[asyncio.AbstractEventLoop, _Lookups] = WeakKeyDictionary()
"""Per loop and name: the look-up that is under way."""


async def dial(make: Callable[[], P], host: str, port: int, *, drop: Callable[[P], None]) -> P:
    """A connection to the host, or the `OSError` that says most about why there is none: `gaierror` when the name leads
    nowhere, `ConnectionRefusedError` when every address refused. `drop` ends one that came too late to win."""
    addresses = await resolve(host)
    if len(addresses) == 1:
        return await _attempt(make, addresses[0], port)
    return await _first(make, addresses, port, drop)


def is_unknown_host(error: BaseException | None) -> bool:
    """The resolver answered that nobody has the name; in contrast to one that did not answer."""
    return isinstance(error, socket.gaierror) and error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None))


def is_unreachable(error: BaseException | None) -> bool:
    """An answer, and not a silence: the host refuses connections, or there is no such host."""
    return isinstance(error, ConnectionRefusedError) or is_unknown_host(error)


# -- names ------------------------------------------------------------------------------------------------------------


async def resolve(host: str) -> list[str]:
    """The host's addresses, each once, in the system's order."""
    if _is_address(host):
        return [host]
    loop = asyncio.get_running_loop()
    lookups = _lookups.setdefault(loop, {})
    lookup = lookups.get(host)
    if lookup is None:
        lookup = lookups[host] = loop.create_task(_look_up(host), name=f"resolve {host}")
        lookup.add_done_callback(lambda done: _on_looked_up(lookups, host, done))
    return await asyncio.shield(lookup)


def is_looking_up(host: str) -> bool:
    """Whether the resolver has still to answer."""
    return host in _lookups.get(asyncio.get_running_loop(), {})


async def _look_up(host: str) -> list[str]:
    """As a task, which the end of the loop cancels: a bare future would keep the loop of a look-up that hangs."""
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
        done.exception()  # perhaps nobody waits for it any more


# -- addresses --------------------------------------------------------------------------------------------------------


async def _attempt(make: Callable[[], P], address: str, port: int) -> P:
    _, protocol = await asyncio.get_running_loop().create_connection(make, address, port)
    return protocol


async def _first(make: Callable[[], P], addresses: list[str], port: int, drop: Callable[[P], None]) -> P:
    loop = asyncio.get_running_loop()
    attempts: dict[asyncio.Task[P], None] = {}
    errors: list[OSError] = []
    try:
        while addresses or attempts:
            if addresses:
                attempts[loop.create_task(_attempt(make, addresses[0], port))] = None
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
