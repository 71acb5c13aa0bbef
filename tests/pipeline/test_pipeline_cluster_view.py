"""`cluster_view.py`: the driver keeps its clients, and a look-up finds out by itself that its metadata is old."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandline.client import Consumer, UnknownTopic
from strandline.client.cluster import metadata_updater
from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.cluster_view import ClusterView
from strandline.pipeline.options import Subscription
from strandline.pipeline.session import session

if TYPE_CHECKING:
    from strandline.testing import ThreadedCluster


def fill(log: ThreadedCluster, topic: str, count: int, partition: int = 0) -> None:
    async def send() -> None:
        async with log.cluster.producer() as producer:
            await producer.send_many(topic, [b"v"] * count, partition=partition)

    log.run(send())


def delete(log: ThreadedCluster, topic: str) -> None:
    async def ask() -> None:
        async with log.cluster.admin() as admin:
            await admin.delete_topics([topic])

    log.run(ask())


def view_of(log: ThreadedCluster, topic: str) -> ClusterView:
    return ClusterView({"bootstrap_servers": log.bootstrap_servers}, Subscription((topic,)))


def ends(log: ThreadedCluster, topic: str) -> dict[int, int]:
    """The end offsets by partition, looked up as for the next batch of a stream."""
    view = view_of(log, topic)
    return {place.partition: at.offset for place, at in view.latest(view.partitions()).items()}


def refreshes() -> int:
    kept = [client for client in session()._clients.values() if isinstance(client, Consumer)]
    return int(kept[-1].metrics()["metadata_refreshes"])


def test_batches_of_a_stream_do_not_refresh_metadata(log: ThreadedCluster) -> None:
    """A refresh costs each small batch a request to the cluster."""
    topic = log.create_topic(partitions=1)
    assert ends(log, topic) == {0: 0}
    asked = refreshes()
    for count in range(1, 6):
        fill(log, topic, 1)
        assert ends(log, topic) == {0: count}
    assert refreshes() == asked


def test_look_up_finds_the_new_leader(log: ThreadedCluster) -> None:
    topic = log.create_topic(partitions=1)
    fill(log, topic, 3)
    assert ends(log, topic) == {0: 3}
    leader = log.leader_of(topic)
    log.kill(leader)
    fill(log, topic, 2)
    assert ends(log, topic) == {0: 5}
    log.start(leader)


def test_look_up_finds_the_recreated_topic(log: ThreadedCluster) -> None:
    topic = log.create_topic(partitions=1)
    fill(log, topic, 3)
    old = view_of(log, topic)
    assert old.latest(old.partitions())[TopicPartition(topic, 0)].offset == 3
    delete(log, topic)
    log.create_topic(topic, partitions=1)
    fill(log, topic, 8)
    new = view_of(log, topic)
    at = new.latest(new.partitions())[TopicPartition(topic, 0)]
    assert (at.offset, at.topic_id) == (8, new.topic_ids[topic])
    assert at.topic_id != old.topic_ids[topic]


def test_end_offset_has_the_id_of_its_own_topic(log: ThreadedCluster) -> None:
    """The topic is recreated between two requests. With the old id, the end of the new log would look like progress in the old
    one."""
    topic = log.create_topic(partitions=1)
    fill(log, topic, 3)
    view = view_of(log, topic)
    places = view.partitions()
    view.latest(places)
    before = view.topic_ids[topic]
    delete(log, topic)
    log.create_topic(topic, partitions=1)
    fill(log, topic, 8)
    at = view.latest(places)[places[0]]
    assert at.offset == 8
    assert at.topic_id not in (before, b"")


def test_look_up_finds_added_partitions(log: ThreadedCluster) -> None:
    topic = log.create_topic(partitions=1)
    assert ends(log, topic) == {0: 0}

    async def grow() -> None:
        async with log.cluster.admin() as admin:
            await admin.create_partitions(topic, 3)

    log.run(grow())
    fill(log, topic, 2, partition=2)
    assert ends(log, topic) == {0: 0, 1: 0, 2: 2}


def test_look_up_of_a_deleted_topic_fails_soon(log: ThreadedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kept consumer still has the topic in its metadata. It must not ask the old leader again until `max_block_ms` is
    over."""
    monkeypatch.setattr(metadata_updater, "MISSING_TOPIC_GRACE_MS", 300)
    topic = log.create_topic(partitions=1)
    view = view_of(log, topic)
    places = view.partitions()
    view.latest(places)
    delete(log, topic)
    here = session()
    started = here.loop.time()
    with pytest.raises(UnknownTopic, match="the topic does not exist"):
        view.latest(places)
    assert here.loop.time() - started < 20


def test_look_up_works_after_a_pause_of_the_driver(log: ThreadedCluster) -> None:
    """The event loop does not run between two batches. The brokers close the idle connections of both clients, admin and
    consumer."""
    topic = log.create_topic(partitions=3)
    fill(log, topic, 3)
    assert ends(log, topic) == {0: 3, 1: 0, 2: 0}
    for broker in log.brokers:
        log.restart(broker)
    fill(log, topic, 2, partition=1)
    assert ends(log, topic) == {0: 3, 1: 2, 2: 0}
