"""The abstract classes of aiokafka 0.14."""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Mapping
from typing import Any

from strandline.client.consumer.records import TopicPartition


class ConsumerRebalanceListener(abc.ABC):
    """What a program wants to do when its partitions change. Both methods may be plain functions or coroutines.

    As with aiokafka, a rebalance calls `on_partitions_revoked` with all partitions that the consumer had, and then
    `on_partitions_assigned` with all that it has. The partitions that stay are read on all the same.

    A listener that has a method `on_partitions_lost`, too, is called as in Kafka's Java client: with the partitions that come, go
    or were lost, and not with those that stay."""

    @abc.abstractmethod
    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> Awaitable[None] | None:
        """The partitions that the consumer had, before the rebalance. Their records are finished, and no more are returned until
        the call has ended. Not called by `stop`."""

    @abc.abstractmethod
    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> Awaitable[None] | None:
        """The partitions that the consumer has, after the rebalance, and before their records are returned."""


class AbstractTokenProvider(abc.ABC):
    """Provides tokens for SASL/OAUTHBEARER, which is not supported yet. The class exists so that programs can be imported."""

    @abc.abstractmethod
    async def token(self) -> str:
        """A token."""

    def extensions(self) -> Mapping[str, Any]:
        """Further values of the first request."""
        return {}


__all__ = ["AbstractTokenProvider", "ConsumerRebalanceListener"]
