"""How a `ConsumerRebalanceListener` learns of a rebalance.

aiokafka's rebalances stop everything: a listener gets all partitions that the consumer had, and then all that it has, and
programs rely on that (they save all state in the one call, and load all of it in the other). Here only what moves stops. So
both calls are made for each change, with complete sets, while the partitions that stay are read on. A listener with a method
`on_partitions_lost` knows incremental rebalances, and gets what moves (abc.py).

As in aiokafka, an error of a listener is logged and does not end the rebalance, and `stop` calls no listener.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from strandline.client.compat.aiokafka.abc import ConsumerRebalanceListener
from strandline.client.consumer.group.callbacks import RebalanceCallback
from strandline.client.consumer.records import TopicPartition
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)


class ListenerCalls:
    """The callbacks for `Consumer.subscribe`. `assignment`: the partitions that the consumer has now."""

    def __init__(self, listener: ConsumerRebalanceListener, assignment: Callable[[], set[TopicPartition]]) -> None:
        self._listener = listener
        self._assignment = assignment
        self._is_incremental = hasattr(listener, "on_partitions_lost")
        self._told: set[TopicPartition] = set()
        """What the listener takes for the consumer's partitions."""
        self.is_stopping = False

    def callbacks(self) -> dict[str, RebalanceCallback]:
        """As keyword arguments."""
        return {"on_assigned": self.on_assigned, "on_revoked": self._on_revoked, "on_lost": self._on_lost}

    async def on_assigned(self, partitions: list[TopicPartition]) -> None:
        if self._is_incremental:
            await self._call("on_partitions_assigned", set(partitions))
        else:
            await self._change(self._told | set(partitions))

    async def _on_revoked(self, partitions: list[TopicPartition]) -> None:
        if self.is_stopping:
            return
        if self._is_incremental:
            await self._call("on_partitions_revoked", set(partitions))
        else:
            await self._change(self._told - set(partitions))

    async def _on_lost(self, partitions: list[TopicPartition]) -> None:
        if self._is_incremental:
            await self._call("on_partitions_lost", set(partitions))
        else:
            await self._call("on_partitions_revoked", self._told)
            self._told = self._told - set(partitions)

    async def _change(self, to: set[TopicPartition]) -> None:
        before, self._told = self._told, to
        await self._call("on_partitions_revoked", before)
        await self._call("on_partitions_assigned", to)

    async def _call(self, name: str, partitions: set[TopicPartition]) -> None:
        method: Any = getattr(self._listener, name)
        try:
            result = method(set(partitions))
            if inspect.isawaitable(result):
                await result
        except Exception as e:
            logger.warning("consumer.listener_failed", callback=name, reason=f"{type(e).__name__}: {e}")
