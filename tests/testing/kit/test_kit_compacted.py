"""The oracles of the kit are right for compacted topics, whose cleaners run on each replica by themselves."""

from __future__ import annotations

import pytest

from strandline.client import RecordMetadata
from strandline.protocol.errors import UsageError
from strandline.protocol.records.batch import iter_headers
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.filler import make_fillers
from strandline.testing import Cluster, caught_up, cleaned, hw
from strandline.testing.kit import oracles
from strandline.testing.kit.conditions import Value
from strandline.testing.kit.hosted import HostedNodes
from strandline.testing.kit.inside import InsideNodes
from strandline.testing.kit.oracles import differences

SETTINGS = {"segment_bytes": 300, "min_cleanable_dirty_ratio": 0, "delete_retention_ms": 0}


@pytest.fixture
def _nothing_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the oracle's wait, which would last seconds for a record that was never written."""
    monkeypatch.setattr(oracles, "DEPOSED_S", 0.1)


async def compacted(cluster: Cluster, **configs: object) -> str:
    return await cluster.create_topic(**{"cleanup_policy": "compact", **SETTINGS, **configs})


async def overwrite(cluster: Cluster, topic: str, rounds: int = 10) -> None:
    """Write two keys again and again, and delete one at the end."""
    async with cluster.producer() as producer:
        for number in range(rounds):
            await producer.send_and_wait(topic, b"a%d" % number + b"." * 50, key=b"a")
            await producer.send_and_wait(topic, b"b%d" % number + b"." * 50, key=b"b")
        await producer.send_and_wait(topic, None, key=b"b")


async def filler(cluster: Cluster, topic: str) -> None:
    """Fill the open segment, so that the one before it is closed and can be cleaned."""
    async with cluster.producer() as producer:
        for number in range(6):
            await producer.send_and_wait(topic, b"filler %d" % number + b"." * 50, key=b"filler")


async def test_superseded_records_are_no_loss(cluster: Cluster) -> None:
    topic = await compacted(cluster)
    await overwrite(cluster, topic)
    await filler(cluster, topic)
    await cluster.until(cleaned(topic))
    assert len(await cluster.read_all(topic)) < 20, "the cleaner has removed nothing"
    verdict = await cluster.verdict()
    assert verdict.good, str(verdict)
    await cluster.assert_no_acked_loss(at_least=27)
    await cluster.assert_logs_identical(topic)


@pytest.mark.usefixtures("_nothing_is_awaited")
async def test_a_lost_last_value_of_a_key_is_found(cluster: Cluster) -> None:
    topic = await compacted(cluster)
    await overwrite(cluster, topic)
    cluster.history.invoke("somebody", (topic, 0), b"never written", key=b"c").ok(21)
    with pytest.raises(AssertionError, match=r"'never written', acknowledged at 21, is not in the final read"):
        await cluster.assert_no_acked_loss()


@pytest.mark.usefixtures("_nothing_is_awaited")
async def test_a_topic_that_is_not_compacted_may_lose_no_superseded_record(cluster: Cluster) -> None:
    """Keys alone excuse no loss."""
    topic = await cluster.create_topic()
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"1", key=b"a")
        cluster.history.invoke("somebody", (topic, 0), b"lost", key=b"a").ok(1)
        cluster.history.invoke("somebody", (topic, 0), b"2", key=b"a").ok(2)
    with pytest.raises(AssertionError, match="'lost', acknowledged at 1"):
        await cluster.assert_no_acked_loss()


async def test_the_policy_before_and_after_a_change_counts(cluster: Cluster) -> None:
    """The topic is compacted only for a while; a record that was removed meanwhile stays excused."""
    topic = await cluster.create_topic(**SETTINGS)
    await overwrite(cluster, topic)
    await filler(cluster, topic)
    async with cluster.admin() as admin:
        await admin.alter_configs("topic", topic, {"cleanup.policy": "compact"})
        await cluster.until(cleaned(topic))
        await admin.alter_configs("topic", topic, {"cleanup.policy": "delete"})
    assert len(await cluster.read_all(topic)) < 20
    verdict = await cluster.verdict()
    assert verdict.good, str(verdict)
    await cluster.assert_logs_identical(topic)


async def test_keys_and_tombstones_are_in_the_history(cluster: Cluster) -> None:
    """A tombstone has no value. A header that the producer adds names it, to every consumer of the kit."""
    topic = await compacted(cluster)
    options = {"key_serializer": str.encode, "value_serializer": str.encode}
    async with cluster.producer(**options) as producer, cluster.consumer(topic, value_deserializer=bytes.decode) as consumer:
        await producer.send_and_wait(topic, "1", key="a")
        await producer.send_and_wait(topic, None, key="a", headers=[("mine", b"x")])
        await producer.send_columns(topic, [None, "2"], ["a", "b"])
        seen = [await consumer.getone(timeout_ms=5000) for _ in range(4)]
    async with cluster.consumer(topic) as consumer:
        assert (await consumer.fetch_batches(timeout_ms=5000)).keys() == {(topic, 0)}
    assert [record.value for record in seen] == ["1", None, None, "2"]
    assert seen[1].headers[0] == ("mine", b"x")
    sends = cluster.history.sends
    assert [(send.key, send.tombstone) for send in sends] == [(b"a", False), (b"a", True), (b"a", True), (b"b", False)]
    assert len({send.value for send in sends}) == 4
    for process in ("consumer-1", "consumer-2"):
        read = [value for poll in cluster.history.polls if poll.process == process for value in poll.values]
        assert read == [send.value for send in sends][: len(read)]
        assert read
    verdict = await cluster.verdict()
    assert verdict.good, str(verdict)


