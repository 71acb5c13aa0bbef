"""One private event loop per process, and the clients that it runs.

Spark calls the data source synchronously, on a thread without a loop, in processes that it forks, keeps for many tasks, and ends
without notice. So each process has one loop (a fork gets its own) that runs only while a caller waits for a result. A client is
kept for the next task with the same options, because connecting and fetching metadata costs more than a small read. One
`run_until_complete` per step was measured to be the cheapest way to drive a client: a separate thread gains nothing, and
`asyncio.Runner.run` costs 14 ms per megabyte of result in Python 3.11.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import uvloop

from strandline.client import Admin, Consumer
from strandline.pipeline.kept_clusters import KeptClusters
from strandline.protocol.errors import StrandlineError

T = TypeVar("T")
Client = TypeVar("Client", Consumer, Admin)
_Key = tuple[type[Consumer] | type[Admin], tuple[tuple[str, Any], ...]]
KEPT = 8
"""How many idle clients are kept. A process rarely reads from more clusters than this."""


class Session:
    """The event loop of this process, with the clients and cluster connections that are kept between tasks."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._clients: dict[_Key, Consumer | Admin] = {}
        """Started clients, the most recently used one last."""
        self.clusters = KeptClusters()

    def run(self, step: Awaitable[T]) -> T:
        return self.loop.run_until_complete(step)

    @contextmanager
    def client(self, kind: type[Client], options: Mapping[str, Any], *, up_to_date: bool = True) -> Iterator[Client]:
        """Yields a started client with these options: the kept one if there is one, else a new one. An error closes it.

        With `up_to_date`, a kept consumer first refreshes its metadata. A caller that detects old metadata by itself (it knows
        the topic's id) passes False and saves a request."""
        key = (kind, tuple(sorted(options.items())))
        client = self._clients.pop(key, None)
        if client is None:
            client = kind(**options)
            self.run(client.start())
        elif up_to_date and isinstance(client, Consumer):
            self._refresh(client)
        assert isinstance(client, kind)
        try:
            yield client
        except BaseException:
            self._close(client)
            raise
        self._clients[key] = client
        if len(self._clients) > KEPT:
            self._close(self._clients.pop(next(iter(self._clients))))

    def _refresh(self, client: Consumer) -> None:
        """Refreshes the consumer's metadata, which is as old as the last task: the loop has not run since."""
        try:
            self.run(client.refresh_metadata())
        except BaseException:
            self._close(client)
            raise

    def _close(self, client: Consumer | Admin) -> None:
        with suppress(StrandlineError, OSError):
            self.run(client.stop())


_session: tuple[int, Session] | None = None
"""The session, and the id of the process that created it. A forked process must not touch its parent's session and sockets."""


def session() -> Session:
    """The session of this process; created at the first call, and again after a fork."""
    global _session
    if _session is None or _session[0] != os.getpid():
        _session = (os.getpid(), Session())
    return _session[1]
