"""The producer against real sockets and a scripted cluster: delivery, order, fail-over, bounds."""

from __future__ import annotations

import asyncio
import random

import pytest
from waiting import until

from strandline.client.errors import (
    BufferFull,
    ClientClosed,
    DeliveryFailed,
    DeliveryTimeout,
    NoBrokersAvailable,
    RecordTooLarge,
    RequestTimeout,
    UnknownTopic,
    UsageError,
)
from strandline.client.producer.partition_queue import PartitionQueue
from strandline.client.producer.producer import Producer
from strandline.client.producer.sender import Sender

from .scripted import ScriptedCluster


async def test_records_come_back_with_their_place() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            receipts = [producer.send_nowait("orders", b"%d" % i) for i in range(10)]
            places = [await receipt for receipt in receipts]
    assert [place.offset for place in places] == list(range(10))
    assert {(place.topic, place.partition) for place in places} == {("orders", 0)}
    assert all(place.timestamp_ms > 1_600_000_000_000 for place in places)


async def test_parked_records_keep_their_order() -> None:
    """The first `send_nowait` of a program precedes all metadata; it must not fail, and no record may overtake it."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            early = [producer.send_nowait("orders", b"early-%d" % i, key=b"k" if i % 2 else None) for i in range(50)]
            await early[0]
            late = producer.send_nowait("orders", b"late")
            assert (await late).offset == 50
            assert [receipt.result().offset for receipt in early] == list(range(50))


async def test_keys_choose_partitions_like_java() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 6)
        async with Producer(bootstrap_servers=cluster.bootstrap, batch_size=200) as producer:
            keyed = await producer.send_and_wait("orders", b"v", key=b"foobar")
            receipts = [await producer.send("orders", b"x" * 20) for _ in range(200)]
            used = {(await receipt).partition for receipt in receipts}
    assert keyed.partition == (-790332482 & 0x7FFFFFFF) % 6
    assert used == set(range(6))


async def test_an_empty_key_is_a_key() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 50)
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            places = [await producer.send_and_wait("orders", b"v", key=b"") for _ in range(5)]
    assert len({place.partition for place in places}) == 1


async def test_order_and_exactly_once_through_failures() -> None:
    """S38 and S39 on real connections: answers and requests lost, leaders moving, with five batches in flight."""
    dice = random.Random(7)
    fates = ["ok"] * 6 + ["response lost", "request lost", "NOT_ENOUGH_REPLICAS", "NOT_LEADER_OR_FOLLOWER"]
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 3)
        cluster.produce_fate = lambda broker_id, key: dice.choice(fates)
        async with Producer(bootstrap_servers=cluster.bootstrap, batch_size=300, retry_backoff_ms=5) as producer:
            receipts = {}
            for i in range(600):
                value = b"%05d" % i
                receipts[value] = await producer.send("orders", value, partition=i % 3)
                if i % 50 == 49:
                    cluster.move_leader("orders", dice.randrange(3), dice.randrange(1, 4))
                    await asyncio.sleep(0)
            cluster.produce_fate = lambda broker_id, key: "ok"
            await producer.flush(10_000)
        places = {value: await receipt for value, receipt in receipts.items()}
        for index in range(3):
            values = cluster.partition("orders", index).log.values
            assert values == [b"%05d" % i for i in range(index, 600, 3)], "lost, doubled or reordered"
            for offset, value in enumerate(values):
                assert (places[value].partition, places[value].offset) == (index, offset)


async def test_a_killed_leader_costs_a_moment() -> None:
    """The connection breaks, the producer asks for metadata at once and again until there is a leader, and sends the record to
    it."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait("orders", b"before")
            await cluster.brokers[1].stop()
            receipt = producer.send_nowait("orders", b"during")
            loop = asyncio.get_running_loop()
            loop.call_later(0.15, cluster.move_leader, "orders", 0, 2)
            started = loop.time()
            assert (await receipt).offset == 1
            assert loop.time() - started < 0.15 + 1.0, "no time-out, and no back-off that has grown"


