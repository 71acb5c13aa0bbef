"""The producer without asyncio: order, back-pressure, errors, threads, and a bounded end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from strandline import (
    BufferFull,
    ClientClosed,
    OffsetConflict,
    RecordTooLarge,
    RequestTimeout,
    TopicPartition,
    UnknownTopic,
    UsageError,
)
from strandline.sync import Producer, Receipt
from strandline.testing import Cluster, ThreadedCluster

from .group_world import scripted_on_a_thread


@pytest.fixture(scope="module")
def shared() -> Iterator[ThreadedCluster]:
    with Cluster.running_in_thread(brokers=1) as cluster:
        yield cluster


@pytest.fixture
def topic(shared: ThreadedCluster) -> str:
    return shared.create_topic(partitions=2)


@pytest.fixture
def producer(shared: ThreadedCluster) -> Iterator[Producer]:
    with Producer(bootstrap_servers=shared.bootstrap_servers) as producer:
        yield producer


def values(cluster: ThreadedCluster, topic: str) -> list[bytes]:
    return [record.value for record in cluster.read_all(topic)]


def test_send_returns_a_receipt_that_waits(producer: Producer, topic: str) -> None:
    receipt = producer.send(topic, b"tea", partition=1)
    assert receipt.result()[:3] == (topic, 1, 0)
    assert receipt.done
    assert producer.send_and_wait(topic, b"coffee", partition=1).offset == 1


def test_receipts_of_many_records_name_their_offsets(producer: Producer, topic: str) -> None:
    """Plain values share a parcel, and each receipt finds its own offset in it."""
    receipts = [producer.send(topic, b"%d" % i) for i in range(500)]
    producer.flush()
    placed: dict[int, list[int]] = {}
    for receipt in receipts:
        where = receipt.result()
        placed.setdefault(where.partition, []).append(where.offset)
    assert [offsets == list(range(len(offsets))) for offsets in placed.values()] == [True] * len(placed)
    assert sum(map(len, placed.values())) == 500


def test_calls_of_one_thread_keep_their_order(producer: Producer, shared: ThreadedCluster, topic: str) -> None:
    """The order holds across all ways to the loop: a parcel of values, a parcel of records, or a call on the loop."""
    expected = []
    for i in range(60):
        value = b"%d" % i
        expected.append(value)
        match i % 5:
            case 0:
                producer.send(topic, value, partition=0)
            case 1:
                producer.send_nowait(topic, value, partition=0, headers=[("n", value)])
            case 2:
                producer.send_many(topic, [value], partition=0)
            case 3:
                producer.send_and_wait(topic, value, partition=0)
            case _:
                producer.send_columns(topic, [value], partition=0)
    producer.flush()
    assert values(shared, topic) == expected


def test_plain_and_rich_records_keep_their_order(producer: Producer, shared: ThreadedCluster) -> None:
    topic = shared.create_topic(partitions=1)
    for i in range(300):
        if i % 3:
            producer.send(topic, b"%d" % i)
        else:
            producer.send(topic, b"%d" % i, key=b"k")
    producer.flush()
    assert values(shared, topic) == [b"%d" % i for i in range(300)]


def test_threads_may_send_at_once(producer: Producer, shared: ThreadedCluster) -> None:
    """The records of each thread are in the order of its calls."""
    topic = shared.create_topic(partitions=1)

    def send(name: int) -> None:
        for i in range(400):
            producer.send(topic, b"%d %d" % (name, i), key=None if i % 2 else b"%d" % name)

    threads = [threading.Thread(target=send, args=[name]) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    producer.flush()
    written = [tuple(map(int, value.split())) for value in values(shared, topic)]
    assert [i for name, i in written if name == 2] == list(range(400))
    assert len(written) == 1600


def test_serializers_run_on_the_thread_that_sends(shared: ThreadedCluster, topic: str) -> None:
    threads = []

    def encode(value: str) -> bytes:
        threads.append(threading.current_thread())
        return value.encode()

    with Producer(bootstrap_servers=shared.bootstrap_servers, value_serializer=encode, key_serializer=encode) as producer:
        producer.send(topic, "tea", key="alice")
        producer.send_many(topic, ["coffee"], partition=0)
        producer.send_columns(topic, ["cocoa"], ["bob"])
        with pytest.raises(AttributeError):
            producer.send(topic, 5)
    assert set(threads) == {threading.current_thread()}
    assert sorted(values(shared, topic)) == [b"cocoa", b"coffee", b"tea"]


def test_errors_are_raised_by_the_call(producer: Producer, topic: str) -> None:
    """As with asyncio: the record was not accepted then."""
    with pytest.raises(UnknownTopic):
        producer.send("nowhere", b"1")
    with pytest.raises(UsageError, match="a value is bytes"):
        producer.send(topic, "text")
    with pytest.raises(UsageError, match="partition"):
        producer.send(topic, b"1", partition=-1)
    with pytest.raises(UnknownTopic, match="2 partitions"):
        producer.send(topic, b"1", partition=7)
    with pytest.raises(RecordTooLarge):
        producer.send(topic, bytes(2_000_000))
    with pytest.raises(RecordTooLarge):
        producer.send(topic, bytes(2_000_000), key=b"k")
    with pytest.raises(UsageError, match="a header"):
        producer.send(topic, b"1", headers=[("name", "text")])
    assert producer.stop() == producer.stop()


def test_conditional_append_is_judged_behind_earlier_records(producer: Producer, topic: str) -> None:
    producer.send(topic, b"0", partition=0)
    assert producer.send(topic, b"1", partition=0, expect_offset=1).result().offset == 1
    with pytest.raises(OffsetConflict) as conflict:
        producer.send(topic, b"2", partition=0, expect_offset=1).result()
    assert conflict.value.log_end_offset == 2


def test_partitioner_of_the_program_chooses(shared: ThreadedCluster, topic: str) -> None:
    options = {"bootstrap_servers": shared.bootstrap_servers, "partitioner": lambda key, every, available: every[-1]}
    with Producer(**options) as producer:
        assert producer.send(topic, b"1").result().partition == 1
        assert producer.send_and_wait(topic, b"2", key=b"k").partition == 1


def test_named_producer_knows_what_was_written(shared: ThreadedCluster, topic: str) -> None:
    with Producer(bootstrap_servers=shared.bootstrap_servers, producer_name="sink", producer_work_epoch=3) as first:
        assert first.is_first_attempt
        first.send(topic, b"0", partition=0)
        with pytest.raises(UsageError, match="partition"):
            first.send(topic, b"1")
    with Producer(bootstrap_servers=shared.bootstrap_servers, producer_name="sink", producer_work_epoch=3) as second:
        assert second.written([(topic, 0)]) == {TopicPartition(topic, 0): 1}


def test_delivery_callback_gets_the_metadata(producer: Producer, topic: str) -> None:
    called: list[object] = []
    done = threading.Event()
    producer.send(topic, b"1", partition=0).on_delivery(lambda where, error: (called.append((where, error)), done.set()))
    assert done.wait(10)
    assert [(where.offset, error) for where, error in called] == [(0, None)]


def test_callback_may_not_wait_for_its_own_thread(producer: Producer, topic: str) -> None:
    """Otherwise the producer would stop for good."""
    errors: list[object] = []
    done = threading.Event()

    def call(where: object, error: object) -> None:
        try:
            producer.send_and_wait(topic, b"2")
        except UsageError as e:
            errors.append(e)
        done.set()

    producer.send(topic, b"1").on_delivery(call)
    assert done.wait(10)
    assert "its own thread" in str(errors[0])


# -- when brokers do not answer ---------------------------------------------------------------------------------------


def test_full_buffer_makes_senders_wait() -> None:
    """Memory is bounded by `buffer_memory` and the mailbox, and the wait by `max_block_ms`."""
    with scripted_on_a_thread() as (cluster, _):
        cluster.produce_fate = lambda broker, key: "silence"
        options = {"buffer_memory": 40_000, "batch_size": 10_000, "max_block_ms": 200, "delivery_timeout_ms": 60_000}
        producer = Producer(bootstrap_servers=cluster.bootstrap, **options)
        producer.start()
        with pytest.raises(BufferFull):
            [producer.send("orders", bytes(1_000)) for _ in range(1_000)]
        with pytest.raises(BufferFull):
            [producer.send_nowait("orders", bytes(1_000), key=b"k") for _ in range(1_000)]
        with pytest.raises(RequestTimeout):
            producer.flush(timeout_ms=100)
        undelivered = producer.stop(timeout_ms=100)
        assert 10 <= undelivered.records + undelivered.failed <= 100


def test_stop_returns_although_no_broker_answers() -> None:
    with scripted_on_a_thread() as (cluster, _):
        cluster.produce_fate = lambda broker, key: "silence"
        producer = Producer(bootstrap_servers=cluster.bootstrap)
        producer.start()
        receipts: list[Receipt] = [producer.send("orders", b"1", partition=0) for _ in range(3)]
        undelivered = producer.stop(timeout_ms=50)
        assert undelivered.by_partition == {"orders-0": 3}
        for receipt in receipts:
            with pytest.raises(ClientClosed, match="may be in the log"):
                receipt.result()
        with pytest.raises(ClientClosed):
            producer.send("orders", b"1")
        assert producer.health() == {"state": "stopped"}


def test_error_in_the_block_gets_a_note() -> None:
    """The exit waits one second, as with asyncio, and the note says what is lost."""
    with scripted_on_a_thread() as (cluster, _):
        cluster.produce_fate = lambda broker, key: "silence"

        def fail() -> None:
            with Producer(bootstrap_servers=cluster.bootstrap) as producer:
                producer.send("orders", b"1", partition=0)
                raise ValueError

        with pytest.raises(ValueError) as raised:
            fail()
        assert "not acknowledged" in raised.value.__notes__[0]


def test_result_waits_at_most_for_its_timeout() -> None:
    with scripted_on_a_thread() as (cluster, _):
        cluster.produce_fate = lambda broker, key: "silence"
        producer = Producer(bootstrap_servers=cluster.bootstrap)
        producer.start()
        with pytest.raises(RequestTimeout):
            producer.send("orders", b"1").result(timeout_ms=20)
        producer.stop(timeout_ms=0)


def test_calls_need_a_started_producer() -> None:
    producer = Producer()
    with pytest.raises(ClientClosed, match="with Producer"):
        producer.send("orders", b"1")
    with pytest.raises(ClientClosed, match="start"):
        producer.flush()
    assert producer.health() == {"state": "not started"}
    assert not producer.stop()
