"""Name resolution: the system's resolver, called on a daemon thread per look-up.

The resolver is a blocking call that may take ten seconds and cannot be cancelled. The event loops have few threads for it
(uvloop resolves on two of its four; asyncio shares a handful with disk reads), so two dead names would delay all others, and a
process that exits waits for these threads. Here each look-up has a thread of its own, which does not keep the process alive.
The number of names bounds the threads, because `dial.py` has one look-up per name at a time.

`dial.py` is the only caller. A simulation replaces `dial.look_up` by a function of its own that starts no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading


def look_up(host: str) -> asyncio.Future[list[str]]:
    """A future of the host's addresses, each once, in the system's order. It raises OSError if the host cannot be resolved."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def set_result(addresses: list[str] | None, error: Exception | None) -> None:
        if found.done():
            return
        if error is not None:
            found.set_exception(error)
        elif addresses is not None:
            found.set_result(addresses)

    def ask() -> None:
        addresses, error = None, None
        try:
            answer = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(sockaddr[0]) for _, _, _, _, sockaddr in answer))
        except Exception as e:
            error = e
        with contextlib.suppress(RuntimeError):  # The loop may be closed by now.
            loop.call_soon_threadsafe(set_result, addresses, error)

    try:
        threading.Thread(target=ask, name=f"resolve {host}", daemon=True).start()
    except RuntimeError as e:  # The process cannot have more threads.
        found.set_exception(OSError(errno.EAGAIN, str(e)))
    return found
