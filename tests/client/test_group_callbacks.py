"""The callbacks of `subscribe`: when they are called, with what, and what happens if one is slow or fails."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from passing_time import let_pass
from structlog.testing import capture_logs
from waiting import until

from strandline.client import Consumer, TopicPartition
from strandline.client.errors import ClientClosed, CommitFailed, RebalanceCallbackFailed, UsageError

from .group_world import P0, P1, member, poll_until_settled, read, scripted, state_of, until_settled
from .scripted import ScriptedCluster


class Heard:
    """Callbacks that note their calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("assigned", partitions))

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        await asyncio.sleep(0)
        self.calls.append(("revoked", partitions))

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("lost", partitions))

    @property
    def all(self) -> dict[str, Any]:
        return {"on_assigned": self.on_assigned, "on_revoked": self.on_revoked, "on_lost": self.on_lost}


def subscriber(cluster: ScriptedCluster, callbacks: dict[str, Any], **options: object) -> Consumer:
    consumer = member(cluster, **options)
    consumer.subscribe("orders", **callbacks)
    return consumer


async def test_callbacks_are_called_once_for_each_change() -> None:
    heard = Heard()
    async with scripted(partitions=2) as (cluster, groups), subscriber(cluster, heard.all) as consumer:
        await until_settled(consumer, 0, 1)
        groups.rebalance(groups.keys("orders", 1))
        await until_settled(consumer, 1)
        groups.rebalance(groups.keys("orders", 0, 1))
        await until_settled(consumer, 0, 1)
        groups.group().remove([groups.member().member_id])
        await until(lambda: heard.calls[-1] == ("assigned", [P0, P1]))
    assert heard.calls == [
        ("assigned", [P0, P1]),
        ("revoked", [P0]),
        ("assigned", [P0]),
        ("lost", [P0, P1]),
        ("assigned", [P0, P1]),
        ("revoked", [P0, P1]),
    ]


async def test_lost_partitions_are_revoked_ones_without_a_callback_of_their_own() -> None:
    """As in Kafka's Java client: a program that does not handle a loss should not keep its state."""
    heard = Heard()
    callbacks = {"on_assigned": heard.on_assigned, "on_revoked": heard.on_revoked}
    async with scripted(partitions=1) as (cluster, groups), subscriber(cluster, callbacks) as consumer:
        await until_settled(consumer, 0)
        groups.group().remove([groups.member().member_id])
        await until(lambda: len(heard.calls) == 3)
        assert heard.calls == [("assigned", [P0]), ("revoked", [P0]), ("assigned", [P0])]


class Listener:
    """A listener like aiokafka's ConsumerRebalanceListener: one method is a coroutine function, the other is not."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.calls.append(f"revoked {len(revoked)}")

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.calls.append(f"assigned {len(assigned)}")


async def test_listener_objects_are_accepted() -> None:
    listener = Listener()
    async with scripted() as (cluster, _):
        async with subscriber(cluster, {"listener": listener}) as consumer:
            await until_settled(consumer, 0, 1, 2, 3)
        assert listener.calls == ["assigned 4", "revoked 4"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"on_assigned": 5},
        {"listener": object()},
        {"listener": Listener(), "on_lost": print},
        {"pattern": ""},
        {"pattern": 5},
        {"pattern": "\ud800"},
    ],
)
def test_wrong_callbacks_and_patterns_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Consumer(group_id="g").subscribe(**wrong)
    with pytest.raises(UsageError, match="excludes topics by name"):
        Consumer(group_id="g").subscribe("orders", pattern="o.*")


async def test_seek_in_on_assigned_counts() -> None:
    """The case of offsets that are stored elsewhere: no record is returned before the callback has returned, and none before the
    offset that it sought."""
    async with scripted(partitions=2) as (cluster, groups):
        groups.store("orders", 0, 3)
        positions: list[int] = []

        async def on_assigned(partitions: list[TopicPartition]) -> None:
            await asyncio.sleep(0.05)
            positions.extend([await consumer.position(tp) for tp in partitions])
            consumer.seek(P1, 15)

        consumer = subscriber(cluster, {"on_assigned": on_assigned})
        async with consumer:
            assert await read(consumer, 22) == {0: list(range(3, 20)), 1: list(range(15, 20))}
        assert positions == [3, 0]


async def test_commit_in_on_revoked_counts() -> None:
    async with scripted(partitions=2) as (cluster, groups):

        async def on_revoked(partitions: list[TopicPartition]) -> None:
            await consumer.commit({tp: (await consumer.position(tp), "mine") for tp in partitions})

        consumer = subscriber(cluster, {"on_revoked": on_revoked}, enable_auto_commit=False)
        async with consumer:
            await read(consumer, 40)
            groups.rebalance(groups.keys("orders", 0))
            await poll_until_settled(consumer, 0)
            assert groups.committed["g"][cluster.topics["orders"], 1].metadata == "mine"
            assert groups.offset("orders", 0) is None
        assert groups.offset("orders", 0) == 20, "also while it is being stopped"


async def test_automatic_commit_comes_before_on_revoked() -> None:
    async with scripted(partitions=1) as (cluster, groups):
        found: list[int | None] = []
        async with subscriber(cluster, {"on_revoked": lambda tps: found.append(groups.offset("orders"))}) as consumer:
            await read(consumer, 20)
        assert found == [20]


async def test_revocation_behind_a_slow_on_assigned_is_reported_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator's time limit runs from the heartbeat response that asked for the partitions. A member that takes longer is
    removed, and goes on reading its other partitions until it is notified."""

    end = asyncio.Event()

    async def never_ends(partitions: list[TopicPartition]) -> None:
        await end.wait()

    callbacks = {"on_assigned": never_ends, "on_revoked": never_ends}
    async with (
        scripted(partitions=2, interval_ms=50) as (cluster, groups),
        subscriber(cluster, callbacks, rebalance_timeout_ms=60_000),
    ):
        await until(lambda: groups.owned() == [[0, 1]])
        groups.rebalance(groups.keys("orders", 1))
        await until(lambda: groups.member().revoking)
        passed_ms = 0
        while groups.member().revoking:
            heard = len(groups.heartbeats)
            let_pass(monkeypatch, 2_000)
            passed_ms += 2_000
            await until(lambda heard=heard: len(groups.heartbeats) > heard)
        assert 20_000 < passed_ms < 60_000
        end.set()


