"""Which replica a consumer reads from (KIP-392): when it follows a nomination, and when it returns to the leader."""

from __future__ import annotations

import asyncio
import inspect
from itertools import pairwise

import pytest
from waiting import until

from strandline.client import Consumer, OffsetOutOfRange
from strandline.client.consumer import fetcher, preferred_replicas
from strandline.client.consumer.preferred_replicas import CONNECT_S, LEADER, LEADER_ONLY_S_MAX, PreferredReplicas
from strandline.protocol.apis import FETCH
from strandline.protocol.errors import ErrorCode
from strandline.protocol.rpc.server import ServerRequest

from .scripted import ScriptedCluster
from .test_consumer import ORDERS, earliest, fill, read

P, Q = ("orders", 0), ("orders", 1)


def choices() -> PreferredReplicas[tuple[str, int]]:
    """Choices that are valid for 300 s, with a first pause of 0.1 s."""
    return PreferredReplicas(300.0, 0.1)


# -- the core ---------------------------------------------------------------------------------------------------------


def test_leader_is_read_until_it_names_a_replica() -> None:
    preferred = choices()
    assert (bool(preferred), preferred.replica(P), preferred.is_leader_only(P, 0.0)) == (False, LEADER, False)
    preferred.choose(P, 2, 0.0, refreshes=1)
    assert (bool(preferred), preferred.replica(P), preferred.replica(Q)) == (True, 2, LEADER)


def test_choice_expires_with_the_metadata() -> None:
    preferred = choices()
    preferred.choose(P, 2, 10.0, refreshes=1)
    assert preferred.expired(309.9) == []
    assert preferred.expired(310.0) == [P]
    preferred.drop(P)
    assert (preferred.expired(310.0), preferred.replica(P), preferred.is_leader_only(P, 310.0)) == ([], LEADER, False)


def test_pauses_after_failures_double_until_the_limit_and_end_with_records() -> None:
    preferred, now = choices(), 0.0
    for expected in (0.1, 0.2, 0.4):
        preferred.choose(P, 2, now, refreshes=1)
        preferred.fail(P, now)
        assert preferred.replica(P) == LEADER
        assert preferred.is_leader_only(P, now + expected - 0.001)
        assert not preferred.is_leader_only(P, now + expected)
        now += expected
    for _ in range(10):
        preferred.fail(P, now)
    assert preferred.is_leader_only(P, now + LEADER_ONLY_S_MAX - 0.001)
    assert not preferred.is_leader_only(P, now + LEADER_ONLY_S_MAX)
    preferred.choose(P, 2, now, refreshes=1)
    preferred.on_records(P, now)
    preferred.fail(P, now)
    assert not preferred.is_leader_only(P, now + 0.1)


def test_only_metadata_that_is_newer_than_the_choice_counts() -> None:
    preferred = choices()
    preferred.choose(P, 2, 0.0, refreshes=7)
    assert not preferred.is_outdated_by(P, 7)
    assert preferred.is_outdated_by(P, 8)
    preferred.drop(P)
    assert not preferred.is_outdated_by(P, 8)


def test_silent_and_unconnected_replicas_are_noticed() -> None:
    preferred = choices()
    preferred.choose(P, 2, 10.0, refreshes=1)
    assert not preferred.is_overdue(P, 10.0 + CONNECT_S)
    assert preferred.is_overdue(P, 10.1 + CONNECT_S)
    assert not preferred.any_silent_since(9.0)
    preferred.on_records(P, 20.0)
    assert not preferred.any_silent_since(19.0)
    assert preferred.any_silent_since(20.0)
    preferred.forget(P)
    assert not preferred
    assert not preferred.any_silent_since(20.0)


# -- against sockets --------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def patient_consumers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need long to open a connection; a consumer then reads from the leader."""
    if inspect.iscoroutinefunction(request.function):
        monkeypatch.setattr(preferred_replicas, "CONNECT_S", 60.0)


