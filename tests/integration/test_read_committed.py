"""Consumers that read committed records only, on real brokers. The transactions are written into the leader's log by hand,
because there is no coordinator yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from waiting import until
from wire_cluster import WireCluster

from strandline.broker.partition.partition import Partition
from strandline.client import Consumer, TopicPartition
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.marker import EndTransactionMarker

PLACE = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000


class Writer:
    """Writes transactional batches and markers at the leader."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.sequences: dict[int, int] = {}

    def write(self, pid: int, *values: str) -> None:
        sequence = self.sequences.get(pid, 0)
        self.sequences[pid] = sequence + len(values)
        records = [(b"k", value.encode(), [], NOW_MS) for value in values]
        data = encode_batch(records, producer_id=pid, producer_epoch=0, base_sequence=sequence, is_transactional=True)
        assert self.partition.leader_state is not None
        self.partition.leader_state.append(bytearray(data), NOW_MS, is_transactional=True)

    def end(self, pid: int, *, commit: bool) -> None:
        assert self.partition.leader_state is not None
        self.partition.leader_state.append_marker(EndTransactionMarker(commit, 0), pid, 0, NOW_MS, 0)


@asynccontextmanager
async def written() -> AsyncIterator[tuple[WireCluster, Writer]]:
    """Two overlapping aborted transactions, two committed ones, and an open one behind them."""
    async with WireCluster(controllers=1, brokers=1) as cluster:
        topic = await cluster.create("orders")
        await until(lambda: cluster.replica(1, topic.topic_id).leader_state is not None, "there is a leader")
        writer = Writer(cluster.replica(1, topic.topic_id))
        writer.write(7, "no 0", "no 1")
        writer.write(8, "no 2")
        await cluster.produce(topic, "yes 3")
        writer.write(9, "yes 4", "yes 5")
        writer.end(8, commit=False)
        writer.write(8, "yes 7")
        writer.end(7, commit=False)
        writer.end(9, commit=True)
        writer.end(8, commit=True)
        writer.write(7, "yes 11")
        writer.end(7, commit=True)
        writer.write(7, "open 13")
        await cluster.produce(topic, "after 14")
        yield cluster, writer


EXPECTED = [b"yes 3", b"yes 4", b"yes 5", b"yes 7", b"yes 11"]


async def read(consumer: Consumer, form: str, until_offset: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with asyncio.timeout(10):
        while await consumer.position(PLACE) < until_offset:
            if form == "fetch_batches":
                for batches in (await consumer.fetch_batches(timeout_ms=200)).values():
                    found += [value for each in batches for value in each.values]
            else:
                limit = 1 if form == "one by one" else 500
                for records in (await consumer.getmany(timeout_ms=200, max_records=limit)).values():
                    found += [record.value for record in records]
    return found


@pytest.mark.parametrize("fetch_bytes", [1, 1 << 20])
@pytest.mark.parametrize("form", ["getmany", "one by one", "fetch_batches"])
async def test_a_reader_of_committed_records_sees_no_other(form: str, fetch_bytes: int) -> None:
    async with written() as (cluster, writer):
        options = {"auto_offset_reset": "earliest", "max_partition_fetch_bytes": fetch_bytes}
        servers = cluster.bootstrap_servers
        async with Consumer("orders", bootstrap_servers=servers, isolation_level="read_committed", **options) as consumer:
            assert await read(consumer, form, 13) == EXPECTED
            assert not await consumer.getmany(timeout_ms=50)
            assert (await consumer.end_offsets([PLACE]))[PLACE] == 13
            writer.end(7, commit=False)
            assert await read(consumer, form, 16) == [b"after 14"]
            await consumer.seek_to_beginning()
            assert await read(consumer, form, 16) == [*EXPECTED, b"after 14"]


async def test_another_reader_sees_every_record_and_no_marker() -> None:
    async with written() as (cluster, _):
        servers = cluster.bootstrap_servers
        async with Consumer("orders", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            found = await read(consumer, "getmany", 15)
            assert len(found) == 10
            assert found[-2:] == [b"open 13", b"after 14"]
