"""Every form of the consumer steps over batches without records: the fillers that compaction leaves, and fences."""

from __future__ import annotations

import asyncio

import pytest

from strandline.client import Consumer, TopicPartition
from strandline.protocol.records.batch import stamp
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.fence import make_fence
from strandline.protocol.records.filler import OFFSETS_MAX, make_fillers

from .scripted import Partition, ScriptedCluster

ORDERS = TopicPartition("orders", 0)


class Sparse(list):  # type: ignore[type-arg]
    """Stands for the values of a log of `end` offsets, most of which are removed."""

    end = 0

    def __len__(self) -> int:
        return self.end


FENCE = "fence"
Part = int | tuple[int, int] | str


def lay(partition: Partition, *parts: Part) -> list[int]:
    """Give the log these parts, in order: a number of records, the offsets of a filler, or a fence. Returns the offsets of the
    records."""
    at, offsets, values = 0, [], Sparse()
    for part in parts:
        if isinstance(part, int):
            made = bytearray(encode_batch([(b"k", b"%d" % (at + n), [], 1) for n in range(part)]))
            stamp(made, 0, at, 0)
            partition.log.batches.append((at, bytes(made)))
            offsets += range(at, at + part)
            at += part
            continue
        if isinstance(part, str):
            partition.log.batches.append((at, make_fence(at, at, 0)))
            at += 1
            continue
        for filler in make_fillers(at, part[1], 0):
            partition.log.batches.append((int.from_bytes(filler[:8]), filler))
        at = part[1]
    values.end = at
    partition.log.values = values
    return offsets


SHAPES: dict[str, list[Part]] = {
    "between": [5, (5, 10), 3],
    "adjacent": [2, (2, 5), (5, 9), 1],
    "first": [(0, 4), 2],
    "last": [2, (2, 100)],
    "alone": [(0, 50)],
    "the largest": [1, (1, 1 + 2 * OFFSETS_MAX), 2],
    "fences": [FENCE, 2, FENCE, FENCE, 3],
    "a fence at the end": [2, FENCE],
    "only fences": [FENCE, FENCE],
}


async def drain(consumer: Consumer, form: str, end: int, within_s: float = 5) -> list[int]:
    """Read until the position is the end of the log."""
    found: list[int] = []
    async with asyncio.timeout(within_s):
        while await consumer.position(ORDERS) < end:
            if form == "getmany":
                found += [r.offset for rs in (await consumer.getmany(timeout_ms=200)).values() for r in rs]
            elif form == "getmany by one":
                found += [r.offset for rs in (await consumer.getmany(timeout_ms=200, max_records=1)).values() for r in rs]
            else:
                found += [o for bs in (await consumer.fetch_batches(timeout_ms=200)).values() for b in bs for o in b.offsets]
    return found


@pytest.mark.parametrize("fetch_bytes", [1, 70, 1 << 20])
@pytest.mark.parametrize("form", ["getmany", "getmany by one", "fetch_batches"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_position_moves_past_fillers(shape: str, form: str, fetch_bytes: int) -> None:
    """With 1 or 70 bytes per fetch, a response contains only a filler."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        partition = cluster.partition("orders")
        expected = lay(partition, *SHAPES[shape])
        options = {"max_partition_fetch_bytes": fetch_bytes, "auto_offset_reset": "earliest"}
        async with Consumer("orders", bootstrap_servers=cluster.bootstrap, **options) as consumer:
            assert await drain(consumer, form, partition.end_offset) == expected
            assert consumer.metrics()["partitions"]["orders-0"]["lag"] == 0


@pytest.mark.parametrize("shape", ["between", "adjacent", "first", "fences"])
async def test_getone_and_iteration_wait_for_the_record_after_fillers(shape: str) -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        expected = lay(cluster.partition("orders"), *SHAPES[shape])
        options = {"max_partition_fetch_bytes": 70, "auto_offset_reset": "earliest"}
        async with Consumer("orders", bootstrap_servers=cluster.bootstrap, **options) as consumer:
            found = [(await consumer.getone(timeout_ms=2000)).offset for _ in expected]
            assert found == expected
            await consumer.seek_to_beginning()
            async with asyncio.timeout(5):
                found = []
                async for record in consumer:
                    found.append(record.offset)
                    if len(found) == len(expected):
                        break
            assert found == expected


async def test_reading_begins_inside_a_filler() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        lay(cluster.partition("orders"), 5, (5, 10), 3)
        async with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
            await consumer.assign([ORDERS])
            consumer.seek(ORDERS, 7)
            assert (await consumer.getone(timeout_ms=2000)).offset == 10
