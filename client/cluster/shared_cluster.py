"""The connections and the metadata of a cluster, which several producers use one after the other.

A Spark worker runs many short tasks, and each task writes under a producer name of its own. Connecting to three brokers and
fetching the metadata takes longer than such a task writes. So the worker keeps a `SharedCluster`, and the producer of each task
uses it:

    cluster = SharedCluster(bootstrap_servers="127.0.0.1:9092")
    async with Producer(cluster=cluster, producer_name="orders-sink-0", producer_work_epoch=batch_id) as producer: ...
    async with Producer(cluster=cluster, producer_name="orders-sink-0", producer_work_epoch=batch_id + 1) as producer: ...
    await cluster.close()

The event loop may not run between two producers. Meanwhile brokers close idle connections, leaders move, and topics are
deleted and created. So each producer begins with one metadata request on an open connection. It is sent together with the request
for the producer id, and adds no waiting time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Unpack

from strandline.client.cluster.cluster import Cluster
from strandline.client.options import ClientKeywords, ClientOptions, parse_options
from strandline.protocol.doors import Doors, real_doors

TOPICS_MAX = 200
"""If more topics than this are wanted, all are forgotten, because each producer requests the metadata of all wanted topics."""


class SharedCluster:
    """Belongs to the event loop in which its first producer was started. `options`: the options that all clients have in
    common."""

    def __init__(self, *, doors: Doors | None = None, **options: Unpack[ClientKeywords]) -> None:
        self.cluster = Cluster(parse_options(ClientOptions, options), (doors or real_doors()).random)
        self._is_started = self._is_renewed = False

    def want(self, topics: Iterable[str]) -> None:
        """Fetch the metadata of these topics when the next producer starts. Topics of earlier producers stay wanted."""
        if self.cluster.metadata.topics_wanted > TOPICS_MAX:
            self.cluster.metadata.forget_topics()
        self.cluster.metadata.want_topics(topics)

    async def notice_changes(self) -> None:
        """Let the event loop read the data that arrived while it did not run: a broker may have closed its connection."""
        for _ in range(2):  # The event loop reads its sockets between two iterations.
            await asyncio.sleep(0)

    async def renew(self) -> None:
        """Refresh the metadata, once per producer; the first time, connect to the cluster. NoBrokersAvailable if no broker
        answers within `connect_timeout_ms`."""
        if self._is_renewed:
            return
        await (self.cluster.metadata.renew() if self._is_started else self.cluster.start())
        self._is_started = self._is_renewed = True

    async def partition_count(self, topic: str) -> int:
        """The topic's present number of partitions. UnknownTopic."""
        await self.notice_changes()
        await self.renew()
        return len((await self.cluster.metadata.topic(topic, self.cluster.options.max_block_ms)).partitions)

    def release(self) -> None:
        """A producer has ended. The next one refreshes the metadata again, because time may have passed."""
        self._is_renewed = False

    async def close(self) -> None:
        """Close the connections."""
        await self.cluster.close()
