"""Calls a `ConsumerRebalanceListener` as aiokafka does.

A rebalance of aiokafka stops all partitions: the listener gets all partitions that the consumer had, and then all that it has.
Programs rely on that (they save all state in the first call, and load all of it in the second one). Here a rebalance stops only
the partitions that move. So both methods are called for each change, with complete sets (`on_partitions_revoked` alone if the
partitions were lost), while the other partitions are still read. A listener with a method `on_partitions_lost` is written for
incremental rebalances, and gets only the partitions that move (abc.py).

As in aiokafka, an error of a listener is logged and does not end the rebalance, and `stop` calls no listener.
"""

from __future__ import annotations

import inspect
from typing import Any

from strandline.client.compat.aiokafka.abc import ConsumerRebalanceListener
from strandline.client.consumer.group.callbacks import RebalanceCallback
from strandline.client.consumer.records import TopicPartition
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)


class ListenerCalls:
    """The callbacks for `Consumer.subscribe`."""

    def __init__(self, listener: ConsumerRebalanceListener) -> None:
        self._listener = listener
        self._is_incremental = hasattr(listener, "on_partitions_lost")
        self._announced: set[TopicPartition] = set()
        """The partitions that the next call of `on_partitions_revoked` gets."""
        self.is_stopping = False
        """Set by `stop`: the listener is no longer called."""

    def callbacks(self) -> dict[str, RebalanceCallback]:
        """The callbacks, as keyword arguments."""
        return {"on_assigned": self.on_assigned, "on_revoked": self._on_revoked, "on_lost": self._on_lost}

    async def on_assigned(self, partitions: list[TopicPartition]) -> None:
        if self._is_incremental:
            await self._call("on_partitions_assigned", set(partitions))
        else:
            await self._change(self._announced | set(partitions))

    async def _on_revoked(self, partitions: list[TopicPartition]) -> None:
        if self._is_incremental:
            await self._call("on_partitions_revoked", set(partitions))
        else:
            await self._change(self._announced - set(partitions))

    async def _on_lost(self, partitions: list[TopicPartition]) -> None:
        if self._is_incremental:
            await self._call("on_partitions_lost", set(partitions))
        else:
            await self._call("on_partitions_revoked", self._announced)
            self._announced = self._announced - set(partitions)

    async def _change(self, to: set[TopicPartition]) -> None:
        before, self._announced = self._announced, to
        await self._call("on_partitions_revoked", before)
        await self._call("on_partitions_assigned", to)

    async def _call(self, name: str, partitions: set[TopicPartition]) -> None:
        if self.is_stopping:
            return
        method: Any = getattr(self._listener, name)
        try:
            result = method(set(partitions))
            if inspect.isawaitable(result):
                await result
        except Exception as e:
            logger.warning("consumer.listener_failed", callback=name, reason=f"{type(e).__name__}: {e}")
