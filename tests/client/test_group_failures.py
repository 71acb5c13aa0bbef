"""Failures around a member of a group: coordinators that move, hang or are missing, members that are removed, programs that block
their loop or stop calling, and tasks that are cancelled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
import uvloop
from structlog.testing import capture_logs
from waiting import until

from strandline.client import Consumer, TopicPartition
from strandline.client.consumer.group import heartbeat_thread
from strandline.client.errors import ClientClosed, GroupMembershipFailed, RequestTimeout
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OffsetFetchRequest,
)
from strandline.testing.simulation.kernel.loop import NodeLoop

from .group_world import P0, member, read, scripted, scripted_on_a_thread, state_of, until_settled
from .scripted_groups import ScriptedGroups
from .test_consumer import fill

WITH_AND_WITHOUT_THREAD = pytest.mark.parametrize("heartbeat_thread", [False, True])


def heartbeats_are(fate: str) -> Callable[[Message], str]:
    return lambda request: fate if isinstance(request, ConsumerGroupHeartbeatRequest) else "ok"


def refuse_heartbeats(groups: ScriptedGroups, code: ErrorCode) -> None:
    """Answer heartbeats with this error, as the coordinator does: in the response."""
    groups.group().heartbeat = lambda request, now=0.0: ConsumerGroupHeartbeatResponse(code, "because")  # type: ignore[method-assign]


# -- coordinators ------------------------------------------------------------------------------------------------------


@WITH_AND_WITHOUT_THREAD
async def test_member_follows_its_coordinator(heartbeat_thread: bool) -> None:
    """The member keeps its partitions and its epoch, and commits to the new coordinator."""
    async with scripted() as (cluster, groups), member(cluster, heartbeat_thread=heartbeat_thread) as consumer:
        await until_settled(consumer, 0, 1, 2, 3)
        epoch, rebalances = groups.member().epoch, consumer.metrics()["group"]["rebalances"]
        for coordinator in (2, 3):
            groups.coordinator = coordinator
            await until(lambda c=coordinator: consumer.health()["group"]["coordinator"] == c)
            await consumer.commit({P0: coordinator})
        assert groups.offset("orders") == 3
        assert (groups.member().epoch, consumer.metrics()["group"]["rebalances"]) == (epoch, rebalances)


async def test_member_waits_while_the_coordinator_loads_its_groups() -> None:
    async with scripted() as (cluster, groups):
        groups.fate = heartbeats_are("COORDINATOR_LOAD_IN_PROGRESS")
        async with member(cluster) as consumer:
            await until(lambda: consumer.metrics()["group"]["heartbeat_failures"] >= 3)
            health = consumer.health()
            assert (health["state"], state_of(consumer)) == ("degraded", "joining")
            assert "COORDINATOR_LOAD_IN_PROGRESS" in health["group"]["last_heartbeat_error"]
            groups.fate = lambda request: "ok"
            await until_settled(consumer, 0, 1, 2, 3)
            assert consumer.health()["state"] == "ok"


@WITH_AND_WITHOUT_THREAD
async def test_nothing_hangs_without_a_coordinator(heartbeat_thread: bool) -> None:
    """Every wait ends at its own limit, and the health says why (aiokafka#1101)."""
    async with scripted() as (cluster, groups):
        groups.coordinator = -1
        consumer = member(cluster, heartbeat_thread=heartbeat_thread)
        await consumer.start()
        assert await consumer.getmany(timeout_ms=300) == {}
        assert "there is none" in consumer.health()["group"]["last_heartbeat_error"]
        started = time.monotonic()
        await consumer.stop(timeout_ms=500)
        assert time.monotonic() - started < 2


async def test_member_asks_others_when_its_coordinator_dies() -> None:
    async with scripted() as (cluster, groups):
        groups.coordinator = 2
        async with member(cluster) as consumer:
            await until_settled(consumer, 0, 1, 2, 3)
            groups.coordinator = 3
            await cluster.brokers[2].stop()
            beats = len(groups.heartbeats)
            await until(lambda: len(groups.heartbeats) > beats + 2)
            assert consumer.metrics()["group"]["partitions_lost"] == 0


async def test_silent_coordinator_is_replaced_within_an_interval_or_two() -> None:
    """A paused process keeps its connections open. Another broker has become the coordinator."""
    async with scripted() as (cluster, groups):
        groups.coordinator = 2
        async with member(cluster) as consumer:
            await until_settled(consumer, 0, 1, 2, 3)
            cluster.brokers[2].fall_silent()
            groups.coordinator = 3
            await until(lambda: consumer.health()["group"]["coordinator"] == 3)
            await until_settled(consumer, 0, 1, 2, 3)
            cluster.brokers[2].answer_late()


async def test_heartbeat_follows_a_lost_connection_at_once() -> None:
    """This heartbeat may be all that the coordinator waits for, because the member has promised to return at once."""
    async with scripted(interval_ms=60_000) as (cluster, groups), member(cluster) as consumer:
        await until_settled(consumer, 0, 1, 2, 3)
        beats = len(groups.heartbeats)
        cluster.brokers[1].cut_connections()
        await until(lambda: len(groups.heartbeats) > beats)
        assert groups.connections[-1] != groups.connections[beats - 1]
        assert groups.heartbeats[-1].returns_at_once


@pytest.mark.parametrize("fate", ["response lost", "request lost"])
async def test_lost_heartbeat_costs_no_partition(fate: str) -> None:
    async with scripted() as (cluster, groups), member(cluster) as consumer:
        await until_settled(consumer, 0, 1, 2, 3)
        fates = iter([fate, fate])
        groups.fate = lambda request: next(fates, "ok") if isinstance(request, ConsumerGroupHeartbeatRequest) else "ok"
        groups.rebalance(groups.keys("orders", 0, 1))
        await until_settled(consumer, 0, 1)
        assert consumer.metrics()["group"]["partitions_lost"] == 0


# -- removed members ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND])
async def test_removed_member_joins_again_and_reads_on_from_the_commit(code: ErrorCode) -> None:
    """In aiokafka#847, the consumer was stuck after that."""
    lost: list[TopicPartition] = []
    async with scripted(partitions=1) as (cluster, groups), member(cluster) as consumer:
        consumer.subscribe("orders", on_lost=lost.extend)
        await read(consumer, 20)
        groups.store("orders", 0, 12)
        group = groups.group()
        once = iter([code])
        heartbeat = group.heartbeat

        def refuse_once(request: ConsumerGroupHeartbeatRequest, now: float = 0.0) -> ConsumerGroupHeartbeatResponse:
            refused = next(once, None)
            if refused is None:
                return heartbeat(request, now)
            group.remove(list(group.members))
            return ConsumerGroupHeartbeatResponse(refused, "because")

        group.heartbeat = refuse_once  # type: ignore[method-assign]
        assert await read(consumer, 8) == {0: list(range(12, 20))}
        assert lost == [P0]
        assert consumer.metrics()["group"]["partitions_lost"] == 1


FATAL = [
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.UNSUPPORTED_ASSIGNOR,
    ErrorCode.UNRELEASED_INSTANCE_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.INVALID_REGULAR_EXPRESSION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ErrorCode.UNSUPPORTED_VERSION,
]


@pytest.mark.parametrize("code", FATAL)
async def test_refused_member_fails_each_call_that_returns_records(code: ErrorCode) -> None:
    """In aiokafka#1188, the consumer tried forever, and the program got no error."""
    async with scripted() as (cluster, groups):
        refuse_heartbeats(groups, code)
        async with member(cluster) as consumer:
            waiting = asyncio.create_task(anext(aiter(consumer)))
            for call in (consumer.getone(), waiting, consumer.getmany(timeout_ms=5000), consumer.fetch_batches()):
                with pytest.raises(GroupMembershipFailed, match="refuses the member: because") as raised:
                    await call
                assert raised.value.code == code
            health = consumer.health()
            assert (health["state"], health["group"]["state"]) == ("failed", "failed")
            assert "refuses the member" in health["group"]["error"]


async def test_refused_member_loses_its_partitions_and_may_subscribe_again() -> None:
    lost: list[TopicPartition] = []
    async with scripted(partitions=1) as (cluster, groups), member(cluster) as consumer:
        consumer.subscribe("orders", on_lost=lost.extend)
        await until_settled(consumer, 0)
        heartbeat = groups.group().heartbeat
        refuse_heartbeats(groups, ErrorCode.INVALID_REGULAR_EXPRESSION)
        with pytest.raises(GroupMembershipFailed):
            await read(consumer, 21)
        await until(lambda: lost == [P0])
        assert consumer.assignment() == set()
        groups.group().heartbeat = heartbeat  # type: ignore[method-assign]
        consumer.subscribe("orders")
        await until(lambda: len(consumer.assignment()) == 1)
        fill(cluster, "orders", 5, first=20)
        assert await read(consumer, 5)


# -- a membership in doubt ---------------------------------------------------------------------------------------------


@WITH_AND_WITHOUT_THREAD
async def test_no_record_is_returned_while_the_membership_is_in_doubt(heartbeat_thread: bool) -> None:
    """If a member sends no heartbeat for a session, another member may have the partitions, and read them."""
    async with (
        scripted(partitions=1, records=300) as (cluster, groups),
        member(cluster, heartbeat_thread=heartbeat_thread) as consumer,
    ):
        assert len((await consumer.getmany(timeout_ms=3000, max_records=5))[P0]) == 5
        await until_settled(consumer, 0)
        with capture_logs() as logs:
            groups.fate = heartbeats_are("COORDINATOR_LOAD_IN_PROGRESS")
            await until(lambda: state_of(consumer) == "suspended")
            assert await consumer.getmany(timeout_ms=50) == {}
            assert consumer.assignment() == {P0}, "they may still be its own"
            assert consumer.health()["state"] == "degraded"
            groups.fate = lambda request: "ok"
            assert (await consumer.getmany(timeout_ms=3000, max_records=1))[P0][0].offset == 5, "nothing was lost"
        events = [line["event"] for line in logs]
        assert [event for event in events if "reading" in event] == ["consumer.reading_suspended", "consumer.reading_resumed"]


async def test_process_that_was_paused_returns_nothing_before_it_is_sure() -> None:
    """As after SIGSTOP: the loop did not run for longer than a session, and neither did the heartbeats."""
    async with scripted(partitions=1, records=300) as (cluster, groups), member(cluster) as consumer:
        assert len((await consumer.getmany(timeout_ms=3000, max_records=5))[P0]) == 5
        await until_settled(consumer, 0)
        groups.group().remove([groups.member().member_id])
        time.sleep(0.4)  # noqa: ASYNC251
        groups.store("orders", 0, 100)
        assert (await consumer.getmany(timeout_ms=3000, max_records=1))[P0][0].offset == 100


async def test_process_that_was_paused_in_a_call_returns_nothing_before_it_is_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call waited for records, and they were ready when the process continued, before the loop has noticed how late it is."""
    async with scripted(partitions=1, records=300) as (cluster, groups), member(cluster) as consumer:
        assert len((await consumer.getmany(timeout_ms=3000, max_records=5))[P0]) == 5
        await until_settled(consumer, 0)
        consumer.pause(P0)

        async def paused(deadline: float | None) -> bool:
            monkeypatch.undo()
            consumer.resume(P0)
            groups.group().remove([groups.member().member_id])
            groups.store("orders", 0, 100)
            time.sleep(0.4)  # noqa: ASYNC251
            return True

        monkeypatch.setattr(consumer._fetcher, "wait", paused)
        assert (await consumer.getmany(timeout_ms=3000, max_records=1))[P0][0].offset == 100


# -- programs that block, and programs that stop calling ----------------------------------------------------------------------


def block(seconds: float) -> None:
    """Block the loop, as a handler does that computes, or calls a blocking library."""
    time.sleep(seconds)


def session(groups: ScriptedGroups, seconds: float) -> Callable[[], bool]:
    """Returns a predicate: whether the heartbeats have ever paused for longer than `seconds`, up to now."""
    heard = [time.monotonic()]
    silent = [0.0]
    heartbeat = groups.group().heartbeat

    def hear(request: ConsumerGroupHeartbeatRequest, now: float = 0.0) -> ConsumerGroupHeartbeatResponse:
        silent[0] = max(silent[0], time.monotonic() - heard[0])
        heard[0] = time.monotonic()
        return heartbeat(request, now)

    groups.group().heartbeat = hear  # type: ignore[method-assign]
    return lambda: max(silent[0], time.monotonic() - heard[0]) > seconds


async def test_heartbeats_go_on_while_the_program_blocks_its_loop() -> None:
    """In aiokafka#700 and faust#231, the coordinator removed a member in the middle of its work."""
    with scripted_on_a_thread(partitions=1, interval_ms=50) as (cluster, groups):
        async with member(cluster, heartbeat_thread=True) as consumer:
            await until_settled(consumer, 0)
            is_silent = session(groups, 1.2)
            beats = len(groups.heartbeats)
            block(1.6)
            assert len(groups.heartbeats) >= beats + 8
            assert not is_silent()
            assert await read(consumer, 20) == {0: list(range(20))}
            assert consumer.metrics()["group"]["partitions_lost"] == 0


async def test_without_the_thread_they_stop() -> None:
    with scripted_on_a_thread(partitions=1, interval_ms=50) as (cluster, groups):
        async with member(cluster, heartbeat_thread=False) as consumer:
            await until_settled(consumer, 0)
            is_silent = session(groups, 0.6)
            block(1.2)
            assert is_silent()


async def test_rebalance_waits_for_a_program_that_blocks_its_loop() -> None:
    """The heartbeat thread has received the new target, and reports the partitions as owned until the program can give them
    up."""
    with scripted_on_a_thread(partitions=2, interval_ms=50) as (cluster, groups):
        async with member(cluster, heartbeat_thread=True) as consumer:
            await until_settled(consumer, 0, 1)
            groups.rebalance(groups.keys("orders", 0))
            block(0.5)
            assert groups.owned() == [[0, 1]]
            await until_settled(consumer, 0)
            assert groups.owned() == [[0]]


async def test_blocked_loop_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_thread, "BLOCKED_S", 0.3)
    with scripted_on_a_thread(partitions=1, interval_ms=50) as (cluster, _):
        async with member(cluster, heartbeat_thread=True) as consumer:
            await until_settled(consumer, 0)
            with capture_logs() as logs:
                block(1.0)
            assert [line["event"] for line in logs] == ["consumer.event_loop_blocked"]
            await until(lambda: consumer.metrics()["group"]["event_loop_lag_ms"] < 100)