async def test_hanging_leader_is_left_for_its_successor() -> None:
    """A stopped process answers nothing and breaks no connection: waiting for request_timeout_ms would take 30 s."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait("orders", b"before")
            cluster.brokers[1].hanging = True
            receipt = producer.send_nowait("orders", b"during")
            cluster.move_leader("orders", 0, 2)
            async with asyncio.timeout(3):
                assert (await receipt).offset == 1
            assert cluster.values("orders") == [b"before", b"during"]


async def test_many_small_records_share_requests() -> None:
    """linger 0 does not mean a request per record: records that arrive while one is in flight share the next."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 3)
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            receipts = [await producer.send("orders", b"%d" % i) for i in range(3000)]
            await asyncio.gather(*(receipts[i] for i in range(0, 3000, 500)))
            await producer.flush()
        assert len(cluster.produce_requests) < 60


async def test_flush_ends_lingering() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=50) as producer:
            first = await producer.send("orders", b"1")
            await asyncio.sleep(0)
            second = await producer.send("orders", b"2")
            await asyncio.gather(first, second)
            assert len(cluster.produce_requests) == 1
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=60_000) as patient:
            await patient.send("orders", b"3")
            await patient.flush(2_000)
    assert cluster.values("orders") == [b"1", b"2", b"3"]


async def test_flush_ends_lingering_of_parked_records() -> None:
    """The flush puts them into batches, and these used to stay open for `linger_ms`."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 3)
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=60_000) as producer:
            for i in range(30):
                producer.send_nowait("orders", b"%d" % i, key=b"%d" % i)
            await producer.flush(2_000)
    assert len(cluster.values("orders")) == 30


async def test_send_many_returns_runs_of_records() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 2)
        async with Producer(bootstrap_servers=cluster.bootstrap, batch_size=1000) as producer:
            await producer.partitions_for("orders")
            values = [b"v%04d" % i for i in range(1000)]
            receipts = producer.send_many("orders", values)
            assert len(receipts) == 1000
            runs = await receipts
            assert sum(run.records for run in runs) == 1000
            for i in (0, 1, 499, 998, 999):
                place = await receipts[i]
                assert cluster.partition("orders", place.partition).log.values[place.offset] == values[i]
    assert sorted(cluster.values("orders")) == values


async def test_columns_equal_single_records() -> None:
    """The first rows precede the topic's metadata, and all rows together exceed the buffer."""
    async with ScriptedCluster() as cluster:
        cluster.create("one_by_one", 3)
        cluster.create("columns", 3)
        values = [None if i % 97 == 0 else b"%04d" % i for i in range(3000)]
        keys = [b"k%d" % (i % 5) for i in range(3000)]
        headers = [[("h", b"%d" % i)] if i % 3 == 0 else None for i in range(3000)]
        options = {"bootstrap_servers": cluster.bootstrap, "batch_size": 1000, "buffer_memory": 8000}
        async with Producer(**options) as producer:
            receipts = await producer.send_columns("columns", values, keys, headers)
            for value, key, own in zip(values, keys, headers, strict=True):
                await producer.send("one_by_one", value, key, headers=own)
            runs = await receipts
            await producer.flush()
        assert (len(receipts), sum(run.records for run in runs)) == (3000, 3000)
        for partition in range(3):
            by_column, one_by_one = (cluster.partition(name, partition).log for name in ("columns", "one_by_one"))
            assert by_column.values == one_by_one.values


