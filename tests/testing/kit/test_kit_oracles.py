"""The oracles pass for a correct cluster, and each one fails for the error that it looks for."""

from __future__ import annotations

import pytest

from strandline.client import DeliveryTimeout, RecordMetadata, TokenFenced
from strandline.protocol.errors import StrandlineError, UsageError
from strandline.protocol.records.reader import iter_records
from strandline.testing import Cluster, History, caught_up, check, hw, leader
from strandline.testing.kit import oracles
from strandline.testing.kit.hosted import HostedNodes
from strandline.testing.kit.oracles import differences


async def some_records(cluster: Cluster, count: int = 5) -> str:
    topic = await cluster.create_topic(partitions=2)
    async with cluster.producer() as producer:
        for number in range(count):
            await producer.send_and_wait(topic, b"%d" % number, key=b"%d" % number)
    return topic


async def test_read_all_reads_everything_in_order(cluster: Cluster) -> None:
    topic = await some_records(cluster)
    records = await cluster.read_all(topic)
    assert sorted(record.value for record in records) == [b"0", b"1", b"2", b"3", b"4"]
    assert [(r.partition, r.offset) for r in records] == sorted((r.partition, r.offset) for r in records)


async def test_read_all_of_an_empty_topic_is_empty(cluster: Cluster) -> None:
    assert await cluster.read_all(await cluster.create_topic()) == []


async def test_a_good_cluster_has_a_good_verdict(cluster: Cluster) -> None:
    await some_records(cluster)
    await cluster.assert_no_acked_loss()
    await cluster.assert_no_acked_loss()
    verdict = await cluster.verdict()
    assert verdict.good, str(verdict)
    assert (verdict.acknowledged, verdict.read) == (5, 5)


async def test_offsets_of_fencing_tokens_are_no_gap(cluster: Cluster) -> None:
    """The producer notes its tokens, also those of single calls. A rejected record was certainly not written."""
    topic = await cluster.create_topic(partitions=1)
    async with cluster.producer(fencing_token=3) as producer:
        await producer.send_and_wait(topic, b"a")
        await producer.send_many(topic, [b"b", b"c"], partition=0, fencing_token=5)
        with pytest.raises(TokenFenced):
            await producer.send_and_wait(topic, b"rejected")
        await producer.send_and_wait(topic, b"d", partition=0, fencing_token=5)
    assert [record.offset for record in await cluster.read_all(topic)] == [1, 3, 4, 5]
    verdict = await cluster.verdict()
    assert verdict.good, str(verdict)
    assert (verdict.acknowledged, verdict.failed) == (4, 1)


async def test_lost_acknowledged_record_is_found(cluster: Cluster) -> None:
    topic = await some_records(cluster)
    cluster.history.invoke("somebody", (topic, 0), b"never written").ok(0)
    with pytest.raises(AssertionError, match=r"acknowledged records were lost(.|\n)*never written"):
        await cluster.assert_no_acked_loss()


async def test_acks_1_record_lost_with_its_leader_is_a_loss(cluster: Cluster) -> None:
    """A real loss: the followers are cut off, the leader acknowledges alone, and dies. The producer received an offset, so the
    oracle reports the record, unless the test asks for the weaker judge by name."""
    topic = await cluster.create_topic(replicas=[[1, 2, 3]])
    history = History()
    async with cluster.producer(acks=1, history=history) as producer:
        cluster.partition([1], [2, 3])
        metadata = await producer.send_and_wait(topic, b"acked by 1 alone")
        await cluster.kill(1)
        # Its last messages are in the sockets, and would still arrive until another broker leads and has started.
        await cluster.until((leader(topic) != 1) & (hw(topic) == 0))
        cluster.heal()
    await cluster.start(1)
    await cluster.until(caught_up(topic))
    assert await cluster.read_all(topic) == []
    with pytest.raises(AssertionError, match=r"acknowledged records were lost(.|\n)*'acked by 1 alone', acknowledged at 0"):
        await cluster.assert_no_acked_loss(history, within_s=1)
    assert not (await cluster.verdict(history, within_s=1)).good
    await cluster.assert_no_acked_loss(history, acks="all", at_least=0, within_s=1)
    weaker = await cluster.verdict(history, acks=("all",), within_s=1)
    assert (weaker.good, weaker.judged, weaker.unpromised_lost) == (True, 0, 1)
    with pytest.raises(AssertionError, match=r"offset 0: b'acked by 1 alone' was acknowledged, but no record is there"):
        await cluster.assert_no_acked_loss([(metadata, b"acked by 1 alone")], within_s=1)


