"""A consumer as a member of a group: what it reads, from where, and what happens when partitions are assigned and revoked."""

from __future__ import annotations

import asyncio

import pytest
from waiting import until

from strandline.client import Consumer, GroupStateChange, TopicPartition
from strandline.client.errors import GroupMembershipFailed, OffsetOutOfRange, UnknownTopic, UsageError
from strandline.protocol.errors import ErrorCode

from .group_world import P0, P1, P2, member, poll_until_settled, read, scripted, state_of, until_settled
from .test_consumer import fill

WITH_AND_WITHOUT_THREAD = pytest.mark.parametrize("heartbeat_thread", [False, True])


@WITH_AND_WITHOUT_THREAD
async def test_member_reads_what_it_is_assigned_and_commits_it(heartbeat_thread: bool) -> None:
    async with scripted() as (cluster, groups):
        async with member(cluster, heartbeat_thread=heartbeat_thread) as consumer:
            assert await read(consumer, 80) == {index: list(range(20)) for index in range(4)}
            await until_settled(consumer, 0, 1, 2, 3)
            assert groups.owned() == [[0, 1, 2, 3]]
            group = consumer.health()["group"]
            assert (group["coordinator"], group["group_id"], group["member_id"]) == (1, "g", groups.member().member_id)
        assert [groups.offset("orders", index) for index in range(4)] == [20] * 4
        assert groups.group().members == {}, "it has left"


async def test_heartbeat_names_rack_assignor_and_timeout() -> None:
    options = {"client_rack": "a", "group_remote_assignor": "range", "rebalance_timeout_ms": 7000, "group_instance_id": "i"}
    async with scripted() as (cluster, groups), member(cluster, **options) as consumer:
        await until_settled(consumer, 0, 1, 2, 3)
        first = groups.heartbeats[0]
        assert (first.rack_id, first.server_assignor, first.rebalance_timeout_ms, first.instance_id) == ("a", "range", 7000, "i")
        assert first.returns_at_once


async def test_member_ids_differ() -> None:
    async with scripted() as (cluster, groups), member(cluster) as a, member(cluster) as b:
        await until(lambda: len(groups.group().members) == 2)
        ids = [consumer.health()["group"]["member_id"] for consumer in (a, b)]
        assert len({*ids}) == 2
        assert all(len(member_id) == 22 for member_id in ids), "16 bytes as text"


async def test_consumer_without_a_group_asks_for_no_coordinator() -> None:
    async with scripted() as (cluster, groups):
        async with member(cluster, group_id=None) as consumer:
            await read(consumer, 80)
            assert "group" not in consumer.health()
            for call in (consumer.commit(), consumer.committed(P0), consumer.seek_to_committed(P0)):
                with pytest.raises(UsageError, match="give the consumer a group_id"):
                    await call
        assert (groups.finds, groups.heartbeats) == (0, [])


# -- first positions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "expected"), [("earliest", list(range(20))), ("latest", [])])
async def test_reading_begins_at_committed_offsets_else_by_the_policy(policy: str, expected: list[int]) -> None:
    async with scripted(partitions=2) as (cluster, groups):
        groups.store("orders", 1, 17, epoch=0)
        async with member(cluster, auto_offset_reset=policy) as consumer:
            assert (await consumer.getmany(P1, timeout_ms=3000))[P1][0].offset == 17
            assert [r.offset for r in (await consumer.getmany(P0, timeout_ms=300)).get(P0, [])] == expected


async def test_without_a_committed_offset_and_a_policy_a_seek_is_needed() -> None:
    async with scripted(partitions=2) as (cluster, groups):
        groups.store("orders", 1, 17)
        async with member(cluster, auto_offset_reset="error") as consumer:
            with pytest.raises(OffsetOutOfRange, match="no position"):
                await consumer.getone(timeout_ms=3000)
            consumer.seek(P0, 3)
            assert (await consumer.getmany(P0, timeout_ms=3000))[P0][0].offset == 3


async def test_the_position_is_validated_by_the_committed_epoch() -> None:
    """KIP-320: the committed offset has the leader epoch of the record before it."""
    async with scripted(partitions=1) as (cluster, groups):
        groups.store("orders", 0, 10, epoch=0)
        async with member(cluster) as consumer:
            await consumer.getone(timeout_ms=3000)
        asked = [p for request in cluster.fetch_requests for p in request.partitions]
        assert next((p.fetch_offset, p.last_fetched_epoch) for p in asked) == (10, 0)