async def test_columns_without_keys_go_to_a_partition_or_spread() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 3)
        async with Producer(bootstrap_servers=cluster.bootstrap, batch_size=200) as producer:
            await (await producer.send_columns("orders", [b"%d" % i for i in range(500)], partition=2))
            assert cluster.partition("orders", 2).log.values == [b"%d" % i for i in range(500)]
            assert await (await producer.send_columns("orders", [])) == []
            spread = await (await producer.send_columns("orders", [b"x"] * 500))
            assert {run.partition for run in spread} == {0, 1, 2}
            with pytest.raises(RecordTooLarge):
                await producer.send_columns("orders", [b"x" * 2_000_000], partition=0)
            with pytest.raises(UnknownTopic, match="3 partitions"):
                await producer.send_columns("orders", [b"x"], partition=3)
            with pytest.raises(UsageError, match="bytes"):
                await producer.send_columns("orders", ["text"], partition=0)


async def test_headers_timestamps_nulls_and_serializers_arrive() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(
            bootstrap_servers=cluster.bootstrap, value_serializer=str.encode, key_serializer=lambda k: str(k).encode()
        ) as producer:
            place = await producer.send_and_wait("orders", "value", key=42, headers=[("h", b"1"), ("n", None)], timestamp_ms=123)
            assert place.timestamp_ms
            await producer.send_and_wait("orders", None, key=42)
        from strandline.protocol.records.reader import iter_records

        first, second = (record for _, batch in cluster.partition("orders").log.batches for record in iter_records(batch))
    assert (first.key, first.value, list(first.headers), first.timestamp_ms) == (b"42", b"value", [("h", b"1"), ("n", None)], 123)
    assert (second.key, second.value) == (b"42", None)


async def test_acks_0_and_1() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap, acks=1) as producer:
            assert (await producer.send_and_wait("orders", b"1")).offset == 0
        async with Producer(bootstrap_servers=cluster.bootstrap, acks=0) as producer:
            assert (await producer.send_and_wait("orders", b"2")).offset == -1
            await until(lambda: cluster.values("orders") == [b"1", b"2"])


# -- bounds -----------------------------------------------------------------------------------------------------------


async def test_full_buffer_fails_send_nowait_and_delays_send() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        cluster.produce_fate = lambda broker_id, key: "NOT_ENOUGH_REPLICAS"
        options = {"batch_size": 1000, "buffer_memory": 5000, "max_block_ms": 50}
        producer = Producer(bootstrap_servers=cluster.bootstrap, **options)
        await producer.start()
        await producer.partitions_for("orders")
        with pytest.raises(BufferFull) as full:
            _ = [producer.send_nowait("orders", b"x" * 100) for _ in range(100)]
        assert full.value.retriable
        with pytest.raises(BufferFull, match="max_block_ms"):
            await producer.send("orders", b"x" * 100)
        await producer.stop(timeout_ms=0)


async def test_every_send_gets_room() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        cluster.produce_fate = lambda broker_id, key: "NOT_ENOUGH_REPLICAS"
        options = {"batch_size": 1000, "buffer_memory": 5000, "retry_backoff_ms": 5}
        async with Producer(bootstrap_servers=cluster.bootstrap, **options) as producer:
            await producer.partitions_for("orders")
            waiting = [asyncio.create_task(producer.send("orders", b"y" * 900)) for _ in range(30)]
            await until(lambda: producer.metrics()["calls_waiting"] > 20)
            cluster.produce_fate = lambda broker_id, key: "ok"
            await asyncio.gather(*waiting)
            await producer.flush()
            assert producer.metrics()["buffered_bytes"] == 0
            assert len(cluster.values("orders")) == 30


async def test_oversized_record_is_rejected_locally() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for _ in range(2):  # before the topic is known, and after
                with pytest.raises(RecordTooLarge):
                    producer.send_nowait("orders", bytes(2_000_000))
                await producer.partitions_for("orders")
            assert (await producer.send_and_wait("orders", bytes(500_000))).offset == 0


