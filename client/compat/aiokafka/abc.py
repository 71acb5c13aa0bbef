"""The abstract classes of aiokafka 0.14."""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Mapping
from typing import Any

from strandline.client.consumer.records import TopicPartition


class ConsumerRebalanceListener(abc.ABC):
    """A program's callbacks for rebalances. Both methods may be plain functions or coroutine functions.

    As in aiokafka, a rebalance calls `on_partitions_revoked` with all partitions that the consumer had, and then
    `on_partitions_assigned` with all partitions that it has then. Unlike in aiokafka, partitions that stay with the consumer are
    still read during the rebalance.

    A listener that also has a method `on_partitions_lost` is called as in Kafka's Java client: only with the partitions that
    were assigned, revoked or lost."""

    @abc.abstractmethod
    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> Awaitable[None] | None:
        """Called with the partitions that the consumer had before the rebalance. Their records are finished, and no more are
        returned until the call has ended. `stop` does not call it."""

    @abc.abstractmethod
    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> Awaitable[None] | None:
        """Called with the partitions that the consumer has after the rebalance, before records of new ones are returned."""


class AbstractTokenProvider(abc.ABC):
    """Provides the tokens of SASL/OAUTHBEARER: the base class of the option `sasl_oauth_token_provider`."""

    @abc.abstractmethod
    async def token(self) -> str:
        """The token for the next authentication."""

    def extensions(self) -> Mapping[str, Any]:
        """Further values for the first request of the authentication."""
        return {}


__all__ = ["AbstractTokenProvider", "ConsumerRebalanceListener"]