async def test_slow_callback_is_cut_off_in_time() -> None:
    """The coordinator removes a member that does not give up its partitions in time, and it would lose all of them."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def on_revoked(partitions: list[TopicPartition]) -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    async with (
        scripted(partitions=2) as (cluster, groups),
        subscriber(cluster, {"on_revoked": on_revoked}, rebalance_timeout_ms=500) as consumer,
    ):
        await until_settled(consumer, 0, 1)
        started = time.monotonic()
        with capture_logs() as logs:
            groups.rebalance(groups.keys("orders", 0))
            await until_settled(consumer, 0)
        assert 0.3 < time.monotonic() - started < 3
        assert began.is_set()
        await until(ended.is_set)
        assert consumer.metrics()["group"]["callbacks_cut_off"] == 1
        (line,) = [line for line in logs if line["event"] == "consumer.callback_cut_off"]
        assert line["callback"] == "on_revoked"
        assert groups.owned() == [[0]]


async def test_callback_that_resists_its_cancellation_is_not_waited_for() -> None:
    async def on_revoked(partitions: list[TopicPartition]) -> None:
        for _ in range(8):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue

    async with (
        scripted(partitions=2) as (cluster, groups),
        subscriber(cluster, {"on_revoked": on_revoked}, rebalance_timeout_ms=200) as consumer,
    ):
        await until_settled(consumer, 0, 1)
        groups.rebalance(groups.keys("orders", 0))
        await until_settled(consumer, 0)


async def test_heartbeats_go_on_while_a_callback_takes_long() -> None:
    async with scripted(partitions=2, interval_ms=20) as (cluster, groups):
        released = asyncio.Event()
        async with subscriber(cluster, {"on_revoked": lambda tps: released.wait()}) as consumer:
            await until_settled(consumer, 0, 1)
            groups.rebalance(groups.keys("orders", 0))
            await until(lambda: state_of(consumer) == "reconciling")
            beats = len(groups.heartbeats)
            await until(lambda: len(groups.heartbeats) > beats + 5)
            assert groups.owned() == [[0, 1]]
            released.set()
            await until_settled(consumer, 0)


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_error_of_a_callback_is_raised_once(is_coroutine: bool) -> None:
    """The rebalance continues, because other members wait for it."""

    def fail(partitions: list[TopicPartition]) -> None:
        raise ValueError("no such table")

    async def fail_late(partitions: list[TopicPartition]) -> None:
        await asyncio.sleep(0)
        fail(partitions)

    async with (
        scripted(partitions=1) as (cluster, _),
        subscriber(cluster, {"on_assigned": fail_late if is_coroutine else fail}) as consumer,
    ):
        with pytest.raises(RebalanceCallbackFailed, match="on_assigned has raised ValueError: no such table") as raised:
            await consumer.getone(timeout_ms=3000)
        assert isinstance(raised.value.__cause__, ValueError)
        assert await read(consumer, 20) == {0: list(range(20))}
        assert consumer.metrics()["group"]["callbacks_failed"] == 1


async def test_tenure_that_ends_during_a_callback_loses_what_is_left() -> None:
    """The partition that is being revoked counts as revoked, the other as lost; neither as both."""
    heard, going = Heard(), asyncio.Event()

    async def on_revoked(partitions: list[TopicPartition]) -> None:
        heard.calls.append(("revoked", partitions))
        going.set()
        await asyncio.sleep(0.3)

    async with scripted(partitions=2) as (cluster, groups):
        callbacks = {**heard.all, "on_revoked": on_revoked}
        async with subscriber(cluster, callbacks) as consumer:
            await until_settled(consumer, 0, 1)
            groups.rebalance(groups.keys("orders", 0))
            await going.wait()
            groups.group().remove([groups.member().member_id])
            await until(lambda: len(heard.calls) == 4)
            assert heard.calls == [("assigned", [P0, P1]), ("revoked", [P1]), ("lost", [P0]), ("assigned", [P0, P1])]
            heard.calls.clear()


async def test_lost_partitions_cannot_be_committed_in_on_lost() -> None:
    errors: list[BaseException] = []

    async def on_lost(partitions: list[TopicPartition]) -> None:
        try:
            await consumer.commit(dict.fromkeys(partitions, 5))
        except CommitFailed as e:
            errors.append(e)

    async with scripted(partitions=1) as (cluster, groups):
        consumer = subscriber(cluster, {"on_lost": on_lost})
        async with consumer:
            await until_settled(consumer, 0)
            groups.group().remove([groups.member().member_id])
            await until(lambda: errors)
            assert groups.commits == []


async def test_stop_in_a_callback_ends() -> None:
    async def on_assigned(partitions: list[TopicPartition]) -> None:
        await consumer.stop(timeout_ms=200)

    async with scripted(partitions=1) as (cluster, _):
        consumer = subscriber(cluster, {"on_assigned": on_assigned})
        await consumer.start()
        with pytest.raises(ClientClosed):
            await consumer.getone(timeout_ms=5000)
        await until(lambda: consumer.health()["state"] == "stopped")
