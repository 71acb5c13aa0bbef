"""`Consumer.run` in a group whose partitions move: no two members handle records of one partition at a time, and nothing is
committed that is not finished."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from structlog.testing import capture_logs
from waiting import until

from strandline.client import Backoff, ConsumerRecord
from strandline.client.errors import CommitFailed
from strandline.protocol.errors import ErrorCode

from .group_world import member, scripted_on_a_thread, state_of, until_settled
from .run_world import Gate, P, Seen, add, cluster_with, place, running
from .scripted_groups import ScriptedGroups
from .test_group_failures import WITH_AND_WITHOUT_THREAD, heartbeats_are, refuse_heartbeats, session

EVERYTHING = [(p, offset) for p in range(4) for offset in range(100)]


def remove(groups: ScriptedGroups) -> None:
    """The coordinator removes the member."""
    groups.group().remove([groups.member().member_id])


# -- partitions that go in order ----------------------------------------------------------------------------------------


async def test_partition_goes_when_the_call_that_runs_has_ended() -> None:
    gate = Gate()
    async with cluster_with("abc", "abc") as (cluster, groups), running(cluster, gate.handle) as (consumer, _):
        await until(lambda: len(gate.begun) == 2)
        groups.rebalance(groups.keys("orders", 0))
        await until(lambda: state_of(consumer) == "reconciling")
        await asyncio.sleep(0.25)
        assert groups.owned() == [[0, 1]], "it is still at work"
        gate.open((1, 0), (1, 1))
        await until_settled(consumer, 0)
        assert groups.offset("orders", 1) == 1, "what was finished is committed before the partition goes"
        assert (1, 1) not in gate.begun
        assert consumer.metrics()["run"]["dropped"] == 2
        gate.open(*EVERYTHING)


async def test_next_member_begins_where_the_first_has_finished() -> None:
    """Two complete members, which take partitions from each other: each record is handled once."""
    first, second = Gate(), Gate()
    async with cluster_with("ab" * 10, "ab" * 10) as (cluster, _), running(cluster, first.handle) as (one, _):
        await until(lambda: len(first.begun) == 2)
        first.open((0, 0), (1, 0))
        await until(lambda: len(first.begun) == 4)
        async with running(cluster, second.handle) as (other, _):
            await until(lambda: state_of(one) == "reconciling")
            await asyncio.sleep(0.05)
            assert second.begun == []
            first.open(*EVERYTHING)
            second.open(*EVERYTHING)
            await until(lambda: len(first.done) + len(second.done) == 40)
            assert len(one.assignment()) == len(other.assignment()) == 1
    assert sorted(first.done + second.done) == [(p, offset) for p in range(2) for offset in range(20)]


async def test_call_that_is_too_slow_for_a_revocation_is_cancelled_and_not_committed() -> None:
    gate = Gate()
    async with (
        cluster_with("abc", "abc", interval_ms=300) as (cluster, groups),
        running(cluster, gate.handle, {"rebalance_timeout_ms": 1500}) as (consumer, _),
    ):
        await until(lambda: len(gate.begun) == 2)
        gate.open((1, 0))
        await until(lambda: (1, 1) in gate.begun)
        groups.rebalance(groups.keys("orders", 0))
        await until_settled(consumer, 0)
        assert gate.cancelled == [(1, 1)]
        assert groups.offset("orders", 1) == 1
        metrics = consumer.metrics()
        assert (metrics["run"]["calls_cut_off"], metrics["group"]["revocations_cut_off"]) == (1, 0)
        gate.open(*EVERYTHING)


async def test_thread_that_is_too_slow_for_a_revocation_is_left_behind() -> None:
    """A thread cannot be stopped. Its result does not count."""
    leave, begun = threading.Event(), []

    def handle(record: ConsumerRecord) -> None:
        begun.append(place(record))
        if record.partition == 1:
            leave.wait(10)

    async with (
        cluster_with("abc", "abc") as (cluster, groups),
        running(cluster, handle, {"rebalance_timeout_ms": 300}) as (consumer, _),
    ):
        await until(lambda: (1, 0) in begun)
        groups.rebalance(groups.keys("orders", 0))
        await until_settled(consumer, 0)
        assert consumer.metrics()["group"]["revocations_cut_off"] == 1
        assert consumer.health()["run"]["calls_of_lost_partitions"] == 1
        assert groups.offset("orders", 1) == 0
        leave.set()
        await until(lambda: consumer.health()["run"]["calls_of_lost_partitions"] == 0)
        assert [each for each in begun if each[0] == 1] == [(1, 0)]


async def test_callbacks_of_the_program_come_after_the_calls() -> None:
    """`on_revoked` may close what the handler uses."""
    gate, order = Gate(), []

    async def handle(record: ConsumerRecord) -> None:
        await gate.handle(record)
        order.append(place(record))

    async with cluster_with("ab") as (cluster, groups), member(cluster) as consumer:
        consumer.subscribe("orders", on_revoked=lambda partitions: order.append(partitions))
        task = asyncio.ensure_future(consumer.run(handle))
        await until(lambda: bool(gate.begun))
        groups.rebalance(frozenset())
        await until(lambda: state_of(consumer) == "reconciling")
        gate.open((0, 0))
        await until(lambda: len(order) == 2)
        assert order == [(0, 0), [P[0]]]
        consumer.end_run()
        await task


async def test_retries_that_wait_do_not_hold_up_a_revocation() -> None:
    """The next member handles the record at once."""

    async def handle(record: ConsumerRecord) -> None:
        raise KeyError

    slow = Backoff(first_ms=60_000)
    async with cluster_with("ab") as (cluster, groups), running(cluster, handle, retry=slow) as (consumer, _):
        await until(lambda: consumer.metrics()["run"]["delayed"] == 1)
        groups.rebalance(frozenset())
        await until_settled(consumer)
        assert groups.offset("orders") == 0
        assert consumer.metrics()["run"]["delayed"] == 0


async def test_new_partitions_are_handled_beside_the_old_ones() -> None:
    gate = Gate()
    async with cluster_with("ab", "ab") as (cluster, groups), running(cluster, gate.handle) as (consumer, _):
        await until(lambda: len(gate.begun) == 2)
        groups.rebalance(groups.keys("orders", 0))
        await until(lambda: state_of(consumer) == "reconciling")
        gate.open((1, 0))
        await until_settled(consumer, 0)
        groups.rebalance(groups.keys("orders", 0, 1))
        await until(lambda: (1, 1) in gate.begun)
        assert gate.begun.count((0, 0)) == 1
        gate.open(*EVERYTHING)


# -- partitions that are lost -------------------------------------------------------------------------------------------


async def test_calls_of_lost_partitions_are_cancelled_and_do_not_count() -> None:
    """Another member may already be reading them: PostHog found 997 of 1024 partitions touched by two processes."""
    gate = Gate()
    async with cluster_with("ab", "ab") as (cluster, groups), running(cluster, gate.handle) as (consumer, _):
        await until(lambda: len(gate.begun) == 2)
        remove(groups)
        groups.store("orders", 0, 1)
        await until(lambda: sorted(gate.cancelled) == [(0, 0), (1, 0)])
        await until(lambda: sorted(gate.begun) == [(0, 0), (0, 1), (1, 0), (1, 0)])
        gate.open(*EVERYTHING)
        await until(lambda: sorted(gate.done) == [(0, 1), (1, 0), (1, 1)])
        assert consumer.metrics()["run"]["handled"] == 3
    assert [groups.offset("orders", index) for index in (0, 1)] == [2, 2]


async def test_partition_that_returns_waits_for_the_call_of_its_last_stay() -> None:
    """The call runs on a thread, and continues after the partition was lost. A second call would handle the same record at the
    same time."""
    leave, at_work, most = threading.Event(), [0], [0]

    def handle(record: ConsumerRecord) -> None:
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        leave.wait(10)
        at_work[0] -= 1

    async with cluster_with("ab") as (cluster, groups), running(cluster, handle) as (consumer, _):
        await until(lambda: at_work[0] == 1)
        remove(groups)
        await until(lambda: consumer.metrics()["group"]["partitions_assigned"] == 2)
        await until_settled(consumer, 0)
        await asyncio.sleep(0.05)
        assert at_work[0] == 1
        assert consumer.metrics()["run"]["in_flight"] == 2
        leave.set()
        await until(lambda: consumer.metrics()["run"]["handled"] == 2)
    assert most[0] == 1
    assert groups.offset("orders") == 2


async def test_coroutine_that_ignores_its_cancellation_is_waited_for() -> None:
    leave, calls = asyncio.Event(), []

    async def handle(record: ConsumerRecord) -> None:
        calls.append(place(record))
        while not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                calls.append("cancelled")

    async with cluster_with("ab") as (cluster, groups), running(cluster, handle) as (consumer, _):
        await until(lambda: bool(calls))
        remove(groups)
        await until(lambda: consumer.metrics()["group"]["partitions_assigned"] == 2)
        await until_settled(consumer, 0)
        await asyncio.sleep(0.05)
        assert calls == [(0, 0), "cancelled"]
        leave.set()
        await until(lambda: consumer.metrics()["run"]["handled"] == 2)
        assert calls == [(0, 0), "cancelled", (0, 0), (0, 1)]


async def test_handler_cannot_commit_for_a_partition_that_was_lost() -> None:
    """The commit fails also if this member has the partition again: another member may have read on meanwhile, and the commit
    would set it back."""
    errors: list[Exception] = []
    begun, leave = asyncio.Event(), asyncio.Event()

    async def handle(record: ConsumerRecord) -> None:
        begun.set()
        try:
            await leave.wait()
        except asyncio.CancelledError:
            await until(lambda: consumer.metrics()["group"]["partitions_assigned"] == 2)
            await until_settled(consumer, 0)
            try:
                await consumer.commit({P[0]: record.offset + 1})
            except CommitFailed as e:
                errors.append(e)
            leave.set()

    async with cluster_with("abc") as (cluster, groups), running(cluster, handle) as (consumer, _):
        await begun.wait()
        groups.store("orders", 0, 2)
        remove(groups)
        await until(lambda: len(errors) == 1)
        await until(lambda: consumer.metrics()["run"]["handled"] == 1)
        await consumer.commit({P[0]: 3})
    assert groups.offset("orders") == 3


async def test_refused_member_ends_the_run() -> None:
    gate = Gate()
    async with cluster_with("ab") as (cluster, groups), running(cluster, gate.handle) as (_, task):
        await until(lambda: bool(gate.begun))
        refuse_heartbeats(groups, ErrorCode.INVALID_REQUEST)
        with pytest.raises(Exception, match="refuses the member: because"):
            await task
        assert gate.cancelled == [(0, 0)]


# -- a membership in doubt ----------------------------------------------------------------------------------------------


@WITH_AND_WITHOUT_THREAD
async def test_nothing_is_handled_while_the_membership_is_in_doubt(heartbeat_thread: bool) -> None:
    """Another member may have the partitions. When they are certain again, the records are handled, and none is left out."""
    gate = Gate()
    async with (
        cluster_with("ab") as (cluster, groups),
        running(cluster, gate.handle, {"heartbeat_thread": heartbeat_thread}) as (consumer, _),
    ):
        await until(lambda: bool(gate.begun))
        await until_settled(consumer, 0)
        groups.fate = heartbeats_are("COORDINATOR_LOAD_IN_PROGRESS")
        await until(lambda: gate.cancelled == [(0, 0)])
        assert state_of(consumer) == "suspended"
        await asyncio.sleep(0.05)
        assert gate.begun == [(0, 0)]
        assert consumer.metrics()["run"]["waiting"] == 2
        groups.fate = lambda request: "ok"
        gate.open(*EVERYTHING)
        await until(lambda: gate.done == [(0, 0), (0, 1)])
        assert consumer.metrics()["group"]["partitions_lost"] == 0
    assert groups.offset("orders") == 2


async def test_process_that_was_paused_begins_nothing_before_it_is_sure() -> None:
    """As after SIGSTOP: records are queued, and the partition belongs to another member by now."""
    seen: Seen = []
    first, go_on = asyncio.Event(), asyncio.Event()

    async def handle(record: ConsumerRecord) -> None:
        seen.append(place(record))
        if record.offset == 0:
            first.set()
            await go_on.wait()

    async with cluster_with("abcdef") as (cluster, groups), running(cluster, handle) as (consumer, _):
        await first.wait()
        await until_settled(consumer, 0)
        remove(groups)
        groups.store("orders", 0, 4)
        go_on.set()
        time.sleep(0.4)  # noqa: ASYNC251
        await until(lambda: (0, 5) in seen)
        assert seen == [(0, 0), (0, 4), (0, 5)]


# -- handlers that take long, and handlers that are stuck ---------------------------------------------------------------


@WITH_AND_WITHOUT_THREAD
async def test_slow_handler_is_not_thrown_out_while_it_works(heartbeat_thread: bool) -> None:
    """Its records together take longer than `max_poll_interval_ms`; each alone does not (aiokafka#335, kafka-python#2179)."""
    options = {"heartbeat_thread": heartbeat_thread, "max_poll_interval_ms": 1500}

    async def handle(record: ConsumerRecord) -> None:
        await asyncio.sleep(0.08)

    async with cluster_with("a" * 20, interval_ms=50) as (cluster, groups), running(cluster, handle, options) as (consumer, _):
        await until(lambda: consumer.metrics()["run"]["handled"] == 20)
        assert consumer.metrics()["group"]["partitions_lost"] == 0
    assert groups.offset("orders") == 20


@WITH_AND_WITHOUT_THREAD
async def test_idle_run_stays_a_member(heartbeat_thread: bool) -> None:
    options = {"heartbeat_thread": heartbeat_thread, "max_poll_interval_ms": 150}
    async with cluster_with("", interval_ms=50) as (cluster, groups), running(cluster, print, options) as (consumer, _):
        await until_settled(consumer, 0)
        await asyncio.sleep(0.5)
        assert consumer.metrics()["group"]["partitions_lost"] == 0
        assert len(groups.group().members) == 1


@WITH_AND_WITHOUT_THREAD
async def test_stuck_handler_leaves_the_group_and_hears_of_it(heartbeat_thread: bool) -> None:
    """Other calls keep ending, and must not hide the stuck one. The consumer joins again when that call has ended."""
    gate, options = Gate(), {"heartbeat_thread": heartbeat_thread, "max_poll_interval_ms": 300}
    gate.open(*[(1, offset) for offset in range(100)])
    async with cluster_with("ab", "ab", interval_ms=50) as (cluster, groups):
        with capture_logs() as logs:
            async with running(cluster, gate.handle, options) as (consumer, _):
                await until(lambda: (0, 0) in gate.begun)
                while not gate.cancelled:
                    add(cluster, 1, "x")
                    await asyncio.sleep(0.02)
                assert gate.cancelled == [(0, 0)]
                gate.open((0, 0), (0, 1))
                await until(lambda: (0, 1) in gate.done)
                assert consumer.metrics()["group"]["partitions_lost"] == 2
        (line,) = [line for line in logs if line["event"] == "consumer.handler_stuck"]
        assert (line["topic"], line["partition"], line["offset"]) == ("orders", 0, 0)
        assert line["running_ms"] >= 300
        assert groups.offset("orders", 0) == 2


@WITH_AND_WITHOUT_THREAD
async def test_stuck_thread_keeps_the_consumer_out_of_the_group(heartbeat_thread: bool) -> None:
    """In the group, it would get partitions that it cannot handle. It joins again when the thread returns."""
    leave, options = threading.Event(), {"heartbeat_thread": heartbeat_thread, "max_poll_interval_ms": 200}
    calls: list[tuple[int, int]] = []

    def handle(record: ConsumerRecord) -> None:
        calls.append(place(record))
        if len(calls) == 1:
            leave.wait(10)

    async with (
        cluster_with("ab", interval_ms=50) as (cluster, groups),
        running(cluster, handle, options) as (consumer, _),
    ):
        await until(lambda: not groups.group().members and bool(calls))
        await asyncio.sleep(0.3)
        assert groups.group().members == {}
        assert state_of(consumer) == "stale"
        assert consumer.health()["run"]["calls_of_lost_partitions"] == 1
        leave.set()
        await until(lambda: len(calls) == 3)
        assert calls == [(0, 0), (0, 0), (0, 1)]


async def test_heartbeats_go_on_while_a_handler_blocks_the_loop() -> None:
    """A coroutine that computes for a minute blocks the event loop, but not the heartbeats (aiokafka#700, faust#231)."""
    blocked = threading.Event()

    async def handle(record: ConsumerRecord) -> None:
        if record.offset == 0:
            time.sleep(1.6)  # noqa: ASYNC251
            blocked.set()

    with scripted_on_a_thread(partitions=1, interval_ms=50) as (cluster, groups):
        async with member(cluster, heartbeat_thread=True) as consumer:
            await until_settled(consumer, 0)
            is_silent, beats = session(groups, 1.2), len(groups.heartbeats)
            task = asyncio.ensure_future(consumer.run(handle))
            await until(blocked.is_set)
            assert len(groups.heartbeats) >= beats + 8
            assert not is_silent()
            await until(lambda: consumer.metrics()["run"]["handled"] == 20)
            assert consumer.metrics()["group"]["partitions_lost"] == 0
            consumer.end_run()
            await task


async def test_commit_after_a_stuck_call_says_why_it_fails() -> None:
    """`CommitFailedError` used to leave programs in the dark (kafka-python#2610)."""
    errors: list[CommitFailed] = []

    async def handle(record: ConsumerRecord) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            try:
                await consumer.commit({P[0]: 1})
            except CommitFailed as e:
                errors.append(e)
            consumer.end_run()

    options = {"max_poll_interval_ms": 200}
    async with cluster_with("a", interval_ms=50) as (cluster, _), running(cluster, handle, options) as (consumer, task):
        await until(lambda: bool(errors))
        await task
    assert "a call of the handler had not returned for 0." in str(errors[0])
    assert "max_poll_interval_ms=200" in str(errors[0])
