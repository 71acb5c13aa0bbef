"""`task_reader.py`: ranges are read in order and without metadata requests, and a topic that changes during the task is a
loss."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from strandline.client import Consumer
from strandline.client.cluster import metadata_updater
from strandline.client.consumer import fetcher, topic_tracker
from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.cluster_view import ClusterView
from strandline.pipeline.errors import DataLoss
from strandline.pipeline.options import Subscription
from strandline.pipeline.planning import Range
from strandline.pipeline.session import session
from strandline.pipeline.task_reader import TaskReader, groups

if TYPE_CHECKING:
    from strandline.testing import ThreadedCluster


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (topic_tracker, metadata_updater):
        monkeypatch.setattr(module, "MISSING_TOPIC_GRACE_MS", 300)


def fill(log: ThreadedCluster, place: TopicPartition, first: int, count: int) -> None:
    async def send() -> None:
        async with log.cluster.producer() as producer:
            await producer.send_many(place.topic, [b"%d" % n for n in range(first, first + count)], partition=place.partition)

    log.run(send())


def delete(log: ThreadedCluster, topic: str) -> None:
    async def ask() -> None:
        async with log.cluster.admin() as admin:
            await admin.delete_topics([topic])

    log.run(ask())


def task(log: ThreadedCluster, fail_on_data_loss: bool = True) -> TaskReader:
    return TaskReader({"bootstrap_servers": log.bootstrap_servers}, False, fail_on_data_loss, 20_000, 10)


def topic_id_of(log: ThreadedCluster, topic: str) -> bytes:
    view = ClusterView({"bootstrap_servers": log.bootstrap_servers}, Subscription((topic,)))
    view.partitions()
    return view.topic_ids[topic]


def filled(log: ThreadedCluster, partitions: int, count: int) -> list[Range]:
    """A range of all records of a new topic."""
    topic = log.create_topic(partitions=partitions)
    topic_id = topic_id_of(log, topic)
    for partition in range(partitions):
        fill(log, TopicPartition(topic, partition), 0, count)
    return [Range(topic, partition, 0, count, topic_id=topic_id) for partition in range(partitions)]


def rows(reader: TaskReader, *wanted: Range) -> list[tuple[str, int, int]]:
    batches = list(reader.read(*wanted))
    return [(r["topic"], r["partition"], r["offset"]) for batch in batches for r in batch.to_pylist()]


def in_order(*wanted: Range) -> list[tuple[str, int, int]]:
    return [(r.topic, r.partition, offset) for r in wanted for offset in range(r.start, r.end)]


def counter(name: str) -> int:
    """A counter of the consumer that the last task of this process used."""
    kept = [client for client in session()._clients.values() if isinstance(client, Consumer)]
    return int(kept[-1].metrics()[name])


def forget_clients() -> None:
    here = session()
    while here._clients:
        here._close(here._clients.popitem()[1])


# -- pace -------------------------------------------------------------------------------------------------------------


def test_tasks_of_one_process_request_metadata_once(log: ThreadedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """If each task refreshed the metadata, brokers would soon delay its request: 250 ms for each task after 120 tasks. (On a
    slow machine a late fetch makes the consumer refresh in the background.)"""
    monkeypatch.setattr(fetcher, "STALL_S", 60)
    (whole,) = filled(log, 1, 40)
    first, *others = [Range(whole.topic, 0, n, n + 2, topic_id=whole.topic_id) for n in range(0, 40, 2)]
    assert rows(task(log), first) == in_order(first)
    asked = counter("metadata_refreshes")
    for wanted in others:
        assert rows(task(log), wanted) == in_order(wanted)
    assert counter("metadata_refreshes") == asked


def test_task_fetches_nothing_after_the_end_of_its_range(log: ThreadedCluster) -> None:
    """Otherwise a fetch would wait at the broker for more records, and the next task would first have to read its response."""
    (whole,) = filled(log, 1, 10)
    rows(task(log), whole)
    before = counter("fetches")
    fill(log, whole.tp, 10, 10)
    wanted = Range(whole.topic, 0, 10, 20, topic_id=whole.topic_id)
    assert rows(task(log), wanted) == in_order(wanted)
    session().run(asyncio.sleep(0.01))
    assert counter("fetches") == before + 1


def test_range_without_a_topic_id_is_read_with_new_metadata(log: ThreadedCluster) -> None:
    """Such a range comes from a checkpoint of an earlier release. The topic may have been recreated since the last task of the
    process."""
    (whole,) = filled(log, 1, 10)
    rows(task(log), whole)
    recreate(log, whole.tp, 20)
    wanted = Range(whole.topic, 0, 5, 15)
    assert rows(task(log), wanted) == in_order(wanted)


def test_task_recovers_after_a_pause_of_its_process(log: ThreadedCluster) -> None:
    """The event loop does not run between two tasks. Meanwhile the brokers closed all connections, and the leader changed."""
    whole = filled(log, 1, 20)[0]
    reader = TaskReader({"bootstrap_servers": log.bootstrap_servers}, False, True, 8_000, 10)
    before, after = Range(whole.topic, 0, 0, 10, topic_id=whole.topic_id), Range(whole.topic, 0, 10, 20, topic_id=whole.topic_id)
    assert rows(reader, before) == in_order(before)
    for broker in log.brokers:
        log.restart(broker)
    leader = log.leader_of(whole.topic)
    log.stop(leader)
    assert rows(reader, after) == in_order(after)
    log.start(leader)


# -- several ranges ---------------------------------------------------------------------------------------------------


def test_ranges_are_returned_in_order(log: ThreadedCluster) -> None:
    """A task that runs again must return the same rows in the same order, whichever fetch is answered first."""
    first, second, third = filled(log, 3, 25)
    for wanted in ([first, second, third], [third, first, second]):
        for _ in range(2):
            assert rows(task(log), *wanted) == in_order(*wanted)


def test_ranges_of_a_task_are_fetched_at_the_same_time(log: ThreadedCluster) -> None:
    wanted = filled(log, 24, 5)
    rows(task(log), *wanted)
    before = counter("fetches")
    assert rows(task(log), *[Range(r.topic, r.partition, 1, 4, topic_id=r.topic_id) for r in wanted]) == [
        (r.topic, r.partition, offset) for r in wanted for offset in range(1, 4)
    ]
    assert counter("fetches") - before < len(wanted)


def test_small_ranges_share_an_arrow_batch(log: ThreadedCluster) -> None:
    """Each Arrow batch costs Spark time. (A task of this test has batches of 10 rows.)"""
    wanted = filled(log, 6, 4)
    batches = list(task(log).read(*wanted))
    assert [batch.num_rows for batch in batches] == [8, 8, 8]
    assert rows(task(log), *wanted) == in_order(*wanted)


def test_two_ranges_of_one_partition_are_read_in_turn(log: ThreadedCluster) -> None:
    whole, other = filled(log, 2, 20)
    pieces = [Range(whole.topic, 0, start, start + 5, topic_id=whole.topic_id) for start in (10, 0)]
    assert rows(task(log), pieces[0], other, pieces[1]) == in_order(pieces[0], other, pieces[1])


def test_ranges_are_grouped_by_buffer_size() -> None:
    a, b, c = (Range("orders", partition, 0, 10) for partition in range(3))
    assert list(groups([a, b, c], 2)) == [[a, b], [c]]
    assert list(groups([a, b, a, c], 9)) == [[a, b], [a, c]]
    assert list(groups([], 9)) == []


def test_loss_in_a_later_range_names_its_partition(log: ThreadedCluster) -> None:
    sound, short = filled(log, 2, 20)
    beyond = Range(short.topic, 1, 30, 40, topic_id=short.topic_id)
    with pytest.raises(DataLoss, match=rf"offset 30 of {short.topic}-1 is next to read, and the log ends at 20"):
        rows(task(log), sound, beyond)


def test_accepted_loss_of_one_range_leaves_the_others_whole(log: ThreadedCluster) -> None:
    first, second, third = filled(log, 3, 20)
    beyond = Range(second.topic, 1, 30, 40, topic_id=second.topic_id)
    assert rows(task(log, fail_on_data_loss=False), first, beyond, third) == in_order(first, third)


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept consumer", "new consumer"])
def test_deleted_topic_is_a_loss_of_its_range_only(log: ThreadedCluster, is_kept: bool) -> None:
    """A new consumer does not find the topic. A kept one believes that it exists until the leader rejects the fetch."""
    (gone,), (sound,) = filled(log, 1, 20), filled(log, 1, 20)
    lenient, strict = task(log, fail_on_data_loss=False), task(log)
    if is_kept:
        rows(lenient, gone, sound)
    else:
        forget_clients()
    delete(log, gone.topic)
    assert rows(lenient, sound, gone) == in_order(sound)
    assert rows(lenient, gone, sound) == in_order(sound)
    assert rows(lenient, gone) == []
    with pytest.raises(DataLoss, match=f"{gone.tp} was read up to offset 0 when its topic was deleted"):
        rows(strict, gone, sound)


# -- losses -----------------------------------------------------------------------------------------------------------


def begun(log: ThreadedCluster, place: TopicPartition, fail_on_data_loss: bool) -> Iterator[int]:
    """The offsets that a task returns. It has read 20 of 50; the other records do not exist yet."""
    fill(log, place, 0, 20)
    reader = TaskReader({"bootstrap_servers": log.bootstrap_servers}, False, fail_on_data_loss, 20_000, 10)
    offsets = (offset.as_py() for batch in reader.read(Range(*place, 0, 50)) for offset in batch["offset"])
    assert [next(offsets) for _ in range(10)] == list(range(10))
    return offsets


def recreate(log: ThreadedCluster, place: TopicPartition, count: int) -> None:
    delete(log, place.topic)
    log.create_topic(place.topic, partitions=1)
    fill(log, place, 100, count)


def test_topic_recreated_during_a_task_is_a_loss_with_advice(log: ThreadedCluster) -> None:
    place = TopicPartition(log.create_topic(partitions=1), 0)
    offsets = begun(log, place, fail_on_data_loss=True)
    recreate(log, place, 30)
    text = rf"{place} was read up to offset 20, and its topic was deleted and recreated since; .* new checkpoint .*"
    with pytest.raises(DataLoss, match=text + "has the offsets 0 to 30.* set the option failOnDataLoss to false"):
        list(offsets)


def test_task_that_accepts_losses_continues_in_the_new_topic(log: ThreadedCluster) -> None:
    """It continues at its offset, like a task that begins a moment later, and like Kafka's connector."""
    place = TopicPartition(log.create_topic(partitions=1), 0)
    offsets = begun(log, place, fail_on_data_loss=False)
    recreate(log, place, 60)
    assert list(offsets) == list(range(10, 50))