def racked(cluster: ScriptedCluster, **options: object) -> Consumer:
    """A consumer in rack b. The leader, broker 1, sends it to broker 2."""
    cluster.create("orders")
    cluster.partition("orders").nominees["b"] = 2
    cluster.partition("orders").followers.setdefault(2, ErrorCode.NONE)
    fill(cluster, "orders", 20)
    return Consumer(
        "orders", bootstrap_servers=cluster.bootstrap, client_rack="b", **{"auto_offset_reset": "earliest", **options}
    )


def preferred_by(consumer: Consumer) -> int:
    replica = consumer.metrics()["partitions"]["orders-0"]["preferred_read_replica"]
    assert isinstance(replica, int)
    return replica


def rackless(cluster: ScriptedCluster) -> int:
    return sum(not request.rack_id for request in cluster.fetch_requests)


async def test_consumer_reads_from_the_replica_that_the_leader_names() -> None:
    async with ScriptedCluster() as cluster, racked(cluster) as consumer:
        assert await read(consumer, 20) == [b"%d" % n for n in range(20)]
        fill(cluster, "orders", 10, first=20)
        assert len(await read(consumer, 10)) == 10
        assert set(cluster.partition("orders").served_by) == {2}
        assert preferred_by(consumer) == 2
        metrics = consumer.metrics()
        assert metrics["fetched_bytes_from_followers"] == metrics["fetched_bytes"] > 0
        assert rackless(cluster) == 0


async def test_consumer_without_a_rack_reads_from_the_leader() -> None:
    async with ScriptedCluster() as cluster:
        racked(cluster)
        async with earliest(cluster, "orders") as consumer:
            await read(consumer, 20)
            assert set(cluster.partition("orders").served_by) == {1}
            assert preferred_by(consumer) == -1


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR])
async def test_leader_serves_what_the_follower_refuses(code: ErrorCode) -> None:
    """The most important case: a position out of the follower's range is neither reset nor an error, because the follower may
    only be behind."""
    async with ScriptedCluster() as cluster, racked(cluster) as consumer:
        await read(consumer, 20)
        cluster.partition("orders").followers[2] = code
        fill(cluster, "orders", 10, first=20)
        cluster.partition("orders").served_by.clear()
        assert await read(consumer, 10) == [b"%d" % n for n in range(20, 30)]
        assert set(cluster.partition("orders").served_by) == {1}


async def test_follower_that_refuses_again_and_again_is_asked_less_and_less() -> None:
    """The leader nominates the follower each time. Without a pause, each fetch would cost a round of refusals."""
    async with ScriptedCluster() as cluster:
        consumer = racked(cluster, retry_backoff_ms=50, fetch_max_wait_ms=20)
        cluster.partition("orders").followers[2] = ErrorCode.OFFSET_OUT_OF_RANGE
        async with consumer:
            for n in range(20, 60, 10):
                assert len(await read(consumer, 20 if n == 20 else 10)) in (10, 20)
                fill(cluster, "orders", 10, first=n)
            await read(consumer, 10)
            failures = consumer.metrics()["fetch_errors"]
            started = asyncio.get_running_loop().time()
            await consumer.getmany(timeout_ms=1000)
            elapsed_ms = (asyncio.get_running_loop().time() - started) * 1000
            assert consumer.metrics()["fetch_errors"] - failures <= elapsed_ms / 50


async def test_position_that_the_leader_does_not_have_either_is_out_of_range() -> None:
    async with ScriptedCluster() as cluster, racked(cluster, auto_offset_reset="error") as consumer:
        await consumer.assign([ORDERS])
        consumer.seek(ORDERS, 0)
        await read(consumer, 20)
        assert preferred_by(consumer) == 2
        consumer.seek(ORDERS, 99)
        with pytest.raises(OffsetOutOfRange):
            await read(consumer, 1)


async def test_killed_replica_is_replaced_by_the_leader() -> None:
    async with ScriptedCluster() as cluster, racked(cluster) as consumer:
        await read(consumer, 20)
        await cluster.brokers[2].stop()
        fill(cluster, "orders", 10, first=20)
        assert await read(consumer, 10) == [b"%d" % n for n in range(20, 30)]
        assert set(cluster.partition("orders").served_by) == {1, 2}


