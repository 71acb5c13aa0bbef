"""One private event loop per process, and the clients that live on it.

Spark calls us synchronously, on a thread without a loop, in processes that it forks, keeps for many tasks, and ends without
asking. So there is one loop per process (a fork gets its own), it runs only while somebody waits for an answer, and
a client is kept for the next task with the same options: connecting and learning the metadata costs more than a small read.
`run_until_complete` per step is measured to be the cheapest way to drive a client (a thread of its own gains nothing, and
`asyncio.Runner.run` costs 14 ms per megabyte of result in Python 3.11).
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
"""Clients that are kept: a process rarely reads from more clusters than this."""


class Session:
    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._clients: dict[_Key, Consumer | Admin] = {}
        """Started, the one that was used last at the end."""
        self.clusters = KeptClusters()

    def run(self, step: Awaitable[T]) -> T:
        return self.loop.run_until_complete(step)

    @contextmanager
    def client(self, kind: type[Client], options: Mapping[str, Any], *, up_to_date: bool = True) -> Iterator[Client]:
        """A started client with these options, that of the last task if there is one. After an error it is closed.

        `up_to_date`: a consumer that was kept asks the cluster for its topics and partitions first. A caller that recognises
        old metadata by itself (it knows the topic's id) does not need that, and saves a request and its gap."""
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
        """The loop has stood still since its last task: what it knows of topics and partitions is as old as that."""
        try:
            self.run(client.refresh_metadata())
        except BaseException:
            self._close(client)
            raise

    def _close(self, client: Consumer | Admin) -> None:
        with suppress(StrandlineError, OSError):
            self.run(client.stop())


_session: tuple[int, Session] | None = None
"""Of the process with this id: what a fork inherits is its parent's, sockets and all, and must not be touched."""


def session() -> Session:
    """This process's."""
    global _session
    if _session is None or _session[0] != os.getpid():
        _session = (os.getpid(), Session())
    return _session[1]
