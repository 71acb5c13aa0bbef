"""Malformed batches: no log accepts one from a producer, and a log of an older version that has one still works."""

from __future__ import annotations

from random import Random

import pytest
from storage_kit import NOW_MS, batch, forget_tail, open_log, read_all

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import check_crc, read_header, stamp
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.memory.memory_files import MemoryFiles
from strandline.testing.simulation.cluster.malformed_batches import assemble, encode_record, malformed_batches

SHAPES = malformed_batches(NOW_MS)
CODES = {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE}
OLD_SHAPES = [
    "an offset delta is repeated",
    "noise as records",
    "zstd: the records are not compressed",
    "bytes behind the last record",
    "transactional",
]
"""Shapes that version 0.4 appended."""


def what_it_holds(log: Log) -> object:
    return log.log_end_offset, log.size_bytes, log.producers.dump(), log.epochs.entries, read_all(log)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_malformed_batch_is_refused_and_changes_nothing(shape: str) -> None:
    """The log appends all of a request or nothing, whether the batch is alone or follows a good one."""
    log = open_log()
    log.append_as_leader(batch(b"a", producer=(7, 0, 0)), 0, NOW_MS)
    before = what_it_holds(log)
    for records in (SHAPES[shape], batch(b"good", producer=(7, 0, 1)) + SHAPES[shape] if SHAPES[shape] else b""):
        with pytest.raises(BrokerError) as caught:
            log.append_as_leader(bytearray(records), 0, NOW_MS)
        assert caught.value.code in CODES
        assert what_it_holds(log) == before
    log.append_as_leader(batch(b"b", producer=(7, 0, 1)), 0, NOW_MS)
    assert log.log_end_offset == 2


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_the_refusal_of_an_unknown_codec_names_it(codec: int) -> None:
    """No reader could decode the batch, and the producer must get the error before the record is acknowledged."""
    with pytest.raises(BrokerError) as caught:
        open_log().append_as_leader(bytearray(SHAPES[f"codec {codec}, which does not exist"]), 0, NOW_MS)
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert f"codec number {codec}" in (caught.value.message or "")


def test_the_refusal_names_the_record_and_the_reason() -> None:
    with pytest.raises(BrokerError, match="record 1 of the batch is malformed: its offset delta is 0"):
        open_log().append_as_leader(bytearray(SHAPES["an offset delta is repeated"]), 0, NOW_MS)


def test_a_base_sequence_without_a_producer_id_is_ignored() -> None:
    """As in Kafka: some clients send 0 there."""
    log = open_log()
    for _ in range(2):
        log.append_as_leader(bytearray(assemble([encode_record(0)], NOW_MS, base_sequence=0)), 0, NOW_MS)
    assert log.log_end_offset == 2
    assert not log.producers.dump()


def test_a_record_older_than_the_topic_permits_is_refused() -> None:
    """The base timestamp of the batch is only that of its first record."""
    log = open_log(config=LogConfig(message_timestamp_before_max_ms=1000))
    records = [encode_record(0), encode_record(1, timestamp_delta=-5000)]
    with pytest.raises(BrokerError) as caught:
        log.append_as_leader(bytearray(assemble(records, NOW_MS)), 0, NOW_MS)
    assert caught.value.code == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("claimed", [-1, 0, NOW_MS, NOW_MS + 10**9, -(2**63), 2**63 - 1])
def test_the_max_timestamp_is_that_of_the_records(claimed: int) -> None:
    """As in Kafka. Sarama wrote -1 until 2025, and kafkajs writes the last record's timestamp, so a refusal would exclude
    them. If the log used their value, a search by time would miss records, and segments would be deleted too early or never."""
    log = open_log(config=LogConfig(message_timestamp_after_max_ms=1000))
    records = [encode_record(0), encode_record(1, timestamp_delta=50), encode_record(2, timestamp_delta=-50)]
    info = log.append_as_leader(bytearray(assemble(records, NOW_MS, max_timestamp=claimed)), 0, NOW_MS)
    assert info.max_timestamp == log.segments[-1].max_timestamp == NOW_MS + 50
    (appended,) = read_all(log)
    assert read_header(appended).max_timestamp == NOW_MS + 50
    assert check_crc(appended, 0, len(appended))
    assert log.offset_for_timestamp(NOW_MS + 50) == (NOW_MS + 50, 1, 0)


def test_a_record_newer_than_the_topic_permits_is_refused() -> None:
    """The max timestamp field of the batch does not hide the record."""
    log = open_log(config=LogConfig(message_timestamp_after_max_ms=1000))
    records = [encode_record(0, timestamp_delta=5000), encode_record(1)]
    with pytest.raises(BrokerError) as caught:
        log.append_as_leader(bytearray(assemble(records, NOW_MS, max_timestamp=NOW_MS)), 0, NOW_MS)
    assert caught.value.code == ErrorCode.INVALID_TIMESTAMP


def test_a_batch_above_max_message_bytes_is_refused_before_its_records_are_checked() -> None:
    log = open_log(config=LogConfig(max_message_bytes=200))
    with pytest.raises(BrokerError) as caught:
        log.append_as_leader(bytearray(assemble([Random(1).randbytes(200)], NOW_MS)), 0, NOW_MS)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("shape", OLD_SHAPES)
def test_a_follower_replicates_what_an_older_version_appended(shape: str) -> None:
    """A follower that refused its leader's batch would fetch it again forever. Batches are read back by range, also after a
    recovery; only the consumer decodes the records."""
    files = MemoryFiles(Random(0))
    log = open_log(files)
    log.append_as_leader(batch(b"a"), 0, NOW_MS)
    old = bytearray(SHAPES[shape])
    header = read_header(old)
    stamp(old, 0, 1, 0)
    info = log.append_as_follower(memoryview(old), 0)
    assert info is not None
    assert info.last_offset == header.last_offset_delta + 1
    log.append_as_follower(memoryview(batch(b"z", base_offset=info.last_offset + 1, leader_epoch=0)), 0)
    expected = read_all(log)
    assert expected[1] == bytes(old)
    forget_tail(log)
    assert read_all(log) == expected
    log.abandon()
    recovered = open_log(files)
    assert recovered.corrupt_at is None
    assert read_all(recovered) == expected