@WITH_AND_WITHOUT_THREAD
async def test_program_that_does_not_come_back_leaves_the_group(heartbeat_thread: bool) -> None:
    """It joins again when it asks for records, and gets the records that it had not finished."""
    lost: list[TopicPartition] = []
    options = {"heartbeat_thread": heartbeat_thread, "max_poll_interval_ms": 300, "max_poll_records": 10}
    async with scripted(partitions=1) as (cluster, groups), member(cluster, **options) as consumer:
        consumer.subscribe("orders", on_lost=lost.extend)
        await read(consumer, 20)
        with capture_logs() as logs:
            await until(lambda: not groups.group().members)
        (line,) = [line for line in logs if line["event"] == "consumer.poll_interval_exceeded"]
        assert 300 <= line["gap_ms"] < 900
        assert line["max_poll_interval_ms"] == 300
        await until(lambda: lost == [P0])
        assert state_of(consumer) == "stale"
        groups.store("orders", 0, 10)
        assert await read(consumer, 10) == {0: list(range(10, 20))}


async def test_program_that_blocks_its_loop_for_too_long_leaves_the_group() -> None:
    """A handler that hangs must not keep its partitions forever."""
    with scripted_on_a_thread(partitions=1, interval_ms=50) as (cluster, groups):
        async with member(cluster, heartbeat_thread=True, max_poll_interval_ms=400) as consumer:
            await until_settled(consumer, 0)
            block(1.0)
            assert groups.heartbeats[-1].member_epoch == -1
            assert groups.group().members == {}


