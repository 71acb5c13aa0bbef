"""The consumer without asyncio: records, positions, commits, callbacks, and one thread at a time."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from strandline import ClientClosed, RebalanceCallbackFailed, TopicPartition, UsageError
from strandline.sync import Admin, Consumer, Producer
from strandline.testing import Cluster, ThreadedCluster

from .group_world import scripted_on_a_thread


@pytest.fixture(scope="module")
def shared() -> Iterator[ThreadedCluster]:
    with Cluster.running_in_thread(brokers=1) as cluster:
        yield cluster


@pytest.fixture
def topic(shared: ThreadedCluster) -> str:
    """One partition with the records 0 to 99, in ten batches."""
    topic = shared.create_topic(partitions=1)
    with Producer(bootstrap_servers=shared.bootstrap_servers) as producer:
        for first in range(0, 100, 10):
            producer.send_many(topic, [b"%d" % i for i in range(first, first + 10)]).result()
    return topic


def consumer_of(cluster: ThreadedCluster, *topics: str, **options: object) -> Consumer:
    return Consumer(*topics, **{"bootstrap_servers": cluster.bootstrap_servers, "auto_offset_reset": "earliest", **options})


def read_until(consumer: Consumer, condition: Callable[[], bool]) -> None:
    """Keep calling `getmany`, as a program does that reads all the time, until the condition holds."""
    for _ in range(1000):
        if condition():
            return
        consumer.getmany(timeout_ms=10)
    raise AssertionError("the condition has not come true")


def test_records_come_one_by_one(shared: ThreadedCluster, topic: str) -> None:
    with consumer_of(shared, topic) as consumer:
        offsets = []
        for record in consumer:
            offsets.append(record.offset)
            if record.value == b"99":
                break
    assert offsets == list(range(100))


def test_position_is_after_the_record_in_the_loop_body(shared: ThreadedCluster, topic: str) -> None:
    """The program's thread is ahead of the position in the loop's thread; before each call the loop catches up."""
    with consumer_of(shared, topic) as consumer:
        for record in consumer:
            assert consumer.position((topic, 0)) == record.offset + 1
            if record.offset == 25:
                break
        assert consumer.position((topic, 0)) == 26
        assert next(iter(consumer)).offset == 26


def test_seek_in_the_loop_body_counts(shared: ThreadedCluster, topic: str) -> None:
    with consumer_of(shared, topic) as consumer:
        seen = []
        for record in consumer:
            seen.append(record.offset)
            if seen == [0, 1, 2]:
                consumer.seek((topic, 0), 50)
            elif record.offset == 52:
                break
    assert seen == [0, 1, 2, 50, 51, 52]


def test_commit_in_the_loop_body_stores_what_was_read(shared: ThreadedCluster, topic: str) -> None:
    """It does not store the end of the batch, of which the program has received only a part."""
    tp = TopicPartition(topic, 0)
    with consumer_of(shared, topic, group_id=f"g-{topic}", enable_auto_commit=False) as consumer:
        for record in consumer:
            if record.offset == 13:
                consumer.commit()
                assert consumer.committed(tp) == 14
                break
    with consumer_of(shared, topic, group_id=f"g-{topic}") as consumer:
        assert consumer.getone(timeout_ms=10_000).offset == 14


def test_stop_commits_what_is_finished(shared: ThreadedCluster, topic: str) -> None:
    """The record in the loop body is finished at a normal end, and unfinished if an exception ends the block."""
    tp = TopicPartition(topic, 0)

    def read(until: int, *, fails: bool) -> None:
        with consumer_of(shared, topic, group_id=f"g-{topic}") as consumer:
            for record in consumer:
                if record.offset == until:
                    break
            if fails:
                raise ValueError

    def committed() -> int | None:
        with Admin(bootstrap_servers=shared.bootstrap_servers) as admin:
            return admin.list_group_offsets(f"g-{topic}")[tp].offset

    read(7, fails=False)
    assert committed() == 8
    with pytest.raises(ValueError):
        read(23, fails=True)
    assert committed() == 23


def test_automatic_commits_follow_the_loop_body(shared: ThreadedCluster, topic: str) -> None:
    """The program makes no call for a whole batch; the records that it has finished are committed all the same."""
    tp = TopicPartition(topic, 0)
    with (
        Admin(bootstrap_servers=shared.bootstrap_servers) as admin,
        consumer_of(shared, topic, group_id=f"g-{topic}", auto_commit_interval_ms=20) as consumer,
    ):
        for record in consumer:
            if record.offset == 5:
                offset = -1
                for _ in range(1000):
                    offset = admin.list_group_offsets(f"g-{topic}").get(tp, (-1,))[0]
                    if offset == 5:
                        break
                assert offset == 5
                break


def test_records_of_all_partitions_come(shared: ThreadedCluster) -> None:
    topic = shared.create_topic(partitions=3)
    with Producer(bootstrap_servers=shared.bootstrap_servers) as producer:
        for i in range(60):
            producer.send(topic, b"%d" % i, partition=i % 3)
    with consumer_of(shared, topic) as consumer:
        seen = [record.value for _, record in zip(range(60), consumer, strict=False)]
    assert sorted(map(int, seen)) == list(range(60))


def test_assign_needs_no_await(shared: ThreadedCluster, topic: str) -> None:
    with consumer_of(shared) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 98)
        assert [consumer.getone(timeout_ms=10_000).value for _ in range(2)] == [b"98", b"99"]
        assert sum(batch.count for batch in consumer.fetch_batches().get(TopicPartition(topic, 0), [])) == 0


def test_stop_ends_a_call_that_waits(shared: ThreadedCluster) -> None:
    """Another thread may stop a consumer, so that a program can end."""
    topic = shared.create_topic(partitions=1)
    consumer = consumer_of(shared, topic)
    consumer.start()
    ended: list[BaseException] = []

    def read() -> None:
        try:
            consumer.getone()
        except ClientClosed as e:
            ended.append(e)

    thread = threading.Thread(target=read)
    thread.start()
    while not consumer._in_use.locked():
        pass
    consumer.stop()
    thread.join(10)
    assert len(ended) == 1
    with pytest.raises(ClientClosed):
        consumer.getmany()


def test_second_thread_is_refused(shared: ThreadedCluster) -> None:
    topic = shared.create_topic(partitions=1)
    with consumer_of(shared, topic) as consumer:

        def read() -> None:
            with contextlib.suppress(ClientClosed):
                consumer.getone()

        thread = threading.Thread(target=read, name="reader")
        thread.start()
        while not consumer._in_use.locked():
            pass
        with pytest.raises(UsageError, match="in use by thread 'reader'"):
            consumer.getmany()
        assert consumer.health()["state"] == "ok"
        consumer.stop()
        thread.join(10)


def test_interrupt_ends_a_call_that_waits(shared: ThreadedCluster) -> None:
    """Ctrl-C interrupts `getone`; the consumer can be used and stopped after that."""
    topic = shared.create_topic(partitions=1)
    with consumer_of(shared, topic) as consumer:

        def interrupt() -> None:
            while not consumer._in_use.locked():
                pass
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            consumer.getone()
        thread.join(10)
        assert consumer.getmany() == {}


# -- callbacks --------------------------------------------------------------------------------------------------------


def test_callback_may_seek_and_commit() -> None:
    """A callback on the client's own loop would wait for itself; it runs on another thread while the program waits for
    records."""
    calls: list[tuple[str, list[TopicPartition]]] = []
    with scripted_on_a_thread(partitions=1) as (cluster, _):
        consumer = Consumer(
            bootstrap_servers=cluster.bootstrap, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
        )
        consumer.start()

        def assigned(partitions: list[TopicPartition]) -> None:
            calls.append(("assigned", partitions))
            consumer.seek(partitions[0], 12)

        def revoked(partitions: list[TopicPartition]) -> None:
            calls.append(("revoked", partitions))
            consumer.commit()

        consumer.subscribe("orders", on_assigned=assigned, on_revoked=revoked)
        assert consumer.getone(timeout_ms=10_000).offset == 12
        consumer.stop()
        tp = TopicPartition("orders", 0)
        assert calls == [("assigned", [tp]), ("revoked", [tp])]
        with Consumer(bootstrap_servers=cluster.bootstrap, group_id="g") as other:
            assert other.committed(tp) == 13


def test_listener_object_is_accepted() -> None:
    calls: list[str] = []

    class Listener:
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            calls.append("assigned")

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            calls.append("revoked")

    with scripted_on_a_thread() as (cluster, _):
        with Consumer(bootstrap_servers=cluster.bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe("orders", listener=Listener())
            consumer.getone(timeout_ms=10_000)
        assert calls == ["assigned", "revoked"]


def test_error_of_a_callback_is_raised() -> None:
    def assigned(partitions: list[TopicPartition]) -> None:
        raise ValueError("no room")

    with scripted_on_a_thread() as (cluster, _), Consumer(bootstrap_servers=cluster.bootstrap, group_id="g") as consumer:
        consumer.subscribe("orders", on_assigned=assigned)
        with pytest.raises(RebalanceCallbackFailed, match="no room"):
            consumer.getone(timeout_ms=10_000)


def test_coroutine_callback_is_refused() -> None:
    async def assigned(partitions: list[TopicPartition]) -> None: ...

    with pytest.raises(UsageError, match="plain function"):
        Consumer(group_id="g").subscribe("orders", on_assigned=assigned)


def test_state_changes_come_in_order() -> None:
    states: list[str] = []
    with scripted_on_a_thread() as (cluster, _):
        options = {
            "group_id": "g",
            "on_state_change": lambda change: states.append(change.state),
            "auto_offset_reset": "earliest",
        }
        with Consumer("orders", bootstrap_servers=cluster.bootstrap, **options) as consumer:
            consumer.getone(timeout_ms=10_000)
            read_until(consumer, lambda: "stable" in states)
    assert states.index("joining") < states.index("stable")


def test_members_hand_over_what_is_finished(shared: ThreadedCluster) -> None:
    """A partition moves while its owner is in the middle of a batch: the next owner begins behind the record that is being
    handled."""
    topic = shared.create_topic(partitions=2)
    with Producer(bootstrap_servers=shared.bootstrap_servers) as producer:
        for partition in (0, 1):
            producer.send_columns(topic, [b"%d" % i for i in range(500)], partition=partition).result()
    seen: list[tuple[int, int]] = []
    with (
        consumer_of(shared, topic, group_id=f"g-{topic}") as first,
        consumer_of(shared, group_id=f"g-{topic}") as second,
    ):
        for record in first:
            seen.append((record.partition, record.offset))
            if len(seen) == 100:
                second.subscribe(topic)
                while first.health()["group"]["state"] == "stable":
                    pass
            elif len(seen) > 100:
                break
        assert len(seen) < 1000
        for consumer in (first, second):
            while len(seen) < 1000 and (records := consumer.getmany(timeout_ms=300, max_records=100)):
                for batch in records.values():
                    seen.extend((record.partition, record.offset) for record in batch)
    assert len(set(seen)) == len(seen) == 1000
