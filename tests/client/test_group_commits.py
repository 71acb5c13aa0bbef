"""The offsets that a member of a group commits: never more than was finished, never for a partition that it no longer owns."""

from __future__ import annotations

import asyncio

import pytest
from waiting import until

from strandline.client import Consumer, OffsetAndMetadata, TopicPartition
from strandline.client.errors import CommitFailed, RequestFailed, RequestTimeout, UnknownTopic, UsageError
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.groups import ConsumerGroupHeartbeatRequest, OffsetCommitRequest

from .group_world import P0, P1, P2, member, poll_until_settled, read, scripted, state_of, until_settled
from .scripted_groups import ScriptedGroups


def fates_of_commits(groups: ScriptedGroups, *fates: str) -> None:
    """Set the fates of the next commits."""
    left = iter(fates)
    groups.fate = lambda request: next(left, "ok") if isinstance(request, OffsetCommitRequest) else "ok"


# -- automatic commits -------------------------------------------------------------------------------------------------


async def test_records_of_the_last_call_are_not_committed_yet() -> None:
    """The program may still work on them (aiokafka#1070, kafka-python#722)."""
    async with (
        scripted(partitions=1, records=30) as (cluster, groups),
        member(cluster, max_poll_records=10, auto_commit_interval_ms=20) as consumer,
    ):
        assert len((await consumer.getmany(timeout_ms=3000))[P0]) == 10
        await until(lambda: groups.offset("orders") == 0, "the first position, and nothing more")
        assert len((await consumer.getmany(timeout_ms=3000))[P0]) == 10
        await until(lambda: groups.offset("orders") == 10)
        assert len((await consumer.getmany(timeout_ms=3000))[P0]) == 10
        await until(lambda: groups.offset("orders") == 20)
        assert await consumer.getmany(timeout_ms=0) == {}
        await until(lambda: groups.offset("orders") == 30)


async def test_a_loop_finishes_its_records_one_by_one() -> None:
    async with (
        scripted(partitions=1, records=10) as (cluster, groups),
        member(cluster, auto_commit_interval_ms=20) as consumer,
    ):
        async for record in consumer:
            if record.offset in (0, 4, 9):
                await until(lambda offset=record.offset: groups.offset("orders") == offset)
            if record.offset == 9:
                break
        assert groups.offset("orders") == 9


async def test_automatic_commit_does_not_go_back_behind_one_of_the_program() -> None:
    """The program says that it has finished the last record that it got: a second consumer must not read it again."""
    async with scripted(partitions=2) as (cluster, groups), member(cluster, auto_commit_interval_ms=20) as consumer:
        await until_settled(consumer, 0, 1)
        await consumer.getmany(P0, timeout_ms=3000)
        await consumer.commit({P0: 20})
        await consumer.getmany(P1, timeout_ms=3000)
        await consumer.getmany(P1)
        await until(lambda: groups.offset("orders", 1) == 20, "an automatic commit")
        assert groups.offset("orders", 0) == 20
        consumer.seek(P0, 3)
        await until(lambda: groups.offset("orders", 0) == 3, "a seek back is committed")


async def test_getone_finishes_the_record_before() -> None:
    async with scripted(partitions=1) as (cluster, groups), member(cluster, auto_commit_interval_ms=20) as consumer:
        for offset in range(3):
            assert (await consumer.getone(timeout_ms=3000)).offset == offset
            await until(lambda offset=offset: groups.offset("orders") == offset)


async def test_fetched_batches_are_finished_by_the_next_call() -> None:
    async with scripted(partitions=1) as (cluster, groups), member(cluster, auto_commit_interval_ms=20) as consumer:
        await until_settled(consumer, 0)
        await consumer.fetch_batches(timeout_ms=3000, max_records=10)
        await until(lambda: groups.offset("orders") == 0)
        await consumer.fetch_batches(timeout_ms=3000, max_records=10)
        await until(lambda: groups.offset("orders") == 10)