async def test_a_judgement_of_nothing_fails(cluster: Cluster) -> None:
    """A test whose producer is not the cluster's, or whose sends all failed, would be green forever."""
    topic = await cluster.create_topic()
    with pytest.raises(AssertionError, match=r"only 0 acknowledgements were checked, .*the history has no send"):
        await cluster.assert_no_acked_loss()
    with pytest.raises(AssertionError, match=r"only 0 acknowledgements were checked, .*pairs"):
        await cluster.assert_no_acked_loss([])
    async with cluster.producer(acks=0) as producer:
        await producer.send_and_wait(topic, b"1")
    with pytest.raises(AssertionError, match=r"the sends of the history: 1 ok, acks=0"):
        await cluster.assert_no_acked_loss()
    async with cluster.producer(acks=1) as producer:
        await producer.send_and_wait(topic, b"2")
    await cluster.assert_no_acked_loss()
    with pytest.raises(AssertionError, match=r"0 acknowledgements .*1 ok, acks=0; 1 ok, acks=1"):
        await cluster.assert_no_acked_loss(acks="all")
    with pytest.raises(AssertionError, match=r"only 1 acknowledgements were checked, expected at least 5"):
        await cluster.assert_no_acked_loss(at_least=5)
    await cluster.assert_no_acked_loss([], at_least=0)


