"""A topic that is deleted, or deleted and recreated, under a consumer; and brokers that do not know it yet."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs
from waiting import until

from strandline.client import Consumer, TopicPartition
from strandline.client.cluster import metadata_updater
from strandline.client.consumer import topic_tracker
from strandline.client.consumer.partition_state import EARLIEST
from strandline.client.consumer.subscription import Subscription
from strandline.client.errors import OffsetOutOfRange, StrandlineError, TopicRecreated, UnknownTopic

from .scripted import ScriptedCluster
from .test_consumer import ORDERS, earliest, fill, read

GRACE_MS = 250


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (metadata_updater, topic_tracker):
        monkeypatch.setattr(module, "MISSING_TOPIC_GRACE_MS", GRACE_MS)


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, end)]


def strict(there: ScriptedCluster, **options: object) -> Consumer:
    """A consumer without a reset policy: errors about its position are its caller's to handle."""
    return Consumer(bootstrap_servers=there.bootstrap, auto_offset_reset="error", **options)


async def read_all_of(there: ScriptedCluster, reader: Consumer, count: int) -> None:
    """Create a topic with `count` records, assign it, and read it to its end."""
    there.create("orders")
    fill(there, "orders", count)
    await reader.assign([ORDERS])
    reader.seek(ORDERS, 0)
    assert await read(reader, count) == numbers(0, count)


async def until_failed(reader: Consumer) -> None:
    """Wait until a partition has failed, without asking for records, which would raise the error."""
    async with asyncio.timeout(5):
        while not reader.health()["failed_partitions"]:
            await reader.refresh_metadata()


async def next_error(reader: Consumer) -> StrandlineError:
    with pytest.raises(StrandlineError) as raised:
        await reader.getone(timeout_ms=5000)
    return raised.value


# -- recreated --------------------------------------------------------------------------------------------------------


async def test_recreated_topic_is_raised_until_a_seek() -> None:
    """The position lies inside the new log: continuing there would skip the records before it."""
    async with ScriptedCluster() as there, strict(there) as reader:
        await read_all_of(there, reader, 30)
        there.recreate("orders")
        fill(there, "orders", 50)
        with pytest.raises(
            TopicRecreated, match=r"deleted and recreated; the position 30 .* seek to continue \(orders-0\)"
        ) as raised:
            await reader.getone(timeout_ms=5000)
        assert (raised.value.position, raised.value.topic_id) == (30, there.topics["orders"])
        assert not raised.value.retriable
        with pytest.raises(TopicRecreated):
            await reader.getmany(timeout_ms=50)
        assert "orders-0" in reader.health()["failed_partitions"]
        reader.seek(ORDERS, 0)
        assert await read(reader, 50) == numbers(0, 50)
        assert reader.health()["state"] == "ok"


@pytest.mark.parametrize(("policy", "expected"), [("earliest", (0, 55)), ("latest", (50, 55))])
async def test_reset_policy_applies_to_a_recreated_topic(policy: str, expected: tuple[int, int]) -> None:
    """TopicRecreated used to be raised at every poll until a seek, although the consumer has a policy for a missing position."""
    with capture_logs() as logs:
        async with ScriptedCluster() as there, Consumer(bootstrap_servers=there.bootstrap, auto_offset_reset=policy) as reader:
            await read_all_of(there, reader, 30)
            there.recreate("orders")
            fill(there, "orders", 50)
            async with asyncio.timeout(5):
                while not any(entry["event"] == "consumer.topic_recreated" for entry in logs):
                    await reader.refresh_metadata()
            if policy == "latest":
                assert await reader.position(ORDERS) == 50
            fill(there, "orders", 5, first=50)
            first, end = expected
            assert await read(reader, end - first) == numbers(first, end)
            assert await reader.getmany(timeout_ms=2 * GRACE_MS) == {}
            assert reader.health()["state"] == "ok"
    assert [entry["event"] for entry in logs].count("consumer.topic_recreated") == 1


async def test_fetched_old_records_come_before_new_ones() -> None:
    async with ScriptedCluster() as there, earliest(there) as reader:
        there.create("orders")
        fill(there, "orders", 30)
        await reader.assign([ORDERS])
        assert (await reader.getone(timeout_ms=5000)).value == b"0"
        there.recreate("orders")
        fill(there, "orders", 50)
        await until_failed(reader)
        assert await read(reader, 29) == numbers(1, 30)
        assert await read(reader, 50) == numbers(0, 50)


async def test_fetched_old_records_are_returned_before_the_error() -> None:
    async with ScriptedCluster() as there, strict(there) as reader:
        there.create("orders")
        fill(there, "orders", 30)
        await reader.assign([ORDERS])
        reader.seek(ORDERS, 0)
        assert (await reader.getone(timeout_ms=5000)).value == b"0"
        there.recreate("orders")
        fill(there, "orders", 50)
        await until_failed(reader)
        with pytest.raises(TopicRecreated):
            await reader.getmany()
        assert await read(reader, 29) == numbers(1, 30)
        with pytest.raises(TopicRecreated):
            await reader.getmany(timeout_ms=5000)


