"""A deleted key stays deleted on real servers, also on a broker that was away for longer than `delete.retention.ms`."""

from __future__ import annotations

import pytest
from cleaner_kit import DAY_MS, clean, keyed, rows
from waiting import until
from wire_cluster import NOW_MS, WireCluster, retried

from strandline.broker.partition.partition import Partition
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError
from strandline.protocol.messages.data import ProducePartition, ProduceRequest

KEY, OTHER = b"deleted", b"other"


async def put(cluster: WireCluster, topic_id: bytes, key: bytes, value: bytes | None) -> None:
    async def once() -> None:
        request = ProduceRequest(None, -1, 5000, [ProducePartition(topic_id, 0)], [])
        leader = await cluster.leader_of("orders")
        answer = (await cluster.ask(leader, apis.PRODUCE, request, [[keyed([(key, value)])]])).partitions[0]
        if answer.error_code:
            raise BrokerError(answer.error_code, answer.error_message)

    await retried(once)


async def clean_at(cluster: WireCluster, topic_id: bytes, node: int, days: int) -> None:
    """Clean the whole log of one broker, `days` after the records were written. Tombstones stay for one day."""
    server, log = cluster.server(node), cluster.replica(node, topic_id).log

    def work() -> None:
        log.roll()
        log.first_dirty_offset = clean(log, now_ms=NOW_MS + days * DAY_MS).next_dirty
        server.log_dirs.dirs[0].save_cleaner_offsets()

    await cluster.inside(node, work)


async def while_3_is_away(cluster: WireCluster, *, days_away: int) -> bytes:
    """Broker 3 copies a value and stops. Then its key is deleted, and the others clean their logs until it returns."""
    topic_id = (await cluster.create("orders", replicas=[[1, 2, 3]], min_insync_replicas="2")).topic_id
    await put(cluster, topic_id, KEY, b"value")
    await cluster.in_step(topic_id, [1, 2, 3])
    await cluster.kill(3)
    await put(cluster, topic_id, KEY, None)
    await put(cluster, topic_id, OTHER, b"1")
    await cluster.in_step(topic_id, [1, 2])
    for days in range(0, days_away + 1, 2):
        for node in (1, 2):
            await clean_at(cluster, topic_id, node, days)
    return topic_id


async def back_in_the_isr(cluster: WireCluster, topic_id: bytes) -> None:
    await cluster.start(3)

    def is_back() -> bool:
        registration = cluster.server(1).metadata.image.partition((topic_id, 0))
        return registration is not None and 3 in registration.isr and cluster.replica(3, topic_id).log.log_end_offset == 3

    await until(is_back, "3 is back in the ISR")


def keys(cluster: WireCluster, topic_id: bytes, node: int) -> dict[bytes | None, bytes | None]:
    return {key: value for _, key, value in rows(cluster.replica(node, topic_id).log)}


@pytest.mark.parametrize("is_guarded", [True, False], ids=["with the guard", "without it"])
async def test_key_that_was_deleted_while_a_broker_was_away(is_guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broker 3 is elected afterwards. Without the guard, all consumers would read the deleted key again."""
    if not is_guarded:
        monkeypatch.setattr(Partition, "needs_fresh_copy", lambda self, position, removed_below: False)
    async with WireCluster(brokers=3) as cluster:
        topic_id = await while_3_is_away(cluster, days_away=2)
        await back_in_the_isr(cluster, topic_id)
        assert await cluster.force_election("orders", leader=3) == 3
        _, values = await cluster.fetch(3, topic_id, 0)
        assert values == (["1"] if is_guarded else ["value", "1"])
        assert keys(cluster, topic_id, 3) == ({} if is_guarded else {KEY: b"value"}) | {OTHER: b"1"}
        assert cluster.server(3).replicas.metrics.restarted_for_tombstones == is_guarded


async def test_broker_that_returns_in_time_keeps_its_log() -> None:
    async with WireCluster(brokers=3) as cluster:
        topic_id = await while_3_is_away(cluster, days_away=0)
        await back_in_the_isr(cluster, topic_id)
        assert keys(cluster, topic_id, 3) == {KEY: None, OTHER: b"1"}
        assert rows(cluster.replica(3, topic_id).log)[0] == (0, KEY, b"value")
        assert cluster.server(3).replicas.metrics.restarted_for_tombstones == 0


async def test_replica_knows_after_a_restart_that_its_copy_lacks_tombstones() -> None:
    """It has never seen them, and may be the next leader of a replica that has their values."""
    async with WireCluster(brokers=3) as cluster:
        topic_id = await while_3_is_away(cluster, days_away=2)
        await back_in_the_isr(cluster, topic_id)
        await cluster.kill(3)
        await put(cluster, topic_id, OTHER, b"2")
        await cluster.start(3)
        await until(lambda: cluster.replica(3, topic_id).log.log_end_offset == 4, "3 has the new record")
        assert cluster.server(3).replicas.metrics.restarted_for_tombstones == 0, "its log end is above the bound"
        assert cluster.replica(3, topic_id).log.tombstones_removed_below == 2