async def test_asking_for_one_partition_finishes_nothing_of_another() -> None:
    """Two tasks read two partitions: each has finished its own records only."""
    async with scripted(partitions=2) as (cluster, groups), member(cluster, auto_commit_interval_ms=20) as consumer:
        await until_settled(consumer, 0, 1)
        await consumer.getmany(P0, timeout_ms=3000)
        await consumer.getmany(P1, timeout_ms=3000)
        await consumer.getmany(P1)
        await until(lambda: groups.offset("orders", 1) == 20)
        assert groups.offset("orders", 0) == 0


async def test_a_sought_position_is_committed() -> None:
    async with scripted(partitions=1) as (cluster, groups), member(cluster, auto_commit_interval_ms=20) as consumer:
        await read(consumer, 20)
        consumer.seek(P0, 7)
        await until(lambda: groups.offset("orders") == 7)


async def test_a_first_position_at_the_end_is_committed() -> None:
    """Otherwise the next owner, which begins at the end, too, would skip records that arrive before the first commit."""
    options = {"auto_offset_reset": "latest", "auto_commit_interval_ms": 20}
    async with scripted(partitions=1) as (cluster, groups), member(cluster, **options) as consumer:
        await until_settled(consumer, 0)
        await until(lambda: groups.offset("orders") == 20)


async def test_the_same_offset_is_not_committed_again() -> None:
    async with scripted(partitions=1) as (cluster, groups), member(cluster, auto_commit_interval_ms=5) as consumer:
        await read(consumer, 20)
        await consumer.getmany(timeout_ms=100)
        await until(lambda: groups.offset("orders") == 20)
        commits = len(groups.commits)
        await consumer.getmany(timeout_ms=100)
        assert len(groups.commits) == commits


async def test_nothing_is_committed_without_auto_commit() -> None:
    options = {"enable_auto_commit": False, "auto_commit_interval_ms": 5}
    async with scripted(partitions=2) as (cluster, groups):
        async with member(cluster, **options) as consumer:
            await read(consumer, 40)
            groups.rebalance(groups.keys("orders", 0))
            await poll_until_settled(consumer, 0)
        assert groups.commits == []


async def test_stop_after_an_error_does_not_commit_what_is_in_work() -> None:
    async with scripted(partitions=1) as (cluster, groups):

        async def work() -> None:
            async with member(cluster, max_poll_records=10) as consumer:
                await read(consumer, 20)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await work()
        assert groups.offset("orders") == 10
        assert groups.group().members == {}


async def test_stop_in_a_finally_clause_does_not_either() -> None:
    async with scripted(partitions=1) as (cluster, groups):
        consumer = member(cluster, max_poll_records=10)
        await consumer.start()

        async def work() -> None:
            try:
                await read(consumer, 20)
                raise ZeroDivisionError
            finally:
                await consumer.stop()

        with pytest.raises(ZeroDivisionError):
            await work()
        assert groups.offset("orders") == 10


async def test_stop_after_a_loop_was_left_commits_its_last_record() -> None:
    async with scripted(partitions=1) as (cluster, groups):
        async with member(cluster) as consumer:
            async for record in consumer:
                if record.offset == 6:
                    break
        assert groups.offset("orders") == 7