async def test_calls_are_bounded_when_the_cluster_is_dead() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        options = {"delivery_timeout_ms": 300, "max_block_ms": 200, "request_timeout_ms": 200}
        producer = Producer(bootstrap_servers=cluster.bootstrap, **options)
        await producer.start()
        await producer.send_and_wait("orders", b"before")
        for broker in cluster.brokers.values():
            await broker.stop()
        async with asyncio.timeout(30):
            with pytest.raises(DeliveryTimeout) as late:
                await producer.send_and_wait("orders", b"lost")
            assert late.value.topic == "orders"
            assert late.value.elapsed_ms is not None
            assert 250 < late.value.elapsed_ms < 10_000
            assert "127.0.0.1" in str(late.value)
            with pytest.raises((RequestTimeout, NoBrokersAvailable)):
                await producer.send("unknown", b"never")
            never = producer.send_nowait("unknown", b"never")
            with pytest.raises(DeliveryFailed):
                await never
            producer.send_nowait("orders", b"lost too")
            with pytest.raises(RequestTimeout):
                await producer.flush(50)
            assert producer.health()["state"] == "degraded"
            undelivered = await producer.stop(timeout_ms=50)
        assert undelivered.records == 1


async def test_record_without_metadata_says_why_it_was_not_sent() -> None:
    """The message was "no metadata: None" while the first request for the metadata was not answered."""
    async with ScriptedCluster(1) as cluster, Producer(bootstrap_servers=cluster.bootstrap, delivery_timeout_ms=300) as producer:
        cluster.brokers[1].hanging = True
        with pytest.raises(DeliveryTimeout, match="no metadata yet"):
            await producer.send_nowait("orders", b"1")


