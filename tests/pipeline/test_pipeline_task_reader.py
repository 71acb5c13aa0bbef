"""What a task says when its topic goes away under it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from strandline.client import consumer
from strandline.client.records import TopicPartition
from strandline.pipeline.cluster_view import ClusterView
from strandline.pipeline.errors import DataLoss
from strandline.pipeline.options import Subscription
from strandline.pipeline.planning import Range
from strandline.pipeline.task_reader import TaskReader

if TYPE_CHECKING:
    from strandline.testing import ThreadedCluster


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "MISSING_TOPIC_GRACE_MS", 300)


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


def begun(log: ThreadedCluster, place: TopicPartition, fail_on_data_loss: bool) -> Iterator[int]:
    """The offsets that a task hands out; it has read 20 of 50, and the others are not there yet."""
    fill(log, place, 0, 20)
    reader = TaskReader({"bootstrap_servers": log.bootstrap_servers}, False, fail_on_data_loss, 20_000, 10)
    offsets = (offset.as_py() for batch in reader.read(Range(*place, 0, 50)) for offset in batch["offset"])
    assert [next(offsets) for _ in range(10)] == list(range(10))
    return offsets


def recreate(log: ThreadedCluster, place: TopicPartition, count: int) -> None:
    delete(log, place.topic)
    log.create_topic(place.topic, partitions=1)
    fill(log, place, 100, count)


def test_a_topic_that_is_made_anew_under_a_task_is_a_loss_that_says_what_to_do(log: ThreadedCluster) -> None:
    place = TopicPartition(log.create_topic(partitions=1), 0)
    offsets = begun(log, place, fail_on_data_loss=True)
    recreate(log, place, 30)
    told = rf"{place} was read up to offset 20, and its topic was deleted and recreated since; .* new checkpoint .*holds 0 to 30"
    with pytest.raises(DataLoss, match=told + ".* set the option failOnDataLoss to false"):
        list(offsets)


def test_where_losses_are_accepted_a_task_goes_on_at_its_offset_in_the_new_topic(log: ThreadedCluster) -> None:
    """As one that begins a moment later, and as Kafka's connector does."""
    place = TopicPartition(log.create_topic(partitions=1), 0)
    offsets = begun(log, place, fail_on_data_loss=False)
    recreate(log, place, 60)
    assert list(offsets) == list(range(10, 50))


def planned_and_recreated(log: ThreadedCluster, fail_on_data_loss: bool) -> Iterator[int]:
    """The offsets of a task whose range was planned before its topic was recreated, and the new log is longer."""
    place = TopicPartition(log.create_topic(partitions=1), 0)
    fill(log, place, 0, 20)
    view = ClusterView({"bootstrap_servers": log.bootstrap_servers}, Subscription((place.topic,)))
    view.partitions()
    wanted = Range(*place, 10, 20, topic_id=view.topic_ids[place.topic])
    recreate(log, place, 60)
    reader = TaskReader({"bootstrap_servers": log.bootstrap_servers}, False, fail_on_data_loss, 20_000, 10)
    return (offset.as_py() for batch in reader.read(wanted) for offset in batch["offset"])


def test_a_task_does_not_read_a_topic_that_was_recreated_after_it_was_planned(log: ThreadedCluster) -> None:
    """The new log has the offsets of the range, with other records at them."""
    with pytest.raises(DataLoss, match="was deleted and recreated since"):
        next(planned_and_recreated(log, fail_on_data_loss=True))


def test_a_task_continues_in_the_recreated_topic_if_losses_are_accepted(log: ThreadedCluster) -> None:
    assert list(planned_and_recreated(log, fail_on_data_loss=False)) == list(range(10, 20))


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_topic_that_is_deleted_under_a_task_is_a_loss(log: ThreadedCluster, fail_on_data_loss: bool) -> None:
    place = TopicPartition(log.create_topic(partitions=1), 0)
    offsets = begun(log, place, fail_on_data_loss)
    delete(log, place.topic)
    if fail_on_data_loss:
        with pytest.raises(DataLoss, match=rf"{place} was read up to offset 20 when its topic was deleted; .*failOnDataLoss"):
            list(offsets)
    else:
        assert list(offsets) == list(range(10, 20))