async def test_failed_automatic_commit_is_logged_and_made_later() -> None:
    async with scripted(partitions=1) as (cluster, groups), member(cluster, auto_commit_interval_ms=20) as consumer:
        await until_settled(consumer, 0)
        groups.commit_codes = {(cluster.topics["orders"], 0): ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
        await read(consumer, 20)
        await until(lambda: consumer.metrics()["group"]["commit_failures"] >= 2)
        groups.commit_codes = {}
        await consumer.getmany(timeout_ms=0)
        await until(lambda: groups.offset("orders") == 20)


async def test_program_that_assigns_by_hand_commits_without_a_membership() -> None:
    async with scripted(partitions=2) as (cluster, groups):
        consumer = Consumer(
            bootstrap_servers=cluster.bootstrap, group_id="g", auto_offset_reset="earliest", auto_commit_interval_ms=20
        )
        async with consumer:
            await consumer.assign([P0])
            await read(consumer, 20)
            await consumer.getmany(timeout_ms=0)
            await until(lambda: groups.offset("orders") == 20)
            stored = groups.committed["g"][cluster.topics["orders"], 0]
            assert (stored.member_id, stored.member_epoch) == ("", -1)
            with pytest.raises(UsageError, match="orders-1 is not assigned"):
                await consumer.commit({P1: 5})
            async with member(cluster) as other:
                await until_settled(other, 0, 1)
                with pytest.raises(CommitFailed, match="does not count this consumer as a member"):
                    await consumer.commit({P0: 5})


# -- explicit commits --------------------------------------------------------------------------------------------------


async def test_commit_stores_offsets_and_metadata() -> None:
    async with scripted(partitions=4) as (cluster, groups), member(cluster, enable_auto_commit=False) as consumer:
        await until_settled(consumer, 0, 1, 2, 3)
        await consumer.commit({P0: 3, P1: OffsetAndMetadata(4, "note", 0), P2: (5, "pair"), ("orders", 3): OffsetAndMetadata(0)})
        assert await consumer.committed_offsets([P0, P1, P2]) == {
            P0: OffsetAndMetadata(3),
            P1: OffsetAndMetadata(4, "note", 0),
            P2: OffsetAndMetadata(5, "pair"),
        }
        assert [await consumer.committed(tp) for tp in (P0, ("orders", 3))] == [3, 0]
        assert len(groups.commits) == 1


async def test_commit_without_arguments_stores_the_positions() -> None:
    """They are after the records that were returned, finished or not: the program says that it has finished."""
    async with scripted(partitions=2) as (cluster, groups), member(cluster, enable_auto_commit=False) as consumer:
        consumer.subscribe("orders")
        await until_settled(consumer, 0, 1)
        assert (await consumer.committed(P1), await consumer.position(P1)) == (None, 0)
        await consumer.getmany(P0, timeout_ms=3000, max_records=7)
        await consumer.commit()
        assert [groups.offset("orders", index) for index in range(2)] == [7, 0]
        async for record in consumer:
            if record.partition == 1:
                await consumer.commit()
                assert groups.offset("orders", 1) == 1
                break


@pytest.mark.parametrize(
    "wrong", [5, {P0: -1}, {P0: 1.5}, {P0: (1, 5)}, {P0: (1, "a" * 70_000)}, {P0: None}, {"orders": 5}, {P0: (1, "\ud800")}]
)
async def test_wrong_offsets_are_refused(wrong: object) -> None:
    async with scripted() as (cluster, groups), member(cluster) as consumer:
        await until_settled(consumer, 0, 1, 2, 3)
        with pytest.raises(UsageError):
            await consumer.commit(wrong)
        assert groups.commits == []


async def test_committed_offset_of_an_unknown_topic_is_an_error() -> None:
    async with scripted() as (cluster, _), member(cluster) as consumer:
        with pytest.raises(UnknownTopic):
            await consumer.committed(("teas", 0))


async def test_seek_to_committed_continues_at_the_commit() -> None:
    async with scripted(partitions=2) as (cluster, _), member(cluster, enable_auto_commit=False) as consumer:
        await until_settled(consumer, 0, 1)
        await consumer.commit({P0: 12})
        await read(consumer, 40)
        assert await consumer.seek_to_committed() == {P0: 12, P1: None}
        assert await read(consumer, 28) == {0: list(range(12, 20)), 1: list(range(20))}


@pytest.mark.parametrize(
    "fate",
    [
        "response lost",
        "request lost",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "REQUEST_TIMED_OUT",
    ],
)
async def test_commit_is_repeated_until_it_succeeds(fate: str) -> None:
    async with scripted(partitions=1) as (cluster, groups), member(cluster, enable_auto_commit=False) as consumer:
        await until_settled(consumer, 0)
        fates_of_commits(groups, fate, fate)
        await consumer.commit({P0: 5})
        assert groups.offset("orders") == 5


async def test_stale_epoch_is_answered_by_a_heartbeat_and_the_commit_repeated() -> None:
    """The coordinator has moved the member to another epoch, and the heartbeat's response is still on its way."""
    async with scripted(partitions=2) as (cluster, groups), member(cluster, enable_auto_commit=False) as consumer:
        await until_settled(consumer, 0, 1)
        before = groups.member().epoch
        groups.fate = lambda request: "late" if isinstance(request, ConsumerGroupHeartbeatRequest) else "ok"
        groups.rebalance(groups.keys("orders", 0, 1))
        await until(lambda: groups.late)
        committing = asyncio.create_task(consumer.commit({P0: 5}))
        await until(lambda: groups.commits)
        groups.fate = lambda request: "ok"
        groups.answer_late()
        await committing
        assert groups.offset("orders") == 5
        epochs = [request.generation_id_or_member_epoch for request in groups.commits]
        assert epochs == [before, before + 1] == [before, consumer.health()["group"]["member_epoch"]]


async def test_commit_of_a_revoked_partition_fails_and_that_of_another_does_not() -> None:
    async with scripted(partitions=2) as (cluster, groups), member(cluster, enable_auto_commit=False) as consumer:
        await until_settled(consumer, 0, 1)
        groups.rebalance(groups.keys("orders", 0))
        await until_settled(consumer, 0)
        with pytest.raises(CommitFailed, match="orders-1 is not assigned to this consumer") as raised:
            await consumer.commit({P0: 5, P1: 6})
        assert (raised.value.topic, raised.value.partition, raised.value.retriable) == ("orders", 1, False)
        assert (groups.offset("orders", 0), groups.offset("orders", 1)) == (5, None)


async def test_commit_that_is_repeated_leaves_out_what_was_revoked_meanwhile() -> None:
    """With the newer epoch, the coordinator would accept it as a commit of the present owner."""
    async with scripted(partitions=2) as (cluster, groups), member(cluster, enable_auto_commit=False) as consumer:
        await until_settled(consumer, 0, 1)
        groups.fate = lambda request: "COORDINATOR_LOAD_IN_PROGRESS" if isinstance(request, OffsetCommitRequest) else "ok"
        committing = asyncio.create_task(consumer.commit({P0: 5, P1: 6}))
        await until(lambda: groups.group().members)
        epoch = groups.member().epoch
        consumer._group._committer.commits.settled = lambda deadline: asyncio.sleep(0)  # type: ignore[union-attr, method-assign]
        groups.rebalance(groups.keys("orders", 0))
        await until_settled(consumer, 0)
        groups.rebalance(groups.keys("orders", 0, 1))
        await until_settled(consumer, 0, 1)
        groups.fate = lambda request: "ok"
        with pytest.raises(CommitFailed, match="orders-1"):
            await committing
        assert groups.member().epoch > epoch
        assert (groups.offset("orders", 0), groups.offset("orders", 1)) == (5, None)


async def test_revocation_waits_for_a_commit_in_flight() -> None:
    """If a program commits by itself, its commit should not fail because a heartbeat overtakes it (KAFKA-9823)."""
    async with scripted(partitions=2) as (cluster, groups), member(cluster, enable_auto_commit=False) as consumer:
        await until_settled(consumer, 0, 1)
        fates_of_commits(groups, *["COORDINATOR_LOAD_IN_PROGRESS"] * 3)
        committing = asyncio.create_task(consumer.commit({P1: 6}))
        await asyncio.sleep(0)
        groups.rebalance(groups.keys("orders", 0))
        await committing
        await until_settled(consumer, 0)
        assert groups.offset("orders", 1) == 6


@pytest.mark.parametrize("code", ["UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH", "FENCED_INSTANCE_ID"])
async def test_commit_of_a_removed_member_fails(code: str) -> None:
    async with scripted(partitions=1) as (cluster, groups), member(cluster, enable_auto_commit=False) as consumer:
        await until_settled(consumer, 0)
        fates_of_commits(groups, code)
        with pytest.raises(CommitFailed, match="does not count this consumer as a member"):
            await consumer.commit({P0: 5})
        await until_settled(consumer, 0)
        await consumer.commit({P0: 6})


@pytest.mark.parametrize("offsets", [None, {P0: 20}])
async def test_commit_of_records_whose_partition_was_lost_fails(offsets: dict[TopicPartition, int] | None) -> None:
    """It fails also when the partition has returned, because another member may have read on. Without `offsets` the commit would
    otherwise store nothing, and report success."""
    async with scripted(partitions=1) as (cluster, groups), member(cluster, enable_auto_commit=False) as consumer:
        await read(consumer, 20)
        groups.group().remove([groups.member().member_id])
        await until(lambda: consumer.metrics()["group"]["partitions_lost"] == 1)
        with pytest.raises(CommitFailed, match="orders-0 is not assigned"):
            await consumer.commit(offsets)
        await until_settled(consumer, 0)
        with pytest.raises(CommitFailed, match="orders-0 is not assigned"):
            await consumer.commit(offsets)
        assert groups.offset("orders") is None
        await read(consumer, 20)
        await consumer.commit(offsets)
        assert groups.offset("orders") == 20


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.OFFSET_METADATA_TOO_LARGE])
async def test_rejected_offset_of_one_partition_is_its_error_alone(code: ErrorCode) -> None:
    async with scripted(partitions=2) as (cluster, groups), member(cluster, enable_auto_commit=False) as consumer:
        await until_settled(consumer, 0, 1)
        groups.commit_codes = {(cluster.topics["orders"], 1): code}
        with pytest.raises(RequestFailed, match="orders-1") as raised:
            await consumer.commit({P0: 5, P1: 6})
        assert raised.value.code == code
        assert groups.offset("orders", 0) == 5
        assert len(groups.commits) == 1, "it is not repeated"