async def test_bug_in_the_producer_fails_all_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug is in a callback of the event loop, which is not awaited: if it did not fail the receipts, they would wait without
    bound."""

    def break_down(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async with ScriptedCluster() as cluster, asyncio.timeout(5):
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=1) as producer:
            await producer.send_and_wait("orders", b"fine")
            monkeypatch.setattr(PartitionQueue, "take", break_down)
            receipt = producer.send_nowait("orders", b"lost")
            with pytest.raises(DeliveryFailed, match="ZeroDivisionError"):
                await receipt
            with pytest.raises(DeliveryFailed, match="can send nothing more"):
                producer.send_nowait("orders", b"refused")
            with pytest.raises(DeliveryFailed, match="can send nothing more"):
                await producer.send("orders", b"refused")


async def test_records_that_a_bug_has_failed_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics showed no failed record; `stop` reports the record by its partition, and whether it may be in the log."""

    def break_down(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async with ScriptedCluster() as cluster, asyncio.timeout(5):
        cluster.create("orders")
        producer = Producer(bootstrap_servers=cluster.bootstrap)
        await producer.start()
        await producer.send_and_wait("orders", b"fine")
        monkeypatch.setattr(PartitionQueue, "take", break_down)
        with pytest.raises(DeliveryFailed, match="ZeroDivisionError"):
            await producer.send_nowait("orders", b"lost")
        assert producer.metrics()["failed_records"] == 1
        undelivered = await producer.stop()
        assert (undelivered.by_partition, undelivered.failed) == ({"orders-0": 1}, 0)


async def test_bug_in_the_look_at_new_metadata_fails_all_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    """This bug is in a callback, too; records of a topic that was learned then used to wait for all of their 120 s."""

    def break_down(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async with ScriptedCluster() as cluster, asyncio.timeout(5):
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            monkeypatch.setattr(Sender, "_restart_stalled", break_down)
            with pytest.raises(DeliveryFailed, match="ZeroDivisionError"):
                await producer.send_and_wait("orders", b"lost")
            with pytest.raises(DeliveryFailed, match="can send nothing more"):
                producer.send_nowait("orders", b"refused")


async def test_stop_reports_undelivered_records_of_a_hanging_broker() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        producer = Producer(bootstrap_servers=cluster.bootstrap)
        await producer.start()
        await producer.send_and_wait("orders", b"1")
        cluster.brokers[1].hanging = True
        receipts = [producer.send_nowait("orders", b"2") for _ in range(3)]
        async with asyncio.timeout(2):
            assert (await producer.stop(timeout_ms=100)).records == 3
        for receipt in receipts:
            with pytest.raises(ClientClosed):
                await receipt
        with pytest.raises(ClientClosed):
            producer.send_nowait("orders", b"3")


async def test_missing_topic_fails_soon_and_stalls_no_other() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            missing = producer.send_nowait("ordres", b"typo")
            assert (await producer.send_and_wait("orders", b"fine")).offset == 0
            async with asyncio.timeout(20):
                with pytest.raises(UnknownTopic, match="ordres"):
                    await missing
                with pytest.raises(UnknownTopic):
                    await producer.send("ordres", b"typo")


async def test_deleted_topic_fails_its_records_soon() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait("orders", b"1")
            cluster.delete("orders")
            async with asyncio.timeout(5):
                with pytest.raises(UnknownTopic):
                    await producer.send_and_wait("orders", b"2")


async def test_recreated_topic_gets_every_record_in_order() -> None:
    """The brokers of the new topic do not know the producer, and accept any sequence number. A second batch must not overtake a
    refused first one, which would then be answered as a duplicate without ever having been written."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap, batch_size=100, retry_backoff_ms=5) as producer:
            await producer.send_and_wait("orders", b"old")
            cluster.delete("orders")
            cluster.create("orders")
            refused = 0

            def fate(broker_id: int, key: object) -> str:
                nonlocal refused
                refused += key in cluster.partitions
                return "NOT_ENOUGH_REPLICAS" if refused == 1 and key in cluster.partitions else "ok"

            cluster.produce_fate = fate
            receipts = [producer.send_nowait("orders", b"%d" % i * 50, partition=0) for i in range(5)]
            await producer.flush(5000)
        assert [(await receipt).offset for receipt in receipts] == list(range(5))
        assert cluster.values("orders") == [b"%d" % i * 50 for i in range(5)]


async def test_duplicate_without_offset_is_not_acknowledged() -> None:
    """The broker has appended a later batch and no longer remembers this one: it may never have been written."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait("orders", b"1")
            cluster.produce_fate = lambda broker_id, key: "DUPLICATE_SEQUENCE_NUMBER"
            with pytest.raises(DeliveryFailed, match="DUPLICATE_SEQUENCE_NUMBER"):
                await producer.send_and_wait("orders", b"2")


async def test_rejected_batch_names_code_and_partition() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        cluster.produce_fate = lambda broker_id, key: "INVALID_RECORD"
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            with pytest.raises(DeliveryFailed, match=r"orders-0, broker 1, 1 attempt.*INVALID_RECORD") as refused:
                await producer.send_and_wait("orders", b"1")
            assert not refused.value.retriable
            cluster.produce_fate = lambda broker_id, key: "ok"
            assert (await producer.send_and_wait("orders", b"2")).offset == 0


async def test_cancelled_waiter_does_not_cancel_others() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=30) as producer:
            receipt = await producer.send("orders", b"1")

            async def wait() -> int:
                return (await receipt).offset

            cancelled, other = asyncio.create_task(wait()), asyncio.create_task(wait())
            await asyncio.sleep(0)
            cancelled.cancel()
            assert await other == 0
            assert cancelled.cancelled()


async def test_wrong_types_are_usage_errors() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            with pytest.raises(UsageError, match="value_serializer"):
                producer.send_nowait("orders", "text")
            with pytest.raises(UsageError, match="headers"):
                producer.send_nowait("orders", b"v", headers=["h"])
            await producer.partitions_for("orders")
            with pytest.raises(UnknownTopic, match="the topic has 1 partition "):
                producer.send_nowait("orders", b"v", partition=3)


async def test_producer_that_was_not_started_raises() -> None:
    with pytest.raises(ClientClosed, match="async with"):
        Producer(bootstrap_servers="127.0.0.1:1").send_nowait("orders", b"v")


async def test_oversized_batches_are_split_in_order() -> None:
    """`batch_size` does not depend on a topic's max.message.bytes; good records must not fail because of those in the same
    batch."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        cluster.max_message_bytes = 300
        async with Producer(bootstrap_servers=cluster.bootstrap, batch_size=4000) as producer:
            await producer.send_and_wait("orders", b"0")
            receipts = [await producer.send("orders", b"%d" % i + bytes(50)) for i in range(1, 300)]
            places = [await receipt for receipt in receipts]
            assert [place.offset for place in places] == list(range(1, 300))
            too_large = producer.send_nowait("orders", bytes(1000))
            after = producer.send_nowait("orders", b"after")
            with pytest.raises(DeliveryFailed, match="MESSAGE_TOO_LARGE"):
                await too_large
            assert (await after).offset == 300
            assert producer.metrics()["buffered_bytes"] == 0
        assert [int(value.rstrip(b"\0")) for value in cluster.values("orders")[:300]] == list(range(300))


async def test_cancelled_identity_task_is_restarted() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            me = asyncio.current_task()
            for task in asyncio.all_tasks() - {me}:
                if "_ask" in repr(task):
                    task.cancel()
            async with asyncio.timeout(2):
                assert (await producer.send_and_wait("orders", b"1")).offset == 0


async def test_own_partitioner_places_records_of_every_call() -> None:
    """Keys go where another system has put them, whichever call hands the records over."""

    def by_first_byte(key: bytes | None, everything: list[int], available: list[int]) -> int:
        return len(everything) - 1 if key is None else key[0] % len(everything)

    async with ScriptedCluster() as cluster:
        cluster.create("orders", 3)
        async with Producer(bootstrap_servers=cluster.bootstrap, partitioner=by_first_byte) as producer:
            await producer.send_and_wait("orders", b"1", key=b"\x00")
            producer.send_nowait("orders", b"2", key=b"\x01")
            producer.send_nowait("orders", b"3")
            producer.send_many("orders", [b"4", b"5"])
            await producer.send_columns("orders", [b"6", b"7", b"8"], [b"\x01", None, b"\x03"])
            await producer.send_columns("orders", [b"9"])
            await producer.send("orders", b"10", key=b"\x00", partition=2)
        values = [cluster.partition("orders", index).log.values for index in range(3)]
    assert values == [[b"1", b"8"], [b"2", b"6"], [b"3", b"4", b"5", b"7", b"9", b"10"]]


async def test_delivery_callbacks_come_in_order() -> None:
    """Each record has one callback, with its position; also a record that waited for metadata, and one that is done already."""
    called: list[tuple[object, object]] = []

    def on_delivery(metadata: object, error: object) -> None:
        called.append((metadata, error))

    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            receipts = [producer.send_nowait("orders", b"%d" % n).on_delivery(on_delivery) for n in range(3)]
            await producer.flush()
            await until(lambda: len(called) == 3)
            assert called == [(receipt.result(), None) for receipt in receipts]
            receipts[0].on_delivery(on_delivery)
            assert len(called) == 3, "not before the caller has gone on"
            await until(lambda: len(called) == 4)
            cluster.produce_fate = lambda broker_id, key: "INVALID_RECORD"
            producer.send_nowait("orders", b"wrong").on_delivery(on_delivery)
            await until(lambda: len(called) == 5)
    metadata, error = called[4]
    assert metadata is None
    assert isinstance(error, DeliveryFailed)


async def test_failing_callback_harms_no_record() -> None:
    """An error in a callback is a bug of the program; the producer continues, and the event loop reports the error."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))

    def fail(metadata: object, error: object) -> None:
        raise KeyError("a bug of the program")

    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send_nowait("orders", b"1").on_delivery(fail)
            assert (await producer.send_and_wait("orders", b"2")).offset == 1
            await until(lambda: reported)
    assert [type(error) for error in reported] == [KeyError]
