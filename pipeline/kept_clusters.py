"""Connections that a worker process keeps from one writing task to the next.

Connecting to three brokers and fetching metadata takes longer than a small task needs to write. Each task writes under its own
producer name and work epoch, so no producer can be kept, but the connections and metadata below it can.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from strandline.client.cluster.shared_cluster import SharedCluster
from strandline.client.options import ClientOptions
from strandline.protocol.errors import StrandlineError

KEPT = 8
"""How many idle cluster connections are kept. A process rarely writes to more clusters than this."""

_Key = tuple[tuple[str, Any], ...]


class KeptClusters:
    """The cluster connections of one event loop that are kept between tasks."""

    def __init__(self) -> None:
        self._idle: dict[_Key, SharedCluster] = {}
        """Clusters that no task uses at present, the most recently used one last."""

    @asynccontextmanager
    async def lend(self, options: Mapping[str, Any], topics: Iterable[str] = ()) -> AsyncIterator[SharedCluster]:
        """Yields a cluster for a producer with these options that writes to these topics: the kept one if there is one. An error
        closes it."""
        shared = {name: value for name, value in options.items() if name in ClientOptions.__dataclass_fields__}
        key = tuple(sorted(((name, _hashable(value)) for name, value in shared.items()), key=lambda item: item[0]))
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


def _hashable(value: Any) -> Any:
    """The value itself, so that clusters of different identities are different, also where the text of a value hides a secret."""
    return value if isinstance(value, Hashable) else str(value)


async def _close(cluster: SharedCluster) -> None:
    with suppress(StrandlineError, OSError):
        await cluster.close()
