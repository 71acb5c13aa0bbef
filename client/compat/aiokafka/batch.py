"""`BatchBuilder` of aiokafka 0.14: records that a program collects and sends to one partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from strandline.client.producer.record_sizes import RICH_OVERHEAD, headers_size_max
from strandline.protocol.records.batch import HEADER_SIZE


class BatchRecord(NamedTuple):
    """A record of a `BatchBuilder`."""

    value: bytes | None
    key: bytes | None
    timestamp: int | None
    headers: list[tuple[str, bytes]]

    def split(self, partition: int) -> tuple[Any, ...]:
        """The arguments of `Producer.send` after the topic."""
        return self.value, self.key, partition, self.headers, self.timestamp


class AppendedMetadata(NamedTuple):
    """The result of `append`: the record's index in the batch, an upper bound of its size (bytes), and its timestamp."""

    offset: int
    size: int
    timestamp: int | None
    crc: None = None


class BatchBuilder:
    """Collects records up to a size. `AIOKafkaProducer.create_batch` creates one."""

    def __init__(
        self,
        batch_size: int,
        key_serializer: Callable[[Any], bytes | None] | None = None,
        value_serializer: Callable[[Any], bytes | None] | None = None,
    ) -> None:
        self._batch_size = batch_size
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._size = HEADER_SIZE
        self._is_closed = False
        self.records: list[BatchRecord] = []

    def append(
        self, *, timestamp: int | None, key: Any, value: Any, headers: Sequence[tuple[str, bytes]] | None = None
    ) -> AppendedMetadata | None:
        """Add a record. `timestamp`: milliseconds since 1970; None: the time when the batch is sent. Returns None, and adds
        nothing, if the batch is full or closed. The first record always fits."""
        if self._is_closed:
            return None
        key = key if self._key_serializer is None else self._key_serializer(key)
        value = value if self._value_serializer is None else self._value_serializer(value)
        listed = list(headers or ())
        size = RICH_OVERHEAD + len(key or b"") + len(value or b"") + headers_size_max(listed)
        if self.records and self._size + size > self._batch_size:
            self._is_closed = True
            return None
        self._size += size
        self.records.append(BatchRecord(value, key, timestamp, listed))
        return AppendedMetadata(len(self.records) - 1, size, timestamp)

    def close(self) -> None:
        """Accept no more records."""
        self._is_closed = True

    def closed(self) -> bool:
        """Whether no more records are accepted."""
        return self._is_closed

    def size(self) -> int:
        """An upper bound of the size of the batch, in bytes."""
        return self._size

    def record_count(self) -> int:
        """The number of records."""
        return len(self.records)


__all__ = ["BatchBuilder"]