async def test_committed_offsets_are_asked_for_again_until_there_is_an_answer() -> None:
    async with scripted(partitions=1) as (cluster, groups):
        groups.store("orders", 0, 10)
        fates = iter(["COORDINATOR_LOAD_IN_PROGRESS", "response lost", "STALE_MEMBER_EPOCH", "UNSTABLE_OFFSET_COMMIT"])
        groups.fate = lambda request: next(fates, "ok") if type(request).__name__ == "OffsetFetchRequest" else "ok"
        async with member(cluster) as consumer:
            assert (await consumer.getone(timeout_ms=5000)).offset == 10
        assert next(fates, None) is None


async def test_partitions_assigned_by_hand_begin_at_committed_offsets() -> None:
    async with scripted() as (cluster, groups):
        groups.store("orders", 1, 15)
        async with Consumer(bootstrap_servers=cluster.bootstrap, group_id="g", auto_offset_reset="latest") as consumer:
            await consumer.assign([P0, P1])
            assert [await consumer.position(tp) for tp in (P0, P1)] == [20, 15]
            assert await read(consumer, 5) == {1: [15, 16, 17, 18, 19]}
        assert groups.heartbeats == [], "it is no member"
        assert groups.offset("orders", 1) == 20, "but it commits"


# -- rebalances --------------------------------------------------------------------------------------------------------


@WITH_AND_WITHOUT_THREAD
async def test_second_member_gets_half_and_nothing_is_read_twice(heartbeat_thread: bool) -> None:
    async with scripted(records=300) as (cluster, groups):
        options = {"heartbeat_thread": heartbeat_thread, "max_poll_records": 7}
        seen: dict[tuple[int, int], int] = {}

        async def work(consumer: Consumer) -> None:
            while True:
                for records in (await consumer.getmany(timeout_ms=50)).values():
                    for record in records:
                        key = record.partition, record.offset
                        seen[key] = seen.get(key, 0) + 1
                await asyncio.sleep(0.001)

        async with member(cluster, **options) as a:
            first = asyncio.create_task(work(a))
            await until(lambda: len(seen) > 50)
            async with member(cluster, **options) as b:
                second = asyncio.create_task(work(b))
                await until(lambda: all(len(c.assignment()) == 2 and state_of(c) == "stable" for c in (a, b)))
                await until(lambda: len(seen) == 1200)
                for task in (first, second):
                    task.cancel()
        assert set(seen.values()) == {1}
        assert [groups.offset("orders", index) for index in range(4)] == [300] * 4


async def test_partition_goes_when_the_program_asks_for_more() -> None:
    """Its next owner begins after the records that the program is working on."""
    async with scripted(partitions=2) as (cluster, groups), member(cluster) as consumer:
        await poll_until_settled(consumer, 0, 1)
        consumer.seek(P1, 5)
        assert (await consumer.getmany(P1, timeout_ms=3000))[P1][0].offset == 5
        groups.rebalance(groups.keys("orders", 0))
        await until(lambda: state_of(consumer) == "reconciling")
        beats = len(groups.heartbeats)
        await until(lambda: len(groups.heartbeats) > beats + 2)
        assert groups.owned() == [[0, 1]], "the records of partition 1 are in work"
        await consumer.getmany(timeout_ms=0)
        await until_settled(consumer, 0)
        assert groups.owned() == [[0]]
        assert groups.offset("orders", 1) == 20


async def test_partition_without_unfinished_records_goes_at_once() -> None:
    async with scripted(partitions=2) as (cluster, groups), member(cluster) as consumer:
        await until_settled(consumer, 0, 1)
        assert (await consumer.getmany(P1, timeout_ms=3000))[P1]
        groups.rebalance(groups.keys("orders", 1))
        await until_settled(consumer, 1)
        assert groups.owned() == [[1]]


async def test_records_of_a_revoked_partition_are_not_returned() -> None:
    """The records are fetched already, and the revocation waits for the program."""
    async with scripted(partitions=2, records=300) as (cluster, groups), member(cluster) as consumer:
        await until_settled(consumer, 0, 1)
        assert len((await consumer.getmany(P1, timeout_ms=3000, max_records=5))[P1]) == 5
        groups.rebalance(groups.keys("orders", 0))
        await until(lambda: state_of(consumer) == "reconciling")
        after = await read(consumer, 300)
        assert list(after) == [0]
        await until_settled(consumer, 0)
        with pytest.raises(UsageError, match="not assigned"):
            consumer.seek(P1, 0)


