"""The door to names: the system's resolver, asked on threads that nobody else needs and nobody waits for.

The resolver is a blocking call that may take ten seconds and cannot be called back. An event loop's own threads for it are
few (uvloop lets two of its four resolve; asyncio shares a handful with the reading of disks), so that two dead names would
hold up all living ones, and a process that ends waits for them. Here each look-up has a thread of its own that does not
outlive the process. They are bounded by the number of names: `dial.py` asks for each once at a time.

`dial.py` is also the only one who asks. A simulation puts a `look_up` of its own in the place of `dial.look_up`, whose
futures belong to the running loop as these do, and no thread is ever started; production pays nothing for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading


def look_up(host: str) -> asyncio.Future[list[str]]:
    """The host's addresses, each once, in the system's order; or the `OSError` that says why there are none."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def tell(addresses: list[str] | None, error: Exception | None) -> None:
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
        with contextlib.suppress(RuntimeError):  # The loop is closed by now.
            loop.call_soon_threadsafe(tell, addresses, error)

    try:
        threading.Thread(target=ask, name=f"resolve {host}", daemon=True).start()
    except RuntimeError as e:  # No more threads for this process.
        found.set_exception(OSError(errno.EAGAIN, str(e)))
    return found
