"""A user's program, written as in the documentation: type checkers check it with an installed package (test_installs.py)."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence

import pytest

import strandline
from strandline import (
    Admin,
    BufferFull,
    CommitFailed,
    Consumer,
    ConsumerRecord,
    DeliveryFailed,
    GroupMembershipFailed,
    GroupStateChange,
    LocalCluster,
    NewTopic,
    NoBrokersAvailable,
    OffsetAndMetadata,
    Producer,
    ProducerFenced,
    Receipt,
    RecordMetadata,
    StrandlineError,
    TopicPartition,
)
from strandline.client import Receipts, arrow_batches
from strandline.testing import Cluster, ThreadedCluster, isr, leader, simulated

BOOTSTRAP = "127.0.0.1:9092"
VERSION: str = strandline.__version__


async def create(names: Sequence[str]) -> None:
    async with Admin(bootstrap_servers=BOOTSTRAP) as admin:
        await admin.create_topics([NewTopic(name, partitions=6, configs={"min.insync.replicas": 2}) for name in names])
        for topic in await admin.describe_topics(names):
            leaders: list[int] = [partition.leader_id for partition in topic.partitions]
            print(topic.name, leaders)
        for entry in await admin.describe_configs("topic", names[0]):
            print(entry.name, entry.value, entry.source)


async def write() -> None:
    async with Producer(bootstrap_servers=BOOTSTRAP, acks="all", linger_ms=5, config={"batch.size": 65_536}) as producer:
        where: RecordMetadata = await producer.send_and_wait("orders", b"2 tea", key=b"alice", headers=[("trace", b"1")])
        print(where.topic, where.partition, where.offset, where.timestamp_ms)
        receipt: Receipt = await producer.send("orders", b"1 coffee", partition=0)
        try:
            receipt = producer.send_nowait("orders", b"3 cocoa")
        except BufferFull as e:
            print(e.retriable)
        receipts: Receipts = producer.send_many("orders", [b"a", b"b"])
        for run in await receipts:
            print(run.offset, run.records)
        try:
            print((await receipt).offset)
        except DeliveryFailed as e:
            print(e.topic, e.partition, e.attempts, e.code)
        await producer.flush()


async def write_rows(rows: Sequence[bytes], batch_id: int) -> None:
    try:
        async with Producer(producer_name="orders-sink", producer_work_epoch=batch_id) as producer:
            there = await producer.written([("orders", 0)])
            for row in rows[there[TopicPartition("orders", 0)] :]:
                await producer.send("orders", row, partition=0)
    except ProducerFenced as e:
        print(e)


def handle(record: ConsumerRecord) -> None:
    print(record.topic, record.partition, record.offset, record.timestamp, record.key, record.value, record.headers)


async def read() -> None:
    async with Consumer(
        "orders", bootstrap_servers=BOOTSTRAP, auto_offset_reset="earliest", value_deserializer=json.loads
    ) as consumer:
        async for record in consumer:
            handle(record)
            break
        consumer.subscribe(["orders", "payments"])
        consumer.subscribe("orders", "payments")
        for partition, records in (await consumer.getmany(timeout_ms=1000, max_records=500)).items():
            print(partition.topic, partition.partition, len(records))
        for batches in (await consumer.fetch_batches(timeout_ms=1000)).values():
            for rows in arrow_batches(batches, rows=10_000):
                print(rows.num_rows)
    async with Consumer(bootstrap_servers=BOOTSTRAP) as consumer:
        place = TopicPartition("orders", 0)
        await consumer.assign([place, ("orders", 1)])
        consumer.seek(place, 0)
        handle(await consumer.getone(timeout_ms=1000))
        ends: dict[TopicPartition, int] = await consumer.end_offsets([place])
        print(ends[place], await consumer.position(place))


async def drain(partitions: list[TopicPartition]) -> None:
    print("revoked", partitions)


def forget(partitions: Sequence[TopicPartition]) -> None:
    print("lost", partitions)


def on_change(change: GroupStateChange) -> None:
    print(change.previous, change.state, change.reason)


class Listener:
    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        print(assigned)

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        print(revoked)


async def read_in_a_group() -> None:
    async with Consumer(
        "orders", bootstrap_servers=BOOTSTRAP, group_id="billing", enable_auto_commit=False, on_state_change=on_change
    ) as consumer:
        consumer.subscribe("orders", on_assigned=forget, on_revoked=drain, on_lost=forget)
        consumer.subscribe(pattern="orders-.*", listener=Listener())
        offsets: dict[TopicPartition, int] = {}
        try:
            for partition, records in (await consumer.getmany(timeout_ms=1000)).items():
                offsets[partition] = records[-1].offset + 1
            await consumer.commit(offsets)
            await consumer.commit({TopicPartition("orders", 0): OffsetAndMetadata(7, "note")}, timeout_ms=500)
            await consumer.commit()
        except CommitFailed as e:
            print(e.retriable)
        committed: int | None = await consumer.committed(TopicPartition("orders", 0))
        print(committed, await consumer.seek_to_committed(), consumer.subscription(), consumer.health()["group"])
        consumer.unsubscribe()
    try:
        async with Consumer("orders", bootstrap_servers=BOOTSTRAP, group_id="billing", group_instance_id="a") as consumer:
            async for record in consumer:
                handle(record)
    except GroupMembershipFailed as e:
        print(e.code)


async def look_at_groups() -> None:
    async with Admin(bootstrap_servers=BOOTSTRAP) as admin:
        for group in (await admin.list_groups()).groups:
            print(group.group_id, group.state)
        for group_id, description in (await admin.describe_groups(["billing"])).items():
            print(group_id, [member.assignment for member in description.members], description.error)
        for lag in (await admin.group_lag(["billing"])).values():
            print(lag.total, {str(tp): partition.lag for tp, partition in lag.partitions.items()})
        for result in (await admin.alter_group_offsets("billing", {("orders", 0): 5})).values():
            print(result.code, result.message)


@pytest.mark.strandline(brokers=3, seed=7)
async def test_a_killed_leader_loses_no_record(cluster: Cluster) -> None:
    """The test uses the fixtures of `strandline.testing` as docs/testing.md shows them."""
    await cluster.create_topic("orders")
    async with cluster.producer() as producer, cluster.consumer("orders", auto_offset_reset="earliest") as consumer:
        await producer.send_and_wait("orders", b"1 tea")
        first = await cluster.leader_of("orders")
        await cluster.kill(first)
        await cluster.until(leader("orders") != first, within_s=5)
        await cluster.until(isr("orders") == {1, 2, 3} - {first})
        await producer.send_and_wait("orders", b"2 coffee")
        print((await consumer.getone()).value)
    assert [record.value for record in await cluster.read_all("orders")] == [b"1 tea", b"2 coffee"]
    await cluster.assert_no_acked_loss()


async def test_several_clusters(make_cluster: Callable[..., Awaitable[Cluster]]) -> None:
    one = await make_cluster(brokers=1)
    await one.create_topic("orders")


def test_without_a_loop(threaded_cluster: ThreadedCluster) -> None:
    threaded_cluster.kill(1)


@simulated(seeds=3)
async def test_under_a_seed(cluster: Cluster) -> None:
    await cluster.create_topic("orders")


async def main() -> None:
    async with LocalCluster("./cluster") as cluster:
        print(cluster.bootstrap)
    try:
        await create(["orders"])
        await asyncio.gather(write(), read())
    except NoBrokersAvailable as e:
        print(e.retriable)
    except StrandlineError as e:
        print(e)


if __name__ == "__main__":
    asyncio.run(main())
