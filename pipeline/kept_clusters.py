"""Connections that a worker process keeps from one writing task to the next.

To connect to three brokers and to learn the metadata takes longer than a small task writes. A producer cannot be kept,
because each task writes under a name and a work epoch of its own; the connections and the metadata below it can.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from strandline.client.cluster.shared_cluster import SharedCluster
from strandline.client.options import ClientOptions
from strandline.protocol.errors import StrandlineError

KEPT = 8
"""Clusters that are kept: a process rarely writes to more than this."""

_Key = tuple[tuple[str, Any], ...]


class KeptClusters:
    """Of one event loop."""

    def __init__(self) -> None:
        self._idle: dict[_Key, SharedCluster] = {}
        """Those that no task uses at present; the most recently used one is the last."""

    @asynccontextmanager
    async def lend(self, options: Mapping[str, Any], topics: Iterable[str] = ()) -> AsyncIterator[SharedCluster]:
        """A cluster for a producer with these options that writes to these topics: the one of the last task if there is one.
        After an error it is closed and not used again."""
        shared = {name: value for name, value in options.items() if name in ClientOptions.__dataclass_fields__}
        key = tuple(sorted((name, str(value)) for name, value in shared.items()))
        cluster = self._idle.pop(key, None) or SharedCluster(**shared)
        cluster.want(topics)
        try:
            yield cluster
        except BaseException:
            await _close(cluster)
            raise
        self._idle[key] = cluster
        if len(self._idle) > KEPT:
            await _close(self._idle.pop(next(iter(self._idle))))


async def _close(cluster: SharedCluster) -> None:
    with suppress(StrandlineError, OSError):
        await cluster.close()
