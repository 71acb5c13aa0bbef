"""The five guarantees of compaction (docs/compaction.md), each on three real servers whose cleaner runs all the time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
from compacted_topic import PLACE, create
from waiting import until
from wire_cluster import WireCluster

from strandline.client import Consumer, Producer
from strandline.storage.log.log import Log

KEYS = [b"k%d" % n for n in range(5)]


class Written(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None


@pytest.fixture
async def cluster() -> AsyncIterator[WireCluster]:
    made = WireCluster(brokers=3, log_cleaner_backoff_ms=50)
    await made.start()
    yield made
    await made.close()


async def put(producer: Producer, key: bytes, value: bytes | None) -> Written:
    receipt = await producer.send_and_wait("users", value, key=key, partition=0)
    return Written(receipt.offset, key, value)


async def write(cluster: WireCluster, rounds: range) -> list[Written]:
    """Write every key once a round, each record in a batch of its own."""
    async with cluster.producer(linger_ms=0) as producer:
        return [await put(producer, key, b"%d " % n * 30) for n in rounds for key in KEYS]


async def delete(cluster: WireCluster, key: bytes) -> Written:
    async with cluster.producer() as producer:
        return await put(producer, key, None)


async def read(consumer: Consumer, end: int) -> list[Written]:
    """Everything from the consumer's position to `end`."""
    found: list[Written] = []
    while await consumer.position(PLACE) < end:
        for records in (await consumer.getmany(timeout_ms=5000)).values():
            found += [Written(r.offset, bytes(r.key or b""), None if r.value is None else bytes(r.value)) for r in records]
    return found


async def read_from(cluster: WireCluster, offset: int) -> list[Written]:
    """Everything from this offset to the end of the log, with a new consumer."""
    async with cluster.consumer() as consumer:
        await consumer.assign([PLACE])
        consumer.seek(PLACE, offset)
        return await read(consumer, (await consumer.end_offsets([PLACE]))[PLACE])


def logs(cluster: WireCluster) -> list[Log]:
    return [p.log for node in cluster.running for p in cluster.server(node).replicas.partitions.values() if p.topic == "users"]


async def compacted(cluster: WireCluster) -> None:
    """Wait until every replica has compacted its closed segments."""

    def is_done() -> bool:
        found = logs(cluster)
        return len(found) == 3 and all(
            len(log.segments) > 1 and log.first_dirty_offset == log.segments[-1].base_offset for log in found
        )

    await until(is_done, "all closed segments are compacted", within_s=20)


def final_state(records: list[Written]) -> dict[bytes, bytes]:
    """The last value of each key that is not deleted: what a consumer that applies the records one by one ends with."""
    state: dict[bytes, bytes] = {}
    for record in records:
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state


# -- the guarantees ---------------------------------------------------------------------------------------------------


async def test_guarantee_1_consumer_at_the_head_sees_every_record(cluster: WireCluster) -> None:
    """Their offsets are sequential, although the log behind the consumer is compacted meanwhile."""
    await create(cluster)
    async with cluster.producer(linger_ms=0) as producer, cluster.consumer() as consumer:
        await consumer.assign([PLACE])
        consumer.seek(PLACE, 0)
        seen: list[Written] = []
        for n in range(200):
            written = await put(producer, KEYS[n % 5], b"%d " % n * 30)
            seen += await read(consumer, written.offset + 1)
            assert seen[-1] == written
    assert [record.offset for record in seen] == list(range(200))
    await compacted(cluster)
    assert len(await read_from(cluster, 0)) < 40


async def test_guarantee_2_records_keep_their_order(cluster: WireCluster) -> None:
    await create(cluster)
    written = await write(cluster, range(40))
    await compacted(cluster)
    found = await read_from(cluster, 0)
    assert len(found) < 40
    kept = set(found)
    assert found == [record for record in written if record in kept]


async def test_guarantee_3_offset_of_a_record_never_changes(cluster: WireCluster) -> None:
    """Every offset also stays a valid position: at the offset of a removed record, a consumer reads the next one that is left."""
    await create(cluster)
    written = {record.offset: record for record in await write(cluster, range(40))}
    for _ in range(2):
        await compacted(cluster)
        found = await read_from(cluster, 0)
        assert all(written[record.offset] == record for record in found)
        removed = sorted(set(range(found[-1].offset)) - {record.offset for record in found})
        for offset in (removed[0], removed[len(removed) // 2], removed[-1]):
            assert (await read_from(cluster, offset))[0] == next(record for record in found if record.offset > offset)
        written |= {record.offset: record for record in await write(cluster, range(40, 80))}


async def test_guarantee_4_read_from_the_start_sees_the_final_state(cluster: WireCluster) -> None:
    """Such a read also shows the tombstones, for `delete.retention.ms`."""
    await create(cluster)
    written = await write(cluster, range(30))
    written += [await delete(cluster, KEYS[0]), await delete(cluster, KEYS[3])]
    written += [record for record in await write(cluster, range(30, 60)) if record.key != b""]
    written.append(await delete(cluster, KEYS[4]))
    async with cluster.producer(linger_ms=0) as producer:
        written += [await put(producer, b"other", b"%d " % n * 30) for n in range(40)]
    await compacted(cluster)
    found = await read_from(cluster, 0)
    assert len(found) < len(written) / 5
    assert final_state(found) == final_state(written)
    assert KEYS[4] in [record.key for record in found if record.value is None], "the deletion itself can be read"


@pytest.mark.parametrize("is_in_time", [True, False], ids=["within delete.retention.ms", "later"])
async def test_guarantee_5_consumer_that_is_in_time_sees_every_deletion(cluster: WireCluster, is_in_time: bool) -> None:
    """A consumer has read a value, and its key is deleted. If the consumer reaches the head before `delete.retention.ms` has
    passed, it reads the tombstone, however often the log was compacted meanwhile. Later it may miss it, and keeps the value."""
    await create(cluster, **{"delete.retention.ms": "86400000" if is_in_time else "0"})
    written = await write(cluster, range(20))
    found = await read_from(cluster, 0)
    assert KEYS[2] in final_state(found)
    written.append(await delete(cluster, KEYS[2]))
    for n in range(3):
        async with cluster.producer(linger_ms=0) as producer:
            written += [await put(producer, b"other", b"%d-%d " % (n, m) * 30) for m in range(20)]
        await compacted(cluster)
    found += await read_from(cluster, found[-1].offset + 1)
    missed = {} if is_in_time else {KEYS[2]: written[97].value}
    assert final_state(found) == final_state(written) | missed
