"""Produce with compressed batches: stored as sent or in the topic's codec, prepared on a thread, appended in order."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from handled_request import HandledConnection, HandledRequest
from replica_world import NOW_MS, TOPIC, Node, P, ReplicaWorld, code, config, produced

from strandline.broker.process.pause_detector import PauseDetector, refuse_unless_trusted
from strandline.broker.produce.produce_handler import ProduceHandler
from strandline.controller.metadata.records import RemoveTopicRecord
from strandline.protocol.apis import PRODUCE
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import ProducePartition, ProduceRequest
from strandline.protocol.records import batch as v2
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.compression import RECORDS_BYTES_MAX, CannotDecompress, Codec, compress
from strandline.protocol.records.reader import iter_records
from strandline.storage.log.conversion import AT_ONCE_BYTES_MAX, AT_ONCE_RECORDS_MAX

COMPRESSED = [codec for codec in Codec if codec]
LARGE = b"a value that is repeated; " * (AT_ONCE_BYTES_MAX // 20)


class HeldThread:
    """Runs blocking work when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], None], Callable[[], None]]] = []

    def __call__(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        self.waiting.append((work, then))

    def finish(self) -> None:
        for work, then in self.waiting:
            work()
            then()
        self.waiting.clear()


def one(thread: HeldThread | None = None, **configs: Any) -> tuple[ReplicaWorld, Node]:
    world = ReplicaWorld(run_blocking=thread) if thread else ReplicaWorld()
    world.topic(replicas=(1,), **configs)
    return world, world[1]


def batch(codec: Codec, *values: bytes, **producer: int) -> bytearray:
    records = [(b"key", value, [("h", b"1")], NOW_MS - 100 + i) for i, value in enumerate(values)]
    return bytearray(encode_batch(records, codec=codec, **producer))


def stored(node: Node) -> list[tuple[str, list[bytes | None]]]:
    """The codec and the values of each batch of the log."""
    log = node.p.log
    data = b"".join(log.read(0, 1 << 30, log.log_end_offset).buffers)
    return [
        (Codec(header.compression).name.lower(), [r.value for r in iter_records(data[pos : pos + header.size])])
        for pos, header in v2.iter_headers(data)
    ]


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_compressed_batch_is_stored_as_it_was_sent(codec: Codec) -> None:
    """Followers and consumers get the producer's bytes. The leader sets only the base offset and the leader epoch."""
    _, leader = one()
    sent = batch(codec, b"a" * 100, b"b" * 100)
    payload = bytes(sent[v2.CRC_POS :])
    assert produced(leader.produce(sent, acks=1)).base_offset == 0
    assert produced(leader.produce(batch(codec, b"c"), acks=1)).base_offset == 2
    assert stored(leader) == [(codec.name.lower(), [b"a" * 100, b"b" * 100]), (codec.name.lower(), [b"c"])]
    data = b"".join(leader.p.log.read(0, 1 << 20, 2).buffers)
    assert data[v2.CRC_POS :] == payload


@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_with_a_codec_stores_every_batch_in_it(name: str) -> None:
    thread = HeldThread()
    _, leader = one(thread, compression_type=name)
    for index, codec in enumerate(Codec):
        request = leader.produce(batch(codec, b"v%d" % index * 50, b"w"), acks=1)
        thread.finish()
        assert produced(request).base_offset == 2 * index
    expected = "none" if name == "uncompressed" else name
    assert stored(leader) == [(expected, [b"v%d" % index * 50, b"w"]) for index in range(len(Codec))]


def test_the_broker_notes_which_partitions_need_another_codec() -> None:
    """Requests for other partitions skip the preparation, so the codec of a partition that is not noted would be wrong."""
    thread = HeldThread()
    world, leader = one(thread)
    for name, expected in (("gzip", "gzip"), ("producer", "none"), ("zstd", "zstd")):
        world.change(config("orders", "compression.type", name))
        leader.produce(batch(Codec.NONE, b"value"), acks=1)
        thread.finish()
        assert stored(leader)[-1][0] == expected
        assert leader.manager.directory.converting == (set() if name == "producer" else {P})
    world.change(RemoveTopicRecord(P[0]))
    assert not leader.manager.directory.converting


def test_the_level_of_the_topic_is_used() -> None:
    sizes = []
    for level in ("-20", "19"):
        thread = HeldThread()
        world, leader = one(thread, compression_type="zstd")
        world.change(config("orders", "compression.zstd.level", level))
        leader.produce(batch(Codec.NONE, bytes(str(list(range(3000))), "ascii")), acks=1)
        thread.finish()
        sizes.append(leader.p.log.size_bytes)
    assert sizes[1] < sizes[0]


def test_a_batch_in_the_codec_of_its_topic_is_not_compressed_again() -> None:
    """As in Kafka, even if its level is another one."""
    thread = HeldThread()
    _, leader = one(thread, compression_type="gzip")
    sent = bytearray(encode_batch([(None, b"a" * 1000, [], NOW_MS)], codec=Codec.GZIP, level=1))
    payload = bytes(sent[v2.CRC_POS :])
    leader.produce(sent, acks=1)
    thread.finish()
    assert b"".join(leader.p.log.read(0, 1 << 20, 1).buffers)[v2.CRC_POS :] == payload


def test_a_recompressed_batch_keeps_its_producer_and_a_retry_is_recognised() -> None:
    thread = HeldThread()
    _, leader = one(thread, compression_type="lz4")

    def produce() -> HandledRequest:
        sent = batch(Codec.GZIP, b"a", b"b", producer_id=7, producer_epoch=1, base_sequence=0)
        request = leader.produce(sent, acks=1)
        thread.finish()
        return request

    first, again = produced(produce()), produced(produce())
    assert (first.error_code, first.base_offset, again.error_code, again.base_offset) == (0, 0, 0, 0)
    assert leader.leo == 2


def test_a_large_batch_is_prepared_on_a_thread_and_holds_its_connection() -> None:
    """Meanwhile the event loop serves other connections. Requests on this one wait, so that a producer's batches keep their
    order."""
    thread = HeldThread()
    _, leader = one(thread)
    large = leader.produce(batch(Codec.ZSTD, LARGE), acks=1)
    assert large.connection.held
    assert not large.is_answered
    assert leader.leo == 0
    thread.finish()
    assert not large.connection.held
    assert produced(large).base_offset == 0
    assert stored(leader) == [("zstd", [LARGE])]


def test_a_small_batch_is_prepared_at_once() -> None:
    thread = HeldThread()
    _, leader = one(thread)
    assert produced(leader.produce(batch(Codec.ZSTD, b"a" * 1000), acks=1)).base_offset == 0
    assert not thread.waiting


def test_a_bomb_is_refused_on_the_thread() -> None:
    """The size is known only after decompression, for which the event loop must not wait (F13)."""
    thread = HeldThread()
    _, leader = one(thread)
    bomb = v2.assemble(
        [compress(Codec.ZSTD, bytes(RECORDS_BYTES_MAX + 1))],
        base_offset=0,
        leader_epoch=-1,
        attributes=Codec.ZSTD,
        last_offset_delta=0,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=1,
    )
    assert len(bomb) < 10_000
    request = leader.produce(bytearray(bomb), acks=1)
    assert thread.waiting
    thread.finish()
    assert code(request) == ErrorCode.INVALID_RECORD
    assert "when they are decompressed" in (produced(request).error_message or "")
    assert request.connection.complaints
    assert leader.leo == 0


def test_each_partition_of_a_request_fails_alone() -> None:
    thread = HeldThread()
    world = ReplicaWorld(run_blocking=thread)
    world.topic(replicas=(1,), partitions=4)
    leader = world[1]
    damaged = batch(Codec.GZIP, b"a", b"b")
    damaged[-1] ^= 1
    not_gzip = batch(Codec.NONE, b"a")
    not_gzip[22] |= Codec.GZIP
    v2.stamp_max_timestamp(not_gzip, 0, len(not_gzip), NOW_MS)
    records = [damaged, batch(Codec.LZ4, LARGE), not_gzip, batch(Codec.SNAPPY, b"x")]
    request = leader.produce_many([((TOPIC, index), raw) for index, raw in enumerate(records)], acks=1)
    thread.finish()
    codes = [code(request, index) for index in range(4)]
    assert codes == [ErrorCode.CORRUPT_MESSAGE, ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.NONE]


def test_a_broker_that_lost_the_leadership_meanwhile_appends_nothing() -> None:
    thread = HeldThread()
    world = ReplicaWorld(run_blocking=thread)
    world.topic(replicas=(1, 2))
    request = world[1].produce(batch(Codec.ZSTD, LARGE), acks=1)
    world.elect(2)
    thread.finish()
    assert code(request) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world[1].leo == 0
    assert not request.connection.held


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_broker_that_was_paused_meanwhile_appends_nothing(acks: int) -> None:
    """Another broker may lead since then, and this one may not have the metadata yet."""
    thread, now = HeldThread(), [100.0]
    _, leader = one(thread)
    detector = PauseDetector(limit_ms=3000, heard_at=lambda: 99.0)
    detector.tick(now[0])
    may_append = refuse_unless_trusted(detector, lambda: now[0])
    produce = ProduceHandler(
        leader.manager.directory, leader.manager.failures, leader.manager.purgatory, lambda: NOW_MS, thread, may_append
    )
    leader.handlers[PRODUCE] = produce.handle
    request = leader.produce(batch(Codec.ZSTD, LARGE), acks=acks)
    now[0] += 30
    thread.finish()
    assert leader.leo == 0
    assert not request.connection.held
    if acks:
        assert code(request) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    else:
        assert request.connection.closed


def test_a_request_whose_connection_closed_meanwhile_is_appended() -> None:
    """It is appended like any request that has arrived: with acks=0 the producer may have stopped already."""
    thread = HeldThread()
    _, leader = one(thread)
    request = leader.produce(batch(Codec.ZSTD, LARGE), acks=0)
    request.connection.close()
    thread.finish()
    assert leader.leo == 1


def test_a_request_that_a_newer_connection_overtook_is_not_appended() -> None:
    """The producer gave up the old connection and may have numbered the batch again: the log would hold it twice."""
    thread = HeldThread()
    _, leader = one(thread)
    producer = {"producer_id": 7, "producer_epoch": 0}

    def produce(connection: HandledConnection, raw: bytearray) -> HandledRequest:
        body = ProduceRequest(None, 1, 1000, [ProducePartition(*P)], [memoryview(raw)])
        request = HandledRequest(body, connection=connection)
        leader.handlers[PRODUCE](request)  # type: ignore[arg-type]
        return request

    old, new = HandledConnection(1), HandledConnection(2)
    late = produce(old, batch(Codec.ZSTD, LARGE, base_sequence=0, **producer))
    assert code(produce(new, batch(Codec.NONE, b"a", base_sequence=0, **producer))) == ErrorCode.NONE
    thread.finish()
    assert late.answer is None
    assert old.closed
    assert leader.leo == 1


def test_a_time_lookup_is_exact_inside_a_compressed_batch() -> None:
    _, leader = one()
    leader.produce(batch(Codec.GZIP, *[b"v"] * 50), acks=1)
    for index in (0, 17, 49):
        found = leader.p.log.offset_for_timestamp(NOW_MS - 100 + index)
        assert found is not None
        assert found[:2] == (NOW_MS - 100 + index, index)


@pytest.mark.parametrize("bits", [5, 6, 7])
def test_an_unknown_codec_is_refused(bits: int) -> None:
    _, leader = one()
    raw = batch(Codec.NONE, b"a")
    raw[22] |= bits
    v2.stamp_max_timestamp(raw, 0, len(raw), NOW_MS)
    assert code(leader.produce(raw, acks=1)) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_a_batch_that_grows_beyond_the_topics_limit_is_refused() -> None:
    """max.message.bytes limits the stored batch, as in Kafka."""
    thread = HeldThread()
    _, leader = one(thread, compression_type="uncompressed", max_message_bytes="1000")
    request = leader.produce(batch(Codec.ZSTD, b"a" * 5000), acks=1)
    thread.finish()
    assert code(request) == ErrorCode.MESSAGE_TOO_LARGE


def test_a_compressed_batch_behind_a_plain_one_is_prepared_on_the_thread_too() -> None:
    """The append itself decompresses nothing, and a request can have a thousand bombs behind one small batch."""
    thread = HeldThread()
    _, leader = one(thread)
    request = leader.produce(batch(Codec.NONE, b"a") + batch(Codec.GZIP, LARGE), acks=1)
    assert thread.waiting
    thread.finish()
    assert produced(request).base_offset == 0
    assert stored(leader) == [("none", [b"a"]), ("gzip", [LARGE])]


def test_the_batches_of_a_partition_share_one_limit() -> None:
    """With compression.type=uncompressed a request of 100 MiB could otherwise become 3000 batches of 32 MiB in memory."""
    half = batch(Codec.ZSTD, bytes(RECORDS_BYTES_MAX // 2))
    for name in ("producer", "uncompressed"):
        thread = HeldThread()
        _, leader = one(thread, compression_type=name, max_message_bytes=str(64 << 20))
        request = leader.produce(half + half, acks=1)
        thread.finish()
        assert code(request) == ErrorCode.INVALID_RECORD
        assert f"more than {RECORDS_BYTES_MAX} bytes" in (produced(request).error_message or "")
        request = leader.produce(half, acks=1)
        thread.finish()
        assert code(request) == ErrorCode.NONE


@pytest.mark.parametrize(("codec", "cleanup_policy"), [(Codec.ZSTD, "delete"), (Codec.NONE, "compact")])
def test_the_partitions_of_a_request_share_what_is_prepared_at_once(codec: Codec, cleanup_policy: str) -> None:
    """Neither decompression nor the check for keys may take the event loop for a second, even for a thousand partitions."""
    thread = HeldThread()
    world = ReplicaWorld(run_blocking=thread)
    world.topic(replicas=(1,), partitions=8, cleanup_policy=cleanup_policy)
    quarter = batch(codec, b"a" * (AT_ONCE_BYTES_MAX // 4 - 100))
    few = world[1].produce_many([((TOPIC, index), quarter[:]) for index in range(4)], acks=1)
    assert [code(few, index) for index in range(4)] == [ErrorCode.NONE] * 4
    many = world[1].produce_many([((TOPIC, index), quarter[:]) for index in range(8)], acks=1)
    assert not many.is_answered
    thread.finish()
    assert [code(many, index) for index in range(8)] == [ErrorCode.NONE] * 8


def test_many_small_records_are_checked_on_the_thread() -> None:
    """Checking them takes a microsecond each, although they have few bytes."""
    thread = HeldThread()
    _, leader = one(thread)
    request = leader.produce(batch(Codec.ZSTD, *[b""] * (AT_ONCE_RECORDS_MAX + 1)), acks=1)
    assert thread.waiting
    thread.finish()
    assert produced(request).base_offset == 0


def test_a_broker_that_does_not_lead_prepares_nothing() -> None:
    thread = HeldThread()
    world = ReplicaWorld(run_blocking=thread)
    world.topic(replicas=(1, 2))
    request = world[2].produce(batch(Codec.ZSTD, LARGE), acks=1)
    assert code(request) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not thread.waiting


def test_a_batch_in_the_codec_of_its_topic_needs_no_thread_if_it_is_small() -> None:
    thread = HeldThread()
    _, leader = one(thread, compression_type="gzip")
    assert produced(leader.produce(batch(Codec.GZIP, b"a" * 1000), acks=1)).base_offset == 0
    assert not thread.waiting


@pytest.mark.parametrize("producer_id", [7, 0x40 << 56])
def test_what_a_thread_has_checked_is_not_decompressed_on_the_loop(producer_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch on a connection, and one of a named producer that may be fenced, are checked before their producer id
    counts."""
    thread = HeldThread()
    _, leader = one(thread)
    sent = batch(Codec.ZSTD, LARGE, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    wrong = bytearray(sent)
    wrong[-1] ^= 1
    wrong[22] ^= Codec.ZSTD ^ Codec.GZIP
    v2.stamp_max_timestamp(wrong, 0, len(wrong), NOW_MS)
    requests = [leader.produce(raw, acks=1) for raw in (wrong, sent)]
    waiting, thread.waiting = thread.waiting, []
    for work, _ in waiting:
        work()

    def fail(*args: object) -> None:
        raise AssertionError("decompressed on the loop")

    monkeypatch.setattr(v2, "decompress", fail)
    for _, then in waiting:
        then()
    monkeypatch.undo()
    assert [code(request) for request in requests] == [ErrorCode.INVALID_RECORD, ErrorCode.NONE]


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_refused_bomb_leaves_nothing_in_memory(codec: Codec) -> None:
    """An error that was in a cycle with its frames used to keep their buffers: 50 bombs took 1.7 GB of a broker's memory for
    minutes."""
    thread = HeldThread()
    _, leader = one(thread, max_message_bytes=str(4 << 20))
    bomb = batch(codec, bytes(RECORDS_BYTES_MAX + 1))
    broken = batch(codec, b"a")
    broken[-9:] = bytes(9)
    v2.stamp_max_timestamp(broken, 0, len(broken), NOW_MS)
    gc.collect()
    before = {id(o) for o in gc.get_objects() if isinstance(o, BrokerError | CannotDecompress)}  # of other tests
    gc.disable()
    try:
        for raw in (bomb, broken):
            request = leader.produce(raw, acks=1)
            thread.finish()
            assert code(request) == ErrorCode.INVALID_RECORD
        assert not [o for o in gc.get_objects() if isinstance(o, BrokerError | CannotDecompress) and id(o) not in before]
    finally:
        gc.enable()


# -- compacted topics -------------------------------------------------------------------------------------------------


def without_key(codec: Codec, count: int, at: int) -> bytearray:
    records = [(None if n == at else b"key", b"value", [], NOW_MS) for n in range(count)]
    return bytearray(encode_batch(records, codec=codec))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(("count", "at"), [(1, 0), (3, 2), (100, 50), (AT_ONCE_RECORDS_MAX + 5, AT_ONCE_RECORDS_MAX)])
def test_record_without_key_is_refused_on_a_compacted_topic(codec: Codec, count: int, at: int) -> None:
    """Large batches are checked on a thread, compressed or not."""
    thread = HeldThread()
    _, node = one(thread, cleanup_policy="compact")
    request = node.produce(without_key(codec, count, at), acks=1)
    assert bool(thread.waiting) == (count > AT_ONCE_RECORDS_MAX)
    thread.finish()
    assert code(request) == ErrorCode.INVALID_RECORD
    assert f"record {at} of the batch has no key" in (request.answer.partitions[0].error_message or "")
    assert node.p.log.log_end_offset == 0


@pytest.mark.parametrize("codec", list(Codec))
def test_records_with_keys_are_accepted_on_a_compacted_topic(codec: Codec) -> None:
    _, node = one(cleanup_policy="compact,delete")
    produced(node.produce(without_key(codec, 20, -1), acks=1))
    assert node.p.log.log_end_offset == 20


def test_record_without_key_is_accepted_once_the_topic_is_not_compacted() -> None:
    world, node = one(cleanup_policy="compact")
    world.change(config("orders", "cleanup.policy", ""))
    produced(node.produce(without_key(Codec.NONE, 2, 1), acks=1))
    assert node.p.log.log_end_offset == 2
