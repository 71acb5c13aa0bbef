"""The connections and the metadata of a cluster, shared by producers that follow one another.

A worker of Spark runs many short tasks, and each of them writes under a producer name of its own. To connect to three
brokers and to learn the metadata takes longer than such a task writes. So the worker keeps a `SharedCluster`, and each
producer of the next task uses it:

    cluster = SharedCluster(bootstrap_servers="127.0.0.1:9092")
    async with Producer(cluster=cluster, producer_name="orders-sink-0", producer_work_epoch=batch_id) as producer: ...
    async with Producer(cluster=cluster, producer_name="orders-sink-0", producer_work_epoch=batch_id + 1) as producer: ...
    await cluster.close()

The event loop may stand still between two producers. Meanwhile brokers close idle connections, leaders move, topics are
deleted and created. So each producer begins with one metadata request on an open connection, which leaves together with
the request for its producer id and adds no waiting time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Unpack

from strandline.client.cluster.cluster import Cluster
from strandline.client.options import ClientKeywords, ClientOptions, parse_options
from strandline.protocol.doors import Doors, real_doors

TOPICS_MAX = 200
"""With more topics than this the metadata of all is forgotten, because each producer asks for all that are wanted."""


class SharedCluster:
    """Belongs to the event loop in which its first producer was started. `options`: those that all clients have."""

    def __init__(self, *, doors: Doors | None = None, **options: Unpack[ClientKeywords]) -> None:
        self.cluster = Cluster(parse_options(ClientOptions, options), (doors or real_doors()).random)
        self._is_started = self._is_renewed = False

    def want(self, topics: Iterable[str]) -> None:
        """Have the next producer know these topics when it has started; those of earlier producers stay wanted."""
        if self.cluster.topics_wanted > TOPICS_MAX:
            self.cluster.forget_topics()
        self.cluster.want_topics(topics)

    async def notice_changes(self) -> None:
        """Let the event loop read what came while it stood still: a broker may have closed its connection."""
        for _ in range(2):  # The loop looks at its sockets between two iterations.
            await asyncio.sleep(0)

    async def renew(self) -> None:
        """Learn the metadata as it is now, at the first time with new connections; nothing if that was done since the last
        producer. NoBrokersAvailable if no broker answers within `connect_timeout_ms`."""
        if self._is_renewed:
            return
        await (self.cluster.renew() if self._is_started else self.cluster.start())
        self._is_started = self._is_renewed = True

    async def partition_count(self, topic: str) -> int:
        """Of the topic, as it is now. UnknownTopic."""
        await self.notice_changes()
        await self.renew()
        return len((await self.cluster.topic(topic, self.cluster.options.max_block_ms)).partitions)

    def release(self) -> None:
        """A producer has ended. Time may pass until the next one, which learns the metadata again."""
        self._is_renewed = False

    async def close(self) -> None:
        """Close the connections."""
        await self.cluster.close()