@pytest.mark.usefixtures("_nothing_is_awaited")
async def test_a_deleted_key_that_came_back_is_found(cluster: Cluster) -> None:
    topic = await compacted(cluster, delete_retention_ms=86_400_000)
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"1", key=b"a")
    cluster.history.invoke("somebody", (topic, 0), b"a tombstone", key=b"a", tombstone=True).ok(1)
    verdict = await cluster.verdict()
    assert verdict.counts()["deleted-key"] == 1, str(verdict)


@pytest.mark.usefixtures("_nothing_is_awaited")
async def test_pairs_without_keys_cannot_excuse_a_missing_record(cluster: Cluster) -> None:
    topic = await compacted(cluster)
    async with cluster.producer() as producer:
        pair = (await producer.send_and_wait(topic, b"1", key=b"a"), b"1")
    await cluster.assert_no_acked_loss([pair])
    gone = (RecordMetadata(topic, 0, 1, 0), b"2")
    with pytest.raises(UsageError, match="is compacted, and pairs have no keys"):
        await cluster.assert_no_acked_loss([pair, gone])
    wrong = (RecordMetadata(topic, 0, 0, 0), b"another")
    with pytest.raises(AssertionError, match="b'another' was acknowledged, but b'1' is there"):
        await cluster.assert_no_acked_loss([wrong])


async def test_replicas_that_were_cleaned_differently_hold_the_same_records(cluster: Cluster) -> None:
    """Broker 3 is down while the others clean, and its cleaner may not have run when the replicas are compared."""
    topic = await cluster.create_topic(replicas=[[1, 2, 3]], **SETTINGS)
    await overwrite(cluster, topic)
    await filler(cluster, topic)
    await cluster.until(caught_up(topic))
    await cluster.stop(3)
    async with cluster.admin() as admin:
        await admin.alter_configs("topic", topic, {"cleanup.policy": "compact"})
        await cluster.until(first_dirty_of_1_and_2(cluster, topic) > 0)
        await admin.alter_configs("topic", topic, {"min.compaction.lag.ms": 86_400_000})
    await cluster.start(3)
    await cluster.until(caught_up(topic))
    assert len(set((await cluster.nodes.logs(topic, 0)).values())) > 1, "all replicas were cleaned alike"
    await cluster.assert_logs_identical(topic)


def first_dirty_of_1_and_2(cluster: Cluster, topic: str) -> Value:
    nodes = cluster.nodes
    assert isinstance(nodes, InsideNodes)

    def read(_: object) -> int:
        found = nodes.image().topic(topic)
        assert found is not None
        return min(nodes.server(node).replicas.partitions[found.topic_id, 0].log.first_dirty_offset for node in (1, 2))

    return Value("first dirty offset", read)


def batch(offset: int, key: bytes, value: bytes | None) -> bytes:
    return encode_batch([(key, value, (), 7)], base_offset=offset)


def test_differences_of_cleaned_logs_are_those_of_records() -> None:
    superseded, last = batch(0, b"a", b"1"), batch(1, b"a", b"2")
    assert differences("t", 0, {1: superseded + last, 2: last}) != ""
    assert differences("t", 0, {1: superseded + last, 2: last}, 0) == ""
    assert "broker 2 has" in differences("t", 0, {1: last, 2: batch(1, b"a", b"3")}, 0)
    assert "last values of the keys [b'a']" in differences("t", 0, {1: last, 2: b""}, 0)
    assert differences("t", 0, {1: last, 2: b""}, 2) == "", "records below the log start may be missing"


@pytest.mark.strandline(brokers=1)
async def test_read_all_ends_although_the_last_records_are_gone(cluster: Cluster) -> None:
    """The last offsets of the log belong to batches without records, as cleaners create them."""
    topic = await compacted(cluster)
    async with cluster.producer() as producer:
        for number in range(4):
            await producer.send_and_wait(topic, b"%d" % number, key=b"a")
    assert isinstance(cluster.nodes, HostedNodes)
    await cluster.stop(1)
    files = cluster.nodes.nodes[1].disk.files
    path = f"/data/broker-1/{topic}-0/{0:020}.log"
    data = bytes(files.read(path))
    kept = next(position for position, header in iter_headers(data) if header.base_offset == 2)
    files.write(path, data[:kept] + b"".join(make_fillers(2, 4, 0)))
    await cluster.start(1)
    await cluster.until(hw(topic) == 4)
    assert [record.value for record in await cluster.read_all(topic, within_s=3)] == [b"0", b"1"]


async def test_cleaned_is_unknown_for_a_topic_without_compaction(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    with pytest.raises(AssertionError, match=r"cleaned\('topic-1', 0\) is unknown"):
        await cluster.until(cleaned(topic), within_s=0.05)
