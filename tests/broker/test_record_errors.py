"""Produce responses name the records that break a rule of their topic (KIP-467)."""

from __future__ import annotations

import pytest
from replica_world import NOW_MS, Node, code, config, produced
from test_compressed_produce import COMPRESSED, HeldThread, one

from strandline.protocol.errors import ErrorCode
from strandline.protocol.records import batch as v2
from strandline.protocol.records.batch import HEADER_SIZE
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.compression import Codec
from strandline.storage.log.conversion import AT_ONCE_RECORDS_MAX
from strandline.storage.log.record_rules import NAMED_MAX

LATE = NOW_MS + 7200_000
OLD = NOW_MS - 5000
SIZES = [5, 300, AT_ONCE_RECORDS_MAX + 5]
"""Batches of the largest size are checked on a thread if they are compressed, or if their topic is compacted."""


def refused(codec: Codec, rows: list[tuple[bytes | None, int]], **configs: str) -> tuple[Node, list[int]]:
    """A broker that has refused these keys and timestamps, and the record indexes that its response names."""
    thread = HeldThread()
    _, node = one(thread, **configs)
    request = node.produce(bytearray(encode_batch([(k, b"value", [], t) for k, t in rows], codec=codec)), acks=1)
    thread.finish()
    answer = produced(request)
    assert answer.error_code
    assert node.p.log.log_end_offset == 0
    assert answer.invalid_records >= len(answer.record_errors)
    assert all(error.message for error in answer.record_errors)
    return node, [error.batch_index for error in answer.record_errors]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("count", SIZES)
def test_every_record_without_a_key_is_named(codec: Codec, count: int) -> None:
    rows = [(None if n in (1, 3, count - 1) else b"key", NOW_MS) for n in range(count)]
    _, named = refused(codec, rows, cleanup_policy="compact")
    assert named == [1, 3, count - 1]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("count", SIZES)
def test_every_record_with_a_wrong_timestamp_is_named(codec: Codec, count: int) -> None:
    rows = [(b"key", LATE if n == 2 else OLD if n == count - 1 else NOW_MS) for n in range(count)]
    _, named = refused(codec, rows, message_timestamp_before_max_ms="1000")
    assert named == [2, count - 1]


def test_the_response_has_a_message_for_the_batch_and_one_for_each_record() -> None:
    _, node = one(cleanup_policy="compact")
    rows = [(None, NOW_MS), (b"key", NOW_MS), (b"key", LATE), (None, LATE)]
    request = node.produce(bytearray(encode_batch([(k, b"v", [], t) for k, t in rows])), acks=1)
    answer = produced(request)
    assert code(request) == ErrorCode.INVALID_TIMESTAMP, "as in Kafka, if one of the errors is about a timestamp"
    assert answer.error_message is not None
    assert answer.error_message.startswith("record 0 of the batch has no key")
    assert answer.error_message.endswith("; 3 of its 4 records are invalid")
    texts = {error.batch_index: error.message or "" for error in answer.record_errors}
    assert list(texts) == [0, 2, 3]
    assert texts[0].startswith("the record has no key: ")
    assert texts[2] == f"the record has timestamp {LATE}, which is too far ahead of the broker's time, {NOW_MS}"
    assert texts[3] == texts[0]
    assert answer.invalid_records == 3


@pytest.mark.parametrize("codec", list(Codec))
def test_the_list_is_bounded_and_the_count_is_not(codec: Codec) -> None:
    thread = HeldThread()
    _, node = one(thread, cleanup_policy="compact")
    rows = [(b"key" if n == 0 else None, b"v", [], NOW_MS) for n in range(NAMED_MAX + 50)]
    answer = produced(node.produce(bytearray(encode_batch(rows, codec=codec)), acks=1))
    assert [error.batch_index for error in answer.record_errors] == list(range(1, NAMED_MAX + 1))
    assert answer.invalid_records == NAMED_MAX + 49


def test_other_errors_name_no_record() -> None:
    """The records behind a malformed one cannot be read, so it would be wrong to call them valid."""
    _, node = one()
    data = bytearray(encode_batch([(b"key", b"value", [], NOW_MS)] * 3))
    data[HEADER_SIZE + 5] ^= 1
    answer = produced(node.produce(data, acks=1))
    assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
    assert not answer.record_errors
    assert not answer.invalid_records


def test_the_broker_accepts_the_valid_records_afterwards() -> None:
    """The refused batch used no sequence number, so the producer sends the valid records with the same first number."""
    _, node = one(cleanup_policy="compact")
    rows = [(b"key", b"1", [], NOW_MS), (None, b"2", [], NOW_MS)]
    answer = produced(node.produce(bytearray(encode_batch(rows, producer_id=7, producer_epoch=0, base_sequence=0)), acks=1))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    valid = bytearray(encode_batch(rows[:1], producer_id=7, producer_epoch=0, base_sequence=0))
    assert produced(node.produce(valid, acks=1)).base_offset == 0


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("name", ["key", "timestamp"])
def test_a_compressed_batch_is_searched_on_the_thread(codec: Codec, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = HeldThread()
    _, node = one(thread, cleanup_policy="compact" if name == "key" else "delete")
    count = AT_ONCE_RECORDS_MAX + 1
    bad: tuple[bytes | None, int] = (None, NOW_MS) if name == "key" else (b"key", LATE)
    rows = [*[(b"key", NOW_MS)] * (count - 1), bad]
    request = node.produce(bytearray(encode_batch([(k, b"v", [], t) for k, t in rows], codec=codec)), acks=1)
    ((work, then),) = thread.waiting
    work()

    def fail(*args: object) -> None:
        raise AssertionError("decompressed on the loop")

    monkeypatch.setattr(v2, "decompress", fail)
    then()
    assert [error.batch_index for error in produced(request).record_errors] == [count - 1]


def test_a_prepared_batch_obeys_the_settings_at_its_append() -> None:
    """The records are not searched again, so the response names none."""
    thread = HeldThread()
    world, node = one(thread)
    rows = [(b"key", b"v", [], OLD)] * (AT_ONCE_RECORDS_MAX + 1)
    request = node.produce(bytearray(encode_batch(rows, codec=Codec.ZSTD)), acks=1)
    world.change(config("orders", "message.timestamp.before.max.ms", "1000"))
    thread.finish()
    answer = produced(request)
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert answer.error_message == f"a record has timestamp {OLD}, which is too far behind the broker's time, {NOW_MS}"
    assert not answer.record_errors
    assert node.p.log.log_end_offset == 0
