"""Watches a cluster from outside: polls every broker over its client listener, and reports each change it sees.

Every broker is asked, because any of them may be dead, paused, or cut off with old metadata. `Picture` keeps the newest
answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from math import inf
from time import perf_counter
from typing import TypeVar

from strandline.chaos.picture import Change, Member, PartitionState, Picture, VoterState
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError
from strandline.protocol.frames import Records
from strandline.protocol.messages.admin import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    MetadataTopicRequest,
)
from strandline.protocol.messages.cluster import DescribeQuorumRequest, DescribeQuorumResponse
from strandline.protocol.messages.common import Message
from strandline.protocol.rpc.connection import Connection

TOPIC_POLL_S, CLUSTER_POLL_S = 0.03, 0.1
ASK_TIMEOUT_MS = 1000

R = TypeVar("R", bound=Message)


class Peer:
    """One broker, with a connection that is reopened after each failure."""

    def __init__(self, member: Member, client_id: str = "chaos") -> None:
        self.member = member
        self._client_id = client_id
        self._connection: Connection | None = None

    async def ask(
        self, api_key: int, body: Message, kind: type[R], *, records: Records | None = None, timeout_ms: int = ASK_TIMEOUT_MS
    ) -> R:
        """Send a request and return its response. Raises BrokerError if there is none within `timeout_ms`."""
        connection = self._connection
        if connection is None or connection.closed:
            member = self.member
            connection = self._connection = await Connection.connect(
                member.host,
                member.port,
                client_id=self._client_id,
                connect_timeout_ms=ASK_TIMEOUT_MS,
                security=member.security,
            )
        answer = await connection.request(api_key, body, records, timeout_ms=timeout_ms)
        assert isinstance(answer, kind)
        return answer

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class Watch:
    def __init__(self, brokers: Sequence[Member], topic: str, on_change: Callable[[Change], None]) -> None:
        self.picture = Picture()
        self._topic = topic
        self._on_change = on_change
        self._looks = (
            (self._look_at_topic, TOPIC_POLL_S),
            (self._look_at_quorum, CLUSTER_POLL_S),
            (self._look_at_brokers, CLUSTER_POLL_S),
        )
        # Each poll has its own connection: a request that waits for the controllers must not delay the others.
        self._peers = [Peer(member) for member in brokers for _ in self._looks]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for peer, (look, pause_s) in zip(self._peers, cycle(self._looks), strict=False):
            self._tasks.append(asyncio.create_task(self._repeat(look, peer, pause_s)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in self._peers:
            peer.close()

    async def _repeat(self, look: Callable[[Peer], Awaitable[None]], peer: Peer, pause_s: float) -> None:
        while True:
            try:
                await look(peer)
            except BrokerError:
                pass  # dead, paused or starting: another broker answers
            await asyncio.sleep(pause_s)

    async def _look_at_topic(self, peer: Peer) -> None:
        answer = await _metadata(peer, self._topic)
        if answer is not None and answer.partitions:
            self.picture.topic_id = answer.topic_id
            for index, state in _states(answer).items():
                self._tell(self.picture.on_partition(index, state))

    async def _look_at_quorum(self, peer: Peer) -> None:
        answer = await peer.ask(apis.DESCRIBE_QUORUM, DescribeQuorumRequest(), DescribeQuorumResponse)
        if not answer.error_code:
            now = perf_counter()
            voters = {
                v.replica_id: VoterState(
                    v.log_end_offset >= answer.high_watermark,
                    -inf if v.last_fetch_age_ms < 0 else now - v.last_fetch_age_ms / 1000,
                )
                for v in answer.current_voters
            }
            self._tell(self.picture.on_quorum(answer.leader_id, answer.leader_epoch, voters))

    async def _look_at_brokers(self, peer: Peer) -> None:
        answer = await peer.ask(apis.DESCRIBE_CLUSTER, DescribeClusterRequest(), DescribeClusterResponse)
        if not answer.error_code:
            for broker in answer.brokers:
                self._tell(self.picture.on_broker(broker.broker_id, broker.broker_epoch))

    def _tell(self, change: Change | None) -> None:
        if change is not None:
            self._on_change(change)


async def partitions_according_to(peer: Peer, topic: str) -> dict[int, PartitionState]:
    """The topic's partitions in this broker's own metadata, which may be outdated. Empty if it does not know the topic."""
    answer = await _metadata(peer, topic)
    return {} if answer is None else _states(answer)


async def _metadata(peer: Peer, topic: str) -> MetadataTopic | None:
    answer = await peer.ask(apis.METADATA, MetadataRequest([MetadataTopicRequest(topic)]), MetadataResponse)
    return answer.topics[0] if answer.topics else None


def _states(topic: MetadataTopic) -> dict[int, PartitionState]:
    return {
        p.partition: PartitionState(p.leader_id, p.leader_epoch, p.partition_epoch, tuple(p.replica_nodes), tuple(p.isr_nodes))
        for p in topic.partitions
    }