async def test_seek_before_the_error_means_the_old_log() -> None:
    """A program that failed to handle record 20 seeks it again: that is an offset of the log that it has read."""
    async with ScriptedCluster() as there, strict(there) as reader:
        await read_all_of(there, reader, 30)
        there.recreate("orders")
        fill(there, "orders", 50)
        await until_failed(reader)
        reader.seek(ORDERS, 20)
        with pytest.raises(TopicRecreated, match="position 20"):
            await reader.getone(timeout_ms=5000)


async def test_seek_to_beginning_or_end_means_the_new_topic() -> None:
    """Both look up their offset in the new log, whether or not the error was raised."""
    async with ScriptedCluster() as there, strict(there) as reader:
        await read_all_of(there, reader, 30)
        there.recreate("orders")
        fill(there, "orders", 5)
        await reader.refresh_metadata()
        await reader.seek_to_beginning(ORDERS)
        assert await read(reader, 5) == numbers(0, 5)
        there.recreate("orders")
        fill(there, "orders", 9)
        with pytest.raises(TopicRecreated):
            await reader.getone(timeout_ms=5000)
        await reader.seek_to_end(ORDERS)
        assert await reader.position(ORDERS) == 9
        fill(there, "orders", 1, first=9)
        assert await read(reader, 1) == [b"9"]


@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_without_position_the_new_topic_is_read_from_its_beginning(policy: str) -> None:
    """All of its records are newer than the assignment."""
    async with ScriptedCluster() as there:
        there.create("orders")
        async with Consumer(bootstrap_servers=there.bootstrap, auto_offset_reset=policy) as reader:
            there.brokers[1].hanging = True
            await reader.assign([ORDERS])
            there.recreate("orders")
            fill(there, "orders", 5)
            there.brokers[1].answer_late()
            assert await read(reader, 5) == numbers(0, 5)


async def test_without_reset_policy_the_new_topic_needs_a_seek() -> None:
    async with ScriptedCluster() as there:
        there.create("orders")
        async with Consumer(bootstrap_servers=there.bootstrap, auto_offset_reset="error") as reader:
            await reader.assign([ORDERS])
            there.recreate("orders")
            fill(there, "orders", 5)
            await reader.refresh_metadata()
            for _ in range(2):
                with pytest.raises(OffsetOutOfRange, match="no position"):
                    await reader.getone(timeout_ms=1000)
                await reader.refresh_metadata()
            reader.seek(ORDERS, 2)
            assert await read(reader, 3) == numbers(2, 5)


async def test_partition_missing_in_the_new_topic_is_raised() -> None:
    third = TopicPartition("orders", 2)
    async with ScriptedCluster() as there, strict(there) as reader:
        there.create("orders", 3)
        fill(there, "orders", 10, 2)
        await reader.assign([third])
        reader.seek(third, 0)
        await read(reader, 10)
        there.recreate("orders")
        with pytest.raises(TopicRecreated):
            await reader.getone(timeout_ms=5000)
        reader.seek(third, 0)
        with pytest.raises(UnknownTopic, match=r"the topic has 1 partition \(orders-2"):
            await reader.getone(timeout_ms=5000)


async def test_pause_outlasts_recreation_and_hides_its_error() -> None:
    async with ScriptedCluster() as there, earliest(there) as reader:
        await read_all_of(there, reader, 10)
        there.recreate("orders")
        fill(there, "orders", 3)
        reader.pause(ORDERS)
        assert await reader.getmany(timeout_ms=2 * GRACE_MS) == {}
        await reader.refresh_metadata()
        await reader.seek_to_beginning()
        assert reader.paused() == {ORDERS}
        assert await reader.getmany(timeout_ms=50) == {}
        reader.resume(ORDERS)
        assert await read(reader, 3) == numbers(0, 3)


async def test_stale_broker_does_not_disturb_readers_of_the_new_topic() -> None:
    """Metadata requests go to one broker after the other; a broker that is behind must not count."""
    async with ScriptedCluster() as there:
        there.create("orders", 3)
        there.brokers[3].fall_behind()
        there.recreate("orders", 3)
        fill(there, "orders", 10)
        async with earliest(there) as reader:
            behind = there.brokers[3]
            behind.picture, picture = None, behind.picture
            await reader.assign([("orders", index) for index in range(3)])  # Connected with all three, it asks them in turn.
            assert await read(reader, 10) == numbers(0, 10)
            behind.picture, behind.metadata_requests = picture, 0
            loop = asyncio.get_running_loop()
            until = loop.time() + 2 * GRACE_MS / 1000
            async with asyncio.timeout(5):
                while loop.time() < until or behind.metadata_requests < 3:
                    await reader.refresh_metadata()
                    assert await reader.getmany() == {}
            fill(there, "orders", 5, first=10)
            assert await read(reader, 5) == numbers(10, 15)


# -- deleted ----------------------------------------------------------------------------------------------------------


