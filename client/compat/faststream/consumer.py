"""`AIOKafkaConsumer` with additions for FastStream. FastStream uses more than aiokafka's public interface: it catches aiokafka's
own exceptions, passes aiokafka's own `TopicPartition` and listeners, sets an attribute of a record, and logs two private
attributes."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from types import SimpleNamespace
from typing import Any, TypeVar

import aiokafka
import aiokafka.errors

from strandline.client.compat.aiokafka.abc import ConsumerRebalanceListener
from strandline.client.compat.aiokafka.consumer import AIOKafkaConsumer
from strandline.client.compat.aiokafka.errors import ConsumerStoppedError, KafkaError
from strandline.client.compat.aiokafka.structs import ConsumerRecord, TopicPartition

T = TypeVar("T")

ConsumerRebalanceListener.register(aiokafka.ConsumerRebalanceListener)


class Record(ConsumerRecord[Any, Any]):
    """A record to which FastStream may add the attribute `consumer`."""


class FastStreamConsumer(AIOKafkaConsumer):
    """The consumer of one subscriber."""

    def __init__(self, *topics: str, **options: Any) -> None:
        super().__init__(*topics, **options)
        self._reader.record = Record

    async def start(self) -> None:
        await _as_aiokafkas(super().start())

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord[Any, Any]:
        return await _as_aiokafkas(super().getone(*partitions))

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[Any, Any]]]:
        return await _as_aiokafkas(super().getmany(*partitions, timeout_ms=timeout_ms, max_records=max_records))

    async def __anext__(self) -> ConsumerRecord[Any, Any]:
        return await _as_aiokafkas(super().__anext__())

    async def commit(self, offsets: Any = None) -> None:
        await _as_aiokafkas(super().commit(offsets))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        super().assign([TopicPartition(*tp) for tp in partitions])

    def _check_assigned(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        return super()._check_assigned([TopicPartition(*tp) for tp in partitions])

    @property
    def _coordinator(self) -> SimpleNamespace:
        """FastStream logs `_coordinator.member_id`."""
        return SimpleNamespace(member_id=self.health().get("group", {}).get("member_id", ""))

    @property
    def _subscription(self) -> SimpleNamespace:
        """FastStream logs `_subscription.topics`."""
        return SimpleNamespace(topics=sorted(self.subscription()))


async def _as_aiokafkas(call: Awaitable[T]) -> T:
    """The result of a call. Raises its errors as aiokafka's own classes of the same name, because FastStream catches those."""
    try:
        return await call
    except (KafkaError, ConsumerStoppedError) as e:
        kind = getattr(aiokafka.errors, type(e).__name__, aiokafka.errors.KafkaError)
        raise kind(str(e)) from e


__all__ = ["FastStreamConsumer"]
