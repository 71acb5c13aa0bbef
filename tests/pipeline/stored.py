"""Reads the records of a topic from the bytes of its replicas' segments: a judge of sinks that shares no code with them.

    stored_rows(log, topic)                         of a running cluster
    stored_in_folders([data_1, data_2], topic)      of data directories without a broker

It uses neither the client nor the source nor the project's reader of record batches, because a fault in one of them could hide
the same fault in a sink. It asserts that all replicas have the same bytes, all checksums are right, and offsets have no gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import crc32c

from strandline.testing.kit.conditions import caught_up

if TYPE_CHECKING:
    from strandline.testing import Cluster, ThreadedCluster

BATCH = Struct(">qiibIhiqqqhii")
"""Kafka's record batch, version 2: base offset, length, leader epoch, magic, CRC, attributes, last offset delta, two timestamps,
producer id, producer epoch, base sequence, record count."""
LENGTH_COUNTS_FROM, CRC_COUNTS_FROM = 12, 21


class StoredRow(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    producer_id: int
    sequence: int


def stored_rows(log: ThreadedCluster, topic: str) -> list[StoredRow]:
    """Waits until all replicas have caught up, and returns the rows by partition and offset."""
    return log.run(rows_of(log.cluster, topic))


async def rows_of(cluster: Cluster, topic: str) -> list[StoredRow]:
    """Does the work of `stored_rows` in the cluster's event loop."""
    partitions = sorted(p.partition for p in (await cluster.nodes.look()).partitions() if p.topic == topic)
    assert partitions, f"no broker has a partition of {topic}"
    found = []
    for partition in partitions:
        await cluster.until(caught_up(topic, partition))
        found += _agreed(partition, await cluster.nodes.logs(topic, partition))
    return found


def stored_in_folders(folders: Iterable[Path], topic: str) -> list[StoredRow]:
    found: dict[int, dict[str, bytes]] = {}
    for folder in folders:
        for log in folder.glob(f"{topic}-*"):
            name, _, partition = log.name.rpartition("-")
            if name == topic and partition.isdecimal():
                data = b"".join(segment.read_bytes() for segment in sorted(log.glob("*.log")))
                found.setdefault(int(partition), {})[str(folder)] = data
    assert found, f"no folder has a partition of {topic}"
    return [row for partition, replicas in sorted(found.items()) for row in _agreed(partition, replicas)]


def stored_values(log: ThreadedCluster, topic: str) -> Counter[bytes | None]:
    """Counts how often each value is stored."""
    return Counter(row.value for row in stored_rows(log, topic))


def _agreed(partition: int, replicas: Mapping[object, bytes]) -> Iterator[StoredRow]:
    assert len(set(replicas.values())) <= 1, f"partition {partition}: the replicas {sorted(map(str, replicas))} differ"
    for data in list(replicas.values())[:1]:
        yield from decode(data, partition)


def decode(data: bytes, partition: int) -> Iterator[StoredRow]:
    """Decodes the records of one log from the bytes of all its segments."""
    position, next_offset = 0, None
    while position < len(data):
        (offset, length, _, magic, crc, attributes, last, *_, producer_id, _, sequence, count) = BATCH.unpack_from(data, position)
        end = position + LENGTH_COUNTS_FROM + length
        where = f"partition {partition}, batch at offset {offset} (byte {position})"
        assert (magic, attributes & 7) == (2, 0), f"{where}: magic {magic}, attributes {attributes:#x}"
        assert crc32c.crc32c(data[position + CRC_COUNTS_FROM : end]) == crc, f"{where}: its checksum is wrong"
        assert next_offset in (None, offset), f"{where}: offset {next_offset} is missing"
        records = list(_records(data[position + BATCH.size : end]))
        assert len(records) == count == last + 1, f"{where}: {len(records)} records, and its header says {count}"
        if not attributes & 0x20:
            for number, (key, value, headers) in enumerate(records):
                yield StoredRow(partition, offset + number, key, value, headers, producer_id, sequence + number)
        position, next_offset = end, offset + last + 1


def _records(data: bytes) -> Iterator[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]:
    reader = _Reader(data)
    while reader.position < len(data):
        end = reader.varint() + reader.position
        reader.position += 1  # Attributes, which no record uses.
        reader.varint(), reader.varint()  # Deltas of timestamp and offset.
        key, value = reader.bytes_or_none(), reader.bytes_or_none()
        headers = tuple(((reader.bytes_or_none() or b"").decode(), reader.bytes_or_none()) for _ in range(reader.varint()))
        assert reader.position == end, f"a record ends at byte {reader.position}, and its length says {end}"
        yield key, value, headers


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def varint(self) -> int:
        """Reads a zigzag varint, the encoding of all numbers in a record."""
        number = shift = 0
        while True:
            byte = self.data[self.position]
            self.position += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number >> 1 ^ -(number & 1)
            shift += 7

    def bytes_or_none(self) -> bytes | None:
        size = self.varint()
        if size < 0:
            return None
        self.position += size
        return self.data[self.position - size : self.position]