async def test_stale_broker_does_not_make_a_subscriber_read_twice() -> None:
    """The broker's metadata has the deleted topic. The subscriber used to take that for another recreation: it read the deleted
    topic, and then the new one from its beginning once more."""
    async with ScriptedCluster() as there:
        there.create("orders", 3)
        fill(there, "orders", 5)
        async with earliest(there, "orders", metadata_max_age_ms=20) as reader:
            assert await read(reader, 5) == numbers(0, 5)
            old = dict(there.topics), dict(there.partitions)
            there.recreate("orders", 3)
            fill(there, "orders", 30)
            assert await read(reader, 30) == numbers(0, 30)
            there.brokers[2].picture = old
            asked = there.brokers[2].metadata_requests
            await until(lambda: there.brokers[2].metadata_requests >= asked + 5)
            there.brokers[2].picture = None
            assert await reader.getmany(timeout_ms=300) == {}


async def test_deletion_is_raised_after_assign_and_subscribe() -> None:
    async with ScriptedCluster() as there, strict(there) as reader, earliest(there, "orders") as subscribed:
        there.create("orders")
        fill(there, "orders", 10)
        await reader.assign([ORDERS])
        reader.seek(ORDERS, 0)
        for each in (reader, subscribed):
            assert await read(each, 10) == numbers(0, 10)
        there.delete("orders")
        with pytest.raises(UnknownTopic, match=r"the topic does not exist \(orders,"):
            await subscribed.getone(timeout_ms=5000)
        with pytest.raises(UnknownTopic, match=r"the topic does not exist \(orders-0,") as raised:
            await reader.getone(timeout_ms=5000)
        assert raised.value.retriable
        there.create("orders")
        fill(there, "orders", 20)
        async with asyncio.timeout(5):
            while isinstance(other := await next_error(reader), UnknownTopic):
                await reader.refresh_metadata()
        assert "position 10" in str(other)
        assert await read(subscribed, 20) == numbers(0, 20)


async def test_waiting_for_a_deleted_topic_ends_with_its_successor() -> None:
    async with ScriptedCluster() as there, strict(there, on_missing_topic="wait") as reader:
        await read_all_of(there, reader, 10)
        there.delete("orders")
        assert await reader.getmany(timeout_ms=2 * GRACE_MS) == {}
        there.create("orders")
        with pytest.raises(TopicRecreated):
            await reader.getone(timeout_ms=5000)


async def test_topic_that_is_known_again_needs_no_seek() -> None:
    """No broker knew it for a while, but it existed all the time: the log is the one that was read."""
    async with ScriptedCluster() as there, earliest(there) as reader:
        await read_all_of(there, reader, 10)
        for broker in there.brokers.values():
            broker.picture = {}, {}
        await reader.refresh_metadata()
        assert isinstance(await next_error(reader), UnknownTopic)
        for broker in there.brokers.values():
            broker.picture = None
        await reader.refresh_metadata()
        assert reader.health()["failed_partitions"] == {}
        fill(there, "orders", 5, first=10)
        assert await read(reader, 5) == numbers(10, 15)


def test_dropped_partition_reports_no_errors() -> None:
    """A response about a dropped partition may still arrive."""
    subscription = Subscription(EARLIEST)
    state = subscription.add(ORDERS, bytes(16), EARLIEST)
    renewed = subscription.renew(state, bytes(15) + b"\1", None)
    state.fail(OffsetOutOfRange("too late"))
    assert not subscription.failed
    renewed.fail(OffsetOutOfRange("in time"))
    assert list(subscription.failed) == [renewed]


# -- partitions that have just been created ---------------------------------------------------------------------------


async def test_new_partition_is_waited_for() -> None:
    async with ScriptedCluster() as there, earliest(there) as reader:
        there.create("orders")
        await reader.assign([ORDERS])
        for broker in there.brokers.values():
            broker.fall_behind()
        there.create("orders", 2)
        fill(there, "orders", 5, 1)
        second = TopicPartition("orders", 1)
        waiting = asyncio.gather(reader.assign([second]), reader.end_offsets([second]))
        asked = there.metadata_requests
        async with asyncio.timeout(5):
            while there.metadata_requests < asked + 2:
                await asyncio.sleep(0)
        assert not waiting.done()
        for broker in there.brokers.values():
            broker.picture = None
        _, ends = await waiting
        assert ends == {second: 5}
        assert await read(reader, 5) == numbers(0, 5)


async def test_missing_partition_is_rejected_after_the_grace() -> None:
    async with ScriptedCluster() as there, earliest(there) as reader:
        there.create("orders", 2)
        loop = asyncio.get_running_loop()
        for ask in (reader.assign, reader.end_offsets):
            began = loop.time()
            with pytest.raises(UnknownTopic, match=r"the topic has 2 partitions \(orders-7, after \d+ ms\)"):
                await ask([TopicPartition("orders", 7), ORDERS])
            assert loop.time() - began >= GRACE_MS / 1000
        assert reader.assignment() == set()