async def test_a_loop_stops_at_the_record_at_which_the_partition_goes() -> None:
    async with scripted(partitions=1, records=300) as (cluster, groups), member(cluster) as consumer:
        seen = []
        async with asyncio.timeout(10):
            async for record in consumer:
                seen.append(record.offset)
                if len(seen) == 25:
                    groups.rebalance(frozenset())
                    await until(lambda: state_of(consumer) == "reconciling")
                    assert groups.owned() == [[0]], "the record of the loop's body is in work"
                    assert groups.offset("orders") in (None, *range(25))
                    break
            loop = asyncio.create_task(consumer.getone())
            await until_settled(consumer)
            loop.cancel()
        assert seen == list(range(25))
        assert groups.offset("orders") == 25


async def test_partition_that_comes_back_is_read_from_the_commit() -> None:
    async with scripted(partitions=2) as (cluster, groups), member(cluster, max_poll_records=3) as consumer:
        await until_settled(consumer, 0, 1)
        assert [r.offset for r in (await consumer.getmany(P1, timeout_ms=3000))[P1]] == [0, 1, 2]
        groups.rebalance(groups.keys("orders", 0))
        await poll_until_settled(consumer, 0)
        groups.store("orders", 1, 11)
        groups.rebalance(groups.keys("orders", 0, 1))
        await until_settled(consumer, 0, 1)
        assert (await consumer.getmany(P1, timeout_ms=3000))[P1][0].offset == 11


async def test_assigned_topic_whose_name_is_unknown_is_asked_for_by_its_id() -> None:
    """The coordinator evaluates the pattern, and may have topics that the consumer does not know."""
    async with scripted() as (cluster, groups):
        consumer = Consumer(
            bootstrap_servers=cluster.bootstrap, group_id="g", auto_offset_reset="earliest", heartbeat_thread=False
        )
        consumer.subscribe(pattern="te.*")
        async with consumer:
            await until(lambda: state_of(consumer) == "stable")
            cluster.create("teas", 2)
            fill(cluster, "teas", 5, 1)
            groups.rebalance(groups.keys("teas", 0, 1))
            assert (await consumer.getone(timeout_ms=3000)).topic == "teas"
            assert consumer.subscription() == set()
        assert groups.heartbeats[0].subscribed_topic_regex == "te.*"


async def test_topic_that_stays_unknown_holds_up_no_other() -> None:
    """The coordinator has assigned a topic that was deleted meanwhile."""
    async with scripted(partitions=1) as (cluster, groups), member(cluster) as consumer:
        await until_settled(consumer, 0)
        groups.rebalance(groups.keys("orders", 0) | {(b"x" * 16, 0)})
        await until(lambda: state_of(consumer) == "reconciling")
        assert await read(consumer, 20) == {0: list(range(20))}
        groups.rebalance(groups.keys("orders", 0))
        await until_settled(consumer, 0)


async def test_recreated_topic_is_read_from_its_beginning_once() -> None:
    """A topic with another id is another topic: the offsets of the old one say nothing about it."""
    async with scripted(partitions=1) as (cluster, groups), member(cluster) as consumer:
        await read(consumer, 20)
        await consumer.commit()
        cluster.recreate("orders")
        fill(cluster, "orders", 30)
        groups.rebalance(groups.keys("orders", 0))
        assert await read(consumer, 30) == {0: list(range(30))}
        assert consumer.topic_id(P0) == cluster.topics["orders"]
        assert await consumer.getmany(timeout_ms=100) == {}


async def test_subscribed_topic_that_does_not_exist_is_raised() -> None:
    async with scripted() as (cluster, _), member(cluster, "orders", "teas") as consumer:
        with pytest.raises(UnknownTopic, match="teas"):
            await read(consumer, 81)


# -- subscribing and leaving -------------------------------------------------------------------------------------------


async def test_other_topics_replace_those_of_the_subscription() -> None:
    async with scripted(records=300) as (cluster, groups), member(cluster) as consumer:
        cluster.create("teas")
        fill(cluster, "teas", 40)
        await consumer.getone(timeout_ms=3000)
        consumer.subscribe("teas")
        assert (await consumer.getone(timeout_ms=5000)).topic == "teas"
        await until(lambda: consumer.assignment() == {TopicPartition("teas", 0)})
        assert consumer.subscription() == {"teas"}
        assert groups.offset("orders", 0) is not None


async def test_unsubscribing_commits_and_leaves() -> None:
    async with scripted() as (cluster, groups), member(cluster) as consumer:
        await read(consumer, 80)
        consumer.unsubscribe()
        assert await consumer.getmany(timeout_ms=50) == {}
        await until(lambda: not groups.group().members)
        assert [groups.offset("orders", index) for index in range(4)] == [20] * 4
        assert consumer.assignment() == set()
        await until(lambda: state_of(consumer) == "unsubscribed")
        consumer.subscribe("orders")
        await until_settled(consumer, 0, 1, 2, 3)