def planned_and_recreated(log: ThreadedCluster, fail_on_data_loss: bool) -> Iterator[int]:
    """The offsets of a task whose range was planned before its topic was recreated. The new log is longer than the old one."""
    place = TopicPartition(log.create_topic(partitions=1), 0)
    fill(log, place, 0, 20)
    view = ClusterView({"bootstrap_servers": log.bootstrap_servers}, Subscription((place.topic,)))
    view.partitions()
    wanted = Range(*place, 10, 20, topic_id=view.topic_ids[place.topic])
    recreate(log, place, 60)
    reader = TaskReader({"bootstrap_servers": log.bootstrap_servers}, False, fail_on_data_loss, 20_000, 10)
    return (offset.as_py() for batch in reader.read(wanted) for offset in batch["offset"])


def test_topic_recreated_after_planning_is_a_loss(log: ThreadedCluster) -> None:
    """The new log has other records at the offsets of the range."""
    with pytest.raises(DataLoss, match="was deleted and recreated since"):
        next(planned_and_recreated(log, fail_on_data_loss=True))


def test_planned_task_that_accepts_losses_reads_the_new_topic(log: ThreadedCluster) -> None:
    assert list(planned_and_recreated(log, fail_on_data_loss=False)) == list(range(10, 20))


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_topic_deleted_during_a_task_is_a_loss(log: ThreadedCluster, fail_on_data_loss: bool) -> None:
    place = TopicPartition(log.create_topic(partitions=1), 0)
    offsets = begun(log, place, fail_on_data_loss)
    delete(log, place.topic)
    if fail_on_data_loss:
        with pytest.raises(DataLoss, match=rf"{place} was read up to offset 20 when its topic was deleted; .*failOnDataLoss"):
            list(offsets)
    else:
        assert list(offsets) == list(range(10, 20))


def test_range_begins_inside_a_batch_whose_first_records_are_deleted(log: ThreadedCluster) -> None:
    (whole,) = filled(log, 1, 10)

    async def trim() -> None:
        async with log.cluster.admin() as admin:
            await admin.delete_records({(whole.topic, 0): 6})

    log.run(trim())
    left = Range(whole.topic, 0, 6, 10, topic_id=whole.topic_id)
    assert rows(task(log), left) == [(whole.topic, 0, offset) for offset in range(6, 10)]
    with pytest.raises(DataLoss):
        rows(task(log), whole)
    assert rows(task(log, fail_on_data_loss=False), whole) == [(whole.topic, 0, offset) for offset in range(6, 10)]