@pytest.mark.parametrize("way", ["waits", "getone", "async for", "asks often"])
async def test_program_that_reads_stays_a_member(way: str) -> None:
    """A call that waits, and each record of a loop, is a sign of life."""
    async with (
        scripted(partitions=1, interval_ms=20) as (cluster, groups),
        member(cluster, max_poll_interval_ms=1000, auto_offset_reset="earliest") as consumer,
    ):
        joined = len([h for h in groups.heartbeats if h.member_epoch == 0])
        deadline = time.monotonic() + 1.2
        if way == "waits":
            await read(consumer, 20)
            await consumer.getmany(timeout_ms=1200)
        elif way == "async for":
            async for _ in consumer:
                await asyncio.sleep(0.06)
                if time.monotonic() > deadline:
                    break
        while time.monotonic() < deadline:
            await (consumer.getone(timeout_ms=3000) if way == "getone" else consumer.getmany())
            await asyncio.sleep(0.06)
        await until_settled(consumer, 0)
        assert all(h.member_epoch >= 0 for h in groups.heartbeats)
        assert joined <= 1


# -- tasks that are cancelled --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rebalance", "auto commit"])
async def test_cancelled_background_task_fails_the_consumer(name: str) -> None:
    """In aiokafka#1039, a test framework cancels all tasks, and the consumer silently stops."""
    async with scripted() as (cluster, groups):
        consumer = member(cluster)
        await consumer.start()
        await until_settled(consumer, 0, 1, 2, 3)
        waiting = asyncio.create_task(anext(aiter(consumer)))
        await waiting
        waiting = asyncio.create_task(consumer.getmany(P0, timeout_ms=60_000))
        await waiting
        waiting = asyncio.create_task(consumer.getmany(P0, timeout_ms=60_000))
        await asyncio.sleep(0)
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == name]
        task.cancel()
        text = f"the background task '{name}' has ended: it was cancelled from outside"
        for call in (waiting, consumer.getone(), consumer.getmany(timeout_ms=60_000)):
            with pytest.raises(GroupMembershipFailed, match=text):
                await call
        assert consumer.health()["state"] == "failed"
        await until(lambda: not groups.group().members)
        async with asyncio.timeout(5):
            await consumer.stop()