async def test_lost_copy_of_a_value_sent_twice_is_found(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy of another send does not replace it."""
    monkeypatch.setattr(oracles, "DEPOSED_S", 0.1)
    topic = await cluster.create_topic()
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"again")
    cluster.history.invoke("somebody", (topic, 0), b"again").ok(1)
    with pytest.raises(AssertionError, match=r"'again', acknowledged at 1, is not in the final read"):
        await cluster.assert_no_acked_loss()


async def test_the_records_of_a_deleted_topic_are_missed(cluster: Cluster) -> None:
    topic = await some_records(cluster)
    async with cluster.admin() as admin:
        await admin.delete_topics([topic])
    with pytest.raises(StrandlineError, match=topic):
        await cluster.assert_no_acked_loss(within_s=1)


async def test_acks_of_the_judge_are_for_a_history(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match=r"acks=\.\.\. is only for a history"):
        await cluster.assert_no_acked_loss([], acks="all")


async def test_pairs_of_metadata_and_value_replace_a_history(cluster: Cluster) -> None:
    topic = await some_records(cluster)
    records = await cluster.read_all(topic)
    acked = [(RecordMetadata(topic, r.partition, r.offset, 0), r.value) for r in records]
    await cluster.assert_no_acked_loss(acked)
    wrong = (RecordMetadata(topic, 0, records[0].offset, 0), b"another")
    with pytest.raises(AssertionError, match="b'another' was acknowledged, but b'"):
        await cluster.assert_no_acked_loss([*acked, wrong])


async def test_logs_are_compared_once_they_have_caught_up(cluster: Cluster) -> None:
    topic = await some_records(cluster)
    await cluster.kill(2)
    await cluster.start(2)
    await cluster.assert_logs_identical(topic)
    with pytest.raises(UsageError, match="there is no topic 'nowhere'"):
        await cluster.assert_logs_identical("nowhere")


async def test_a_replica_with_other_bytes_is_found(cluster: Cluster) -> None:
    """One byte of one batch is changed, and the broker does not know it."""
    topic = await cluster.create_topic()
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"as it was")
    await cluster.until(caught_up(topic))
    assert isinstance(cluster.nodes, HostedNodes)
    victim = (await cluster.followers_of(topic))[0]
    await cluster.stop(victim)
    files = cluster.nodes.nodes[victim].disk.files
    folder = f"/data/broker-{victim}/{topic}-0"
    (log,) = [name for name in files.list(folder) if name.endswith(".log")]
    data = bytearray(files.read(f"{folder}/{log}"))
    data[12:16] = b"\0\0\0\7"  # The leader epoch, which the checksum does not cover.
    files.write(f"{folder}/{log}", data)
    await cluster.start(victim)
    with pytest.raises(AssertionError, match=r"topic-1-0 differ from byte 15 on"):
        await cluster.assert_logs_identical(topic)


async def test_logs_are_compared_with_all_their_segments(cluster: Cluster) -> None:
    """After a restart a log has no recent batches in memory, and is read segment by segment."""
    topic = await cluster.create_topic(segment_bytes=200)
    async with cluster.producer() as producer:
        for number in range(5):
            await producer.send_and_wait(topic, b"record %d" % number + b"." * 50)
    await cluster.restart(*cluster.brokers)
    await cluster.until(caught_up(topic))
    logs = await cluster.nodes.logs(topic, 0)
    assert [len(list(iter_records(log))) for log in logs.values()] == [5, 5, 5]


def test_differences_name_the_first_byte() -> None:
    assert differences("t", 0, {1: b"abc", 2: b"abc"}) == ""
    assert "from byte 2 on" in differences("t", 0, {1: b"abc", 2: b"abd", 3: b"abc"})
    assert "from byte 3 on" in differences("t", 0, {1: b"abc", 2: b"abcd"})
    assert "from byte 0 on" in differences("t", 0, {1: b"", 2: b"abcd"})


# -- clients with a memory --------------------------------------------------------------------------------------------


async def test_history_records_sends_and_polls(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"1")
        producer.send_nowait(topic, b"2")
        await (await producer.send(topic, b"3", partition=0))
        await producer.send_many(topic, [b"4", b"5"])
    async with cluster.consumer(topic) as consumer:
        polled = [record async for record in first(consumer, 2)]
        polled.append(await consumer.getone(timeout_ms=5000))
        while len(polled) < 5:
            polled += [r for records in (await consumer.getmany(timeout_ms=1000)).values() for r in records]
    values = [b"1", b"2", b"3", b"4", b"5"]
    assert [send.value for send in cluster.history.sends] == values
    assert [send.offset for send in cluster.history.sends] == [0, 1, 2, 3, 4]
    assert {send.partition for send in cluster.history.sends} == {(topic, 0)}
    assert [value for poll in cluster.history.polls for value in poll.values] == values
    assert check(cluster.history).good


async def test_history_records_whole_fetched_batches(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    async with cluster.producer() as producer:
        await producer.send_many(topic, [b"1", b"2", b"3"])
    async with cluster.consumer(topic) as consumer:
        seen = [v for _, batches in (await consumer.fetch_batches(timeout_ms=5000)).items() for b in batches for v in b.values]
    assert seen == [b"1", b"2", b"3"]
    assert [value for poll in cluster.history.polls for value in poll.values] == seen
    assert check(cluster.history).good


async def first(consumer, count: int):  # type: ignore[no-untyped-def]
    async for record in consumer:
        yield record
        count -= 1
        if not count:
            return


async def test_history_stores_values_as_bytes_with_every_serializer(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    async with cluster.producer(value_serializer=lambda number: b"%d" % number) as producer:
        await producer.send_and_wait(topic, 17)
    async with cluster.consumer(topic, value_deserializer=int) as consumer:
        assert (await consumer.getone(timeout_ms=5000)).value == 17
    assert [send.value for send in cluster.history.sends] == [b"17"]
    assert [list(poll.values) for poll in cluster.history.polls] == [[b"17"]]
    verdict = await cluster.verdict()
    assert verdict.good, str(verdict)


async def test_a_send_that_failed_is_left_open(cluster: Cluster) -> None:
    """The outcome of the send is unknown, so neither the presence nor the absence of its record is an anomaly."""
    topic = await cluster.create_topic()
    async with cluster.producer(delivery_timeout_ms=300, request_timeout_ms=100) as producer:
        await producer.send_and_wait(topic, b"1")
        with cluster.drop("Produce", where="response"):
            receipt = await producer.send(topic, b"2")
            with pytest.raises(DeliveryTimeout):
                await receipt
    verdict = await cluster.verdict()
    assert verdict.good, str(verdict)
    assert (verdict.acknowledged, verdict.unknown) == (1, 1)


async def test_records_before_a_seek_are_no_skip(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    async with cluster.producer() as producer, cluster.consumer(topic) as consumer:
        for number in range(4):
            await producer.send_and_wait(topic, b"%d" % number)
        assert (await consumer.getone(timeout_ms=5000)).value == b"0"
        consumer.seek((topic, 0), 3)
        assert (await consumer.getone(timeout_ms=5000)).value == b"3"
        async with cluster.consumer(auto_offset_reset="latest") as late:
            await late.assign([(topic, 0)])
            await late.position((topic, 0))
            await producer.send_and_wait(topic, b"4")
            assert (await late.getone(timeout_ms=5000)).value == b"4"
    verdict = await cluster.verdict()
    assert verdict.good, str(verdict)