async def test_hanging_replica_is_replaced_by_the_leader() -> None:
    async with ScriptedCluster() as cluster, racked(cluster) as consumer:
        await read(consumer, 20)
        cluster.brokers[2].fall_silent()
        fill(cluster, "orders", 10, first=20)
        assert len(await read(consumer, 10, within_s=20)) == 10


async def test_throttled_leader_gets_no_extra_fetch() -> None:
    """A client must send a broker nothing that throttles it (KIP-219), also when only the leader may serve a partition."""
    async with ScriptedCluster() as cluster:
        consumer = racked(cluster, retry_backoff_ms=5000)
        cluster.partition("orders").followers[2] = ErrorCode.OFFSET_OUT_OF_RANGE
        leader, arrivals, loop = cluster.brokers[1], list[float](), asyncio.get_running_loop()
        assert leader.server is not None
        leader.throttle_ms = 300

        def fetch(request: ServerRequest) -> None:
            arrivals.append(loop.time())
            leader.fetch(request)

        leader.server.handlers[FETCH] = fetch
        async with consumer:
            await read(consumer, 20)
        gaps = [later - earlier for earlier, later in pairwise(arrivals)]
        assert gaps, "the leader nominates broker 2, and then serves the partition"
        assert min(gaps) > 0.29


async def check_served_by_the_leader(nominee: int) -> None:
    """Check that the leader, broker 1, serves the records although it nominates this replica to consumers of rack b."""
    async with ScriptedCluster() as cluster:
        consumer = racked(cluster)
        cluster.partition("orders").nominees["b"] = nominee
        async with consumer:
            assert len(await read(consumer, 20)) == 20
            assert set(cluster.partition("orders").served_by) == {1}


async def test_leader_that_names_itself_serves_the_partition() -> None:
    """A nominated replica that itself nominates one sends no records. If the consumer took that for an empty answer, it would ask
    again without a pause."""
    await check_served_by_the_leader(nominee=1)


async def test_replica_that_the_metadata_does_not_know_is_not_waited_for() -> None:
    await check_served_by_the_leader(nominee=77)


async def test_expired_choice_is_renewed_by_the_leader() -> None:
    """The leader may name a better replica by now."""
    async with ScriptedCluster() as cluster, racked(cluster, metadata_max_age_ms=300) as consumer:
        await read(consumer, 20)
        cluster.partition("orders").followers[3] = ErrorCode.NONE
        cluster.partition("orders").nominees["b"] = 3
        await until(lambda: preferred_by(consumer) == 3, "the consumer reads from broker 3")


async def test_replica_that_left_the_isr_is_left() -> None:
    async with ScriptedCluster() as cluster, racked(cluster) as consumer:
        await read(consumer, 20)
        assert preferred_by(consumer) == 2
        cluster.partition("orders").nominees.clear()
        cluster.partition("orders").followers.clear()
        await consumer.refresh_metadata()
        await until(lambda: preferred_by(consumer) == -1, "the consumer reads from the leader")


async def test_silence_of_a_replica_makes_the_consumer_look_at_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that is cut off from its leader gets no records, and does not notice that it has left the ISR."""
    monkeypatch.setattr(fetcher, "LOOK_AGAIN_S", 0.1)
    async with ScriptedCluster() as cluster, racked(cluster) as consumer:
        await read(consumer, 20)
        cluster.partition("orders").nominees.clear()
        del cluster.partition("orders").followers[2]
        await until(lambda: preferred_by(consumer) == -1, "the consumer reads from the leader")


async def test_new_leader_is_asked_for_its_own_choice() -> None:
    async with ScriptedCluster() as cluster, racked(cluster) as consumer:
        await read(consumer, 20)
        partition = cluster.partition("orders")
        partition.nominees.clear()
        partition.followers[2] = ErrorCode.FENCED_LEADER_EPOCH
        cluster.move_leader("orders", 0, 3)
        fill(cluster, "orders", 10, first=20)
        partition.served_by.clear()
        assert len(await read(consumer, 10)) == 10
        assert set(partition.served_by) == {3}