async def test_subscribing_again_at_once_stays_in_the_group() -> None:
    async with scripted() as (cluster, groups), member(cluster) as consumer:
        await until_settled(consumer, 0, 1, 2, 3)
        consumer.unsubscribe()
        consumer.subscribe("orders")
        assert await read(consumer, 80)
        assert len(groups.group().members) == 1


async def test_assigning_by_hand_leaves_the_group() -> None:
    async with scripted() as (cluster, groups), member(cluster) as consumer:
        await until_settled(consumer, 0, 1, 2, 3)
        await consumer.assign([P2])
        assert groups.group().members == {}
        assert consumer.assignment() == {P2}
        assert await read(consumer, 20) == {2: list(range(20))}


@WITH_AND_WITHOUT_THREAD
@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("i", -2)])
async def test_stopping_leaves_the_group(instance_id: str | None, epoch: int, heartbeat_thread: bool) -> None:
    async with scripted() as (cluster, groups):
        async with member(cluster, group_instance_id=instance_id, heartbeat_thread=heartbeat_thread) as consumer:
            await until_settled(consumer, 0, 1, 2, 3)
        assert groups.heartbeats[-1].member_epoch == epoch


async def test_static_member_gets_its_partitions_back() -> None:
    async with scripted() as (cluster, groups):
        for _ in range(2):
            async with member(cluster, group_instance_id="i") as consumer:
                await until_settled(consumer, 0, 1, 2, 3)
                epoch = groups.group().epoch
        assert groups.group().epoch == epoch, "no rebalance"


async def test_second_static_member_of_a_name_fails() -> None:
    async with scripted() as (cluster, _), member(cluster, group_instance_id="i") as first:
        await until_settled(first, 0, 1, 2, 3)
        async with member(cluster, group_instance_id="i") as second:
            with pytest.raises(GroupMembershipFailed, match="stop the other member") as raised:
                await second.getone(timeout_ms=3000)
            assert raised.value.code == ErrorCode.UNRELEASED_INSTANCE_ID
        assert state_of(first) == "stable"


# -- what a program can see --------------------------------------------------------------------------------------------


async def test_program_hears_of_each_state() -> None:
    changes: list[GroupStateChange] = []
    async with scripted() as (cluster, _):
        async with member(cluster, on_state_change=changes.append) as consumer:
            await until_settled(consumer, 0, 1, 2, 3)
        states = [change.state for change in changes]
        assert states[0] == "joining"
        assert "stable" in states
        assert states[-1] == "unsubscribed"
        assert [change.previous for change in changes] == ["unsubscribed", *states[:-1]]


async def test_failing_state_callback_does_no_harm() -> None:
    async with scripted() as (cluster, _), member(cluster, on_state_change=lambda change: 1 / 0) as consumer:
        await read(consumer, 80)


async def test_metrics_count_rebalances_heartbeats_and_commits() -> None:
    async with scripted() as (cluster, groups), member(cluster) as consumer:
        await read(consumer, 80)
        await consumer.commit()
        groups.rebalance(groups.keys("orders", 0))
        await poll_until_settled(consumer, 0)
        found = consumer.metrics()["group"]
        assert (found["partitions_assigned"], found["partitions_revoked"], found["partitions_lost"]) == (4, 3, 0)
        assert found["rebalances"] == 2
        assert found["commits"] >= 1
        assert found["heartbeats"] == len(groups.heartbeats)
        assert found["commit_latency_ms"] > 0


async def test_paused_partition_stays_paused_after_a_rebalance() -> None:
    async with scripted() as (cluster, groups), member(cluster) as consumer:
        await until_settled(consumer, 0, 1, 2, 3)
        consumer.pause(P1)
        groups.rebalance(groups.keys("orders", 1, 2))
        await until_settled(consumer, 1, 2)
        assert consumer.paused() == {P1}
        assert await read(consumer, 20) == {2: list(range(20))}
        consumer.resume(P1)
        assert await read(consumer, 20) == {1: list(range(20))}


async def test_nothing_else_uses_the_heartbeats_connection() -> None:
    """Kafka's consumers share it, so a throttled fetch or a large response delays the heartbeat."""
    async with scripted() as (cluster, groups), member(cluster) as consumer:
        await read(consumer, 80)
        broker = cluster.brokers[1]
        assert broker.server is not None
        assert len({*groups.connections}) == 1
        broker.hanging = True
        groups.fate = lambda request: "silence"
        await until(lambda: len(broker.held) >= 2)
        seen = {request.connection.id for request in broker.held if request.api_key == 1}
        assert seen
        assert seen.isdisjoint(groups.connections)
        groups.fate = lambda request: "ok"
        broker.answer_late()
