"""A broker's log lines: they name the whole position, and an action that fails repeatedly has no line per attempt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from replica_world import P, ReplicaWorld
from structlog.testing import capture_logs

from strandline.broker.replication import fetcher_shell
from strandline.broker.replication.fetcher import FetcherCore, FetcherSettings
from strandline.broker.replication.fetcher_shell import Fetcher
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import FetchPartitionResponse, FetchResponse
from strandline.storage.disk import DiskError

POSITION = {
    "topic", "partition", "leader_epoch", "partition_epoch", "log_start_offset", "high_watermark", "log_end_offset",
}  # fmt: skip


def raise_it(error: DiskError) -> None:
    raise error


def core_of(world: ReplicaWorld, follower: int) -> FetcherCore:
    core = FetcherCore(broker_id=follower, broker_epoch=lambda: 1, settings=FetcherSettings(), on_disk_error=raise_it)
    core.add(world[follower].p)
    return core


def named(lines: list[Any], event: str) -> list[Any]:
    return [line for line in lines if line["event"] == event]


def test_roles_and_isr_changes_are_logged_with_the_whole_position() -> None:
    world = ReplicaWorld()
    with capture_logs() as lines:
        world.topic(epoch=3)
        world[1].produce("a", acks=1)
        world.elect(2, isr=(2, 3))
        world.set_isr(1, 2, 3, at=(2,))
    assert set(world[1].p.fields) == POSITION
    about_one = [line for line in lines if line["event"].startswith(("partition.", "isr."))]
    assert all(line.keys() >= POSITION for line in about_one)
    led = [(line["leader_epoch"], line["epoch_start_offset"], line["isr"]) for line in named(lines, "partition.became_leader")]
    assert led == [(3, 0, [1, 2, 3]), (4, 0, [2, 3])]
    assert {line["min_insync_replicas"] for line in named(lines, "partition.became_leader")} == {world[1].p.min_insync_replicas}
    [follows] = [line for line in named(lines, "partition.became_follower") if line["log_end_offset"] == 1]
    assert (follows["leader_id"], follows["leader_epoch"], follows["high_watermark"]) == (2, 4, 0)
    assert named(lines, "isr.committed")[-1]["isr"] == [1, 2, 3]


def test_a_steady_state_writes_nothing() -> None:
    """There is no line per request, per fetch or per tick."""
    world = ReplicaWorld()
    world.topic()
    world.replicate(2, 1)
    with capture_logs() as lines:
        for n in range(20):
            world[1].produce(f"v{n}", acks=1)
            world.replicate(2, 1)
            world.replicate(3, 1)
            world[1].manager.maybe_shrink_isrs()
    assert lines == []


def test_a_delta_with_very_many_partitions_is_logged_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each of ten thousand partitions would block the event loop for half a second."""
    monkeypatch.setattr("strandline.broker.metadata_applier.ROLE_LINES_MAX", 0)
    world = ReplicaWorld()
    with capture_logs() as lines:
        world.topic()
    assert named(lines, "metadata.applied")
    assert not named(lines, "partition.became_leader")


def test_a_partition_that_the_leader_refuses_for_minutes_has_one_line_a_minute() -> None:
    world = ReplicaWorld()
    world.topic(epoch=1)
    core, now = core_of(world, 2), 0.0
    asked = 0
    with capture_logs() as lines:
        while now < 150:
            plan = core.plan(now)
            if plan is not None:
                asked += 1
                refused = FetchPartitionResponse(P[0], P[1], ErrorCode.NOT_LEADER_OR_FOLLOWER)
                core.on_response(plan, FetchResponse(0, 0, 7, [refused], [memoryview(b"")]), now)
            now += 0.01
    assert asked > 140
    delayed = named(lines, "fetcher.partition_delayed")
    assert len(delayed) == 3
    assert delayed[1]["suppressed"] > 50
    assert set(delayed[0]) >= POSITION | {"error", "attempts"}


def test_a_fetch_that_is_always_refused_is_logged_once_a_minute() -> None:
    world = ReplicaWorld()
    world.topic(epoch=1)
    core, now = core_of(world, 2), 0.0
    with capture_logs() as lines:
        while now < 90:
            plan = core.plan(now)
            if plan is not None:
                core.on_failure(plan, ErrorCode.UNKNOWN_SERVER_ERROR, now)
            now += 0.01
    assert len(named(lines, "fetcher.session_lost")) == 2


async def test_a_leader_that_is_down_has_no_line_per_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher_shell, "RECONNECT_BACKOFF_MS", 1)
    monkeypatch.setattr(fetcher_shell, "RECONNECT_BACKOFF_MS_MAX", 1)
    world = ReplicaWorld()
    world.topic(epoch=1)
    attempts, enough = 0, asyncio.Event()

    async def connect(on_lost: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts == 100:
            enough.set()
        raise BrokerError(ErrorCode.NETWORK_EXCEPTION, "could not connect to broker-1:9092: Connection refused")

    core = core_of(world, 2)
    fetcher = Fetcher(leader_id=1, broker_id=2, core=core, connect=connect, on_progress=lambda keys: None)
    with capture_logs() as lines:
        fetcher.add(world[2].p)
        await asyncio.wait_for(enough.wait(), 10)
    fetcher.close()
    assert [line["event"] for line in lines] == ["fetcher.connect_failed"]
    assert lines[0]["leader_id"] == 1


def test_a_member_that_falls_behind_is_logged_with_its_lag() -> None:
    world = ReplicaWorld()
    world.topic()
    world[1].produce("a", acks=1)
    world.loop.advance(60)
    with capture_logs() as lines:
        world[1].manager.maybe_shrink_isrs()
    lags = named(lines, "isr.member_lagged")
    assert [(line["broker_id"], line["fetch_offset"]) for line in lags] == [(2, -1), (3, -1)]
    assert all(line["behind_ms"] == 60_000 for line in lags)
    assert named(lines, "isr.proposed")[0]["proposed_isr"] == [1]