async def test_cancelled_heartbeats_fail_the_consumer() -> None:
    async with scripted() as (cluster, _):
        consumer = member(cluster)
        await consumer.start()
        await until_settled(consumer, 0, 1, 2, 3)
        others = {asyncio.current_task()}
        for task in asyncio.all_tasks() - others:
            if "Heartbeats.run" in repr(task):
                task.cancel()
        with pytest.raises(GroupMembershipFailed, match="the heartbeats have ended: it was cancelled"):
            await read(consumer, 81)
        async with asyncio.timeout(5):
            await consumer.stop()


async def test_program_that_cancels_every_task_can_stop_its_consumer() -> None:
    async with scripted() as (cluster, _):
        consumer = member(cluster)
        await consumer.start()
        await until_settled(consumer, 0, 1, 2, 3)
        others = {asyncio.current_task()}
        for task in asyncio.all_tasks() - others:
            if "Consumer" in repr(task) or "group" in repr(task):
                task.cancel()
        with pytest.raises(GroupMembershipFailed):
            await read(consumer, 81)
        async with asyncio.timeout(5):
            await consumer.stop(timeout_ms=500)


async def test_cancelled_stop_still_ends_everything() -> None:
    async with scripted() as (cluster, groups):
        consumer = member(cluster, heartbeat_thread=True)
        await consumer.start()
        await until_settled(consumer, 0, 1, 2, 3)
        groups.fate = lambda request: "silence"
        stopping = asyncio.create_task(consumer.stop())
        await asyncio.sleep(0.1)
        stopping.cancel()
        await asyncio.wait([stopping], timeout=5)
        assert stopping.done()
        assert consumer.health()["state"] == "stopped"
        await until(lambda: not any(thread.name == "heartbeats of g" for thread in threading.enumerate()))
        groups.fate = lambda request: "ok"
        cluster.brokers[1].answer_late()