async def test_commits_keep_the_order_of_the_calls() -> None:
    """The first commit fails for a while. If it were repeated after the second, it would set the group back."""
    async with scripted(partitions=1) as (cluster, groups), member(cluster, enable_auto_commit=False) as consumer:
        await until_settled(consumer, 0)
        fates_of_commits(groups, "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_LOAD_IN_PROGRESS")
        first = asyncio.create_task(consumer.commit({P0: 5}))
        await asyncio.sleep(0)
        await consumer.commit({P0: 9})
        await first
        assert groups.offset("orders") == 9


async def test_commit_without_a_coordinator_is_bounded() -> None:
    async with scripted(partitions=1) as (cluster, groups), member(cluster, enable_auto_commit=False) as consumer:
        await until_settled(consumer, 0)
        groups.coordinator = -1
        with pytest.raises(RequestTimeout, match=r"the offsets may not be committed: .*COORDINATOR"):
            await consumer.commit({P0: 5}, timeout_ms=300)
        with pytest.raises(RequestTimeout, match="committed offsets were not answered"):
            await consumer.committed(P0, timeout_ms=300)
        groups.coordinator = 2
        await consumer.commit({P0: 5})


async def test_cancelled_commit_leaves_the_next_one_alone() -> None:
    async with scripted(partitions=1) as (cluster, groups), member(cluster, enable_auto_commit=False) as consumer:
        await until_settled(consumer, 0)
        fates_of_commits(groups, "silence")
        committing = asyncio.create_task(consumer.commit({P0: 5}))
        await until(lambda: cluster.brokers[1].held)
        committing.cancel()
        await asyncio.wait([committing])
        await consumer.commit({P0: 9})
        assert groups.offset("orders") == 9


async def test_lost_member_says_how_long_the_program_was_away() -> None:
    async with (
        scripted(partitions=1) as (cluster, groups),
        member(cluster, max_poll_interval_ms=300, enable_auto_commit=False) as consumer,
    ):
        await read(consumer, 20)
        await until(lambda: state_of(consumer) == "stale")
        with pytest.raises(CommitFailed, match=r"had not asked for records for \d+\.\d s \(max_poll_interval_ms=300\)"):
            await consumer.commit({P0: 20})
        await until(lambda: not groups.group().members)


async def test_partition_of_a_name_that_is_no_topic_is_not_assigned() -> None:
    async with scripted() as (cluster, _), member(cluster) as consumer:
        await until_settled(consumer, 0, 1, 2, 3)
        with pytest.raises(CommitFailed, match="teas-0 is not assigned"):
            await consumer.commit({TopicPartition("teas", 0): 5})
