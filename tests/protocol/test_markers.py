"""Markers of transactions, in Kafka's bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.protocol.records import batch as v2
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.control import SnapshotFooter, decode_control, encode_control_batch
from strandline.protocol.records.fence import make_fence
from strandline.protocol.records.marker import EndTransactionMarker, encode_marker, is_marker, read_marker
from strandline.protocol.records.reader import decode_batch

TIME = 1_700_000_000_000


@pytest.mark.parametrize(("is_commit", "key"), [(False, "00000000"), (True, "00000001")])
def test_a_marker_has_kafkas_bytes(is_commit: bool, key: str) -> None:
    """Written by hand from Kafka's ControlRecordType and EndTxnMarker.json. Kafka expects 78 bytes
    (`EndTransactionMarker.CURRENT_END_TXN_SCHEMA_RECORD_SIZE`)."""
    raw = encode_marker(EndTransactionMarker(is_commit, 258), 7, 3, TIME, base_offset=5, leader_epoch=2)
    header = v2.read_header(raw)
    assert len(raw) == 78
    assert v2.check_crc(raw, 0, len(raw))
    assert header.attributes == 0x30
    assert header[:3] == (5, 78, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.record_count) == (7, 3, -1, 1)
    assert header.base_timestamp == header.max_timestamp == TIME
    (record,) = decode_batch(raw, 0, header)
    assert (record.key, record.value) == (bytes.fromhex(key), bytes.fromhex("000000000102"))
    assert is_marker(header)
    assert read_marker(raw, 0, header) == EndTransactionMarker(is_commit, 258)
    assert decode_control(record.key, record.value) == EndTransactionMarker(is_commit, 258)


def test_other_batches_are_no_markers() -> None:
    for raw in (
        encode_batch([(b"k", b"v", (), TIME)], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True),
        encode_control_batch(SnapshotFooter(), TIME),
        make_fence(5, 0, 0),
    ):
        assert not is_marker(v2.read_header(raw))


def test_a_marker_without_its_record_ends_nothing() -> None:
    """Kafka's cleaner leaves such batches."""
    raw = encode_marker(EndTransactionMarker(True, 1), 7, 3, TIME)
    emptied = v2.with_records(v2.read_header(raw), [], 0)
    header = v2.read_header(emptied)
    assert is_marker(header)
    assert read_marker(emptied, 0, header) is None


@given(st.binary(max_size=4), st.binary(max_size=8), st.integers(0, 16), st.binary(max_size=2))
def test_a_malformed_marker_is_read_without_an_exception(key: bytes, value: bytes, at: int, noise: bytes) -> None:
    raw = bytearray(
        encode_batch([(key, value, (), TIME)], is_transactional=True, is_control=True, producer_id=7, producer_epoch=0)
    )
    at = min(v2.HEADER_SIZE + at, len(raw) - len(noise))
    raw[at : at + len(noise)] = noise
    marker = read_marker(raw, 0, v2.read_header(raw))
    assert marker is None or isinstance(marker, EndTransactionMarker)