def test_simulated_loops_get_no_thread() -> None:
    """Simulated loops run on virtual time, and a thread's work could not be repeated from a seed."""
    assert not heartbeat_thread.may_use_threads(object.__new__(NodeLoop))
    for loop in (asyncio.new_event_loop(), uvloop.new_event_loop()):
        assert heartbeat_thread.may_use_threads(loop)
        loop.close()


async def test_stopping_ends_the_thread() -> None:
    async with scripted() as (cluster, _):
        async with member(cluster, heartbeat_thread=True) as consumer:
            await until_settled(consumer, 0, 1, 2, 3)
            assert any(thread.name == "heartbeats of g" for thread in threading.enumerate())
        await until(lambda: not any(thread.name == "heartbeats of g" for thread in threading.enumerate()))


def test_program_that_forgets_to_stop_ends_with_its_loop() -> None:
    """`asyncio.run` ends the loop, and the thread must not keep the partitions, nor the process alive."""
    with scripted_on_a_thread(partitions=1, interval_ms=50) as (cluster, groups):

        async def forgetful() -> None:
            consumer = member(cluster, heartbeat_thread=True)
            await consumer.start()
            await until_settled(consumer, 0)

        asyncio.run(forgetful())
        beats = len(groups.heartbeats)
        deadline = time.monotonic() + 5
        while any(thread.name == "heartbeats of g" for thread in threading.enumerate()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(groups.heartbeats) <= beats + 2


async def test_consumer_that_stops_while_it_takes_partitions_leaves() -> None:
    """The response with the committed offsets arrived when it was no longer needed, and used to end the task that leaves the
    group."""
    async with scripted() as (cluster, groups):
        groups.fate = lambda request: "late" if isinstance(request, OffsetFetchRequest) else "ok"
        consumer = member(cluster)
        await consumer.start()
        await until(lambda: groups.late)
        stopping = asyncio.create_task(consumer.stop())
        groups.answer_late()
        async with asyncio.timeout(5):
            await stopping
        assert groups.group().members == {}


async def test_failed_look_up_leaves_nothing_assigned_by_hand() -> None:
    """If the partition stayed assigned, a second `assign` would take it for one that is read already."""
    async with scripted() as (cluster, groups):
        groups.coordinator = -1
        options = {"bootstrap_servers": cluster.bootstrap, "group_id": "g", "auto_offset_reset": "earliest"}
        async with Consumer(**options, max_block_ms=300, retry_backoff_ms=10) as consumer:
            with pytest.raises(RequestTimeout, match="committed offsets were not answered"):
                await consumer.assign([P0])
            assert consumer.assignment() == set()
            groups.coordinator = 1
            await consumer.assign([P0])
            assert await read(consumer, 20) == {0: list(range(20))}


async def test_calls_after_stop_say_so() -> None:
    async with scripted() as (cluster, _):
        async with member(cluster) as consumer:
            await until_settled(consumer, 0, 1, 2, 3)
        for call in (consumer.getone(), consumer.commit(), consumer.committed(P0)):
            with pytest.raises(ClientClosed):
                await call


async def test_call_that_waits_for_records_ends_when_the_consumer_stops() -> None:
    async with scripted() as (cluster, _):
        async with member(cluster) as consumer:
            await read(consumer, 80)
            waiting = asyncio.create_task(consumer.getone())
            await asyncio.sleep(0)
        with pytest.raises(ClientClosed):
            await waiting
