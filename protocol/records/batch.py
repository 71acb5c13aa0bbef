"""The record batch: Kafka's v2 format, byte for byte, on the wire and on disk.

     0  base offset             i64    absolute offset of the first record            } outside the checksum, so that a
     8  batch length            i32    bytes that follow this field                   } broker can stamp them and leave
    12  partition leader epoch  i32    of the leader that appended it                 } the producer's bytes unchanged
    16  magic                   i8     2
    17  crc                     u32    CRC-32C of everything from `attributes` on
    21  attributes              i16    0-2 compression, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon
    23  last offset delta       i32    last offset - base offset; stays when compaction removes records
    27  base timestamp          i64    ms; records hold deltas to it
    35  max timestamp           i64
    43  producer id             i64    -1: not idempotent
    51  producer epoch          i16
    53  base sequence           i32    of the first record; wraps from 2^31-1 to 0
    57  record count            i32
    61  records                        see `builder.py`

All functions here work per batch. On a broker, only the leader looks at single records, once, before it appends them
(`check.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct, error
from typing import NamedTuple, NoReturn

import crc32c

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.compression import RECORDS_BYTES_MAX, Codec, compress, decompress

Buffer = bytes | bytearray | memoryview

HEADER = Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
assert HEADER_SIZE == 61

BASE_OFFSET_POS = 0
LEADER_EPOCH_POS = 12
MAGIC_POS = 16
CRC_POS = 17
ATTRIBUTES_POS = 21
MAX_TIMESTAMP_POS = 35
PRODUCER_ID_POS = 43
LENGTH_PREFIX = 12
"""Number of bytes before the part that `batch length` counts: base offset and the length itself."""
MAGIC = 2
MIN_RECORD_SIZE = 7
"""One byte each: length, attributes, timestamp delta, offset delta, key length, value length, header count."""

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
"""If set (LogAppendTime), every record has the batch's max timestamp."""
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

NO_COMPRESSION = 0

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
MAX_SEQUENCE = 2**31 - 1

_BASE_OFFSET = Struct(">q")
_LEADER_EPOCH = Struct(">i")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_PRODUCER = Struct(">qhi")
"""Producer id, producer epoch and base sequence, which lie side by side."""
_MAX_OFFSET = 2**63 - 1


class BatchHeader(NamedTuple):
    """A batch header. `size` is the size of the whole batch in bytes, header included."""

    base_offset: int
    size: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; -1 for a batch without sequence numbers."""
        return next_sequence(self.base_sequence, self.last_offset_delta) if self.base_sequence >= 0 else NO_SEQUENCE

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_MASK)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)


def next_sequence(sequence: int, increment: int) -> int:
    """`sequence + increment`, wrapped from 2^31-1 to 0."""
    return (sequence + increment) & MAX_SEQUENCE


def corrupt(message: str) -> NoReturn:
    """Raise CORRUPT_MESSAGE with this text."""
    raise BrokerError(ErrorCode.CORRUPT_MESSAGE, message)


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header at `pos`. Raises CORRUPT_MESSAGE unless it is plausible and the whole batch lies in `buf`."""
    try:
        fields = HEADER.unpack_from(buf, pos)
    except error:
        corrupt(f"a batch of at least {HEADER_SIZE} bytes was expected, {len(buf) - pos} are left")
    base_offset, length, _, magic, _, _, last_delta, _, _, _, _, _, count = fields
    size = length + LENGTH_PREFIX
    if magic != MAGIC:
        corrupt(f"batch format {magic} is not supported, only 2")
    if size < HEADER_SIZE or size > len(buf) - pos:
        corrupt(f"a batch claims {size} bytes where {len(buf) - pos} are left")
    if base_offset < 0 or last_delta < 0 or base_offset + last_delta > _MAX_OFFSET:
        corrupt(f"a batch claims the offsets {base_offset} to {base_offset + last_delta}")
    if not 0 <= count <= last_delta + 1:
        corrupt(f"a batch claims {count} records for {last_delta + 1} offsets")
    return _new_header(BatchHeader, (base_offset, size, *fields[2:]))


_new_header = tuple.__new__


def iter_headers(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch. Raises CORRUPT_MESSAGE at an incomplete batch or a header that is not plausible."""
    pos, end = 0, len(buf)
    while pos < end:
        header = read_header(buf, pos)
        yield pos, header
        pos += header.size


def compute_crc(buf: Buffer, pos: int, size: int) -> int:
    """The CRC-32C of the batch of `size` bytes at `pos`."""
    return crc32c.crc32c(memoryview(buf)[pos + ATTRIBUTES_POS : pos + size])


def record_bytes(buf: Buffer, pos: int, header: BatchHeader, size_max: int = RECORDS_BYTES_MAX) -> bytes:
    """The records of the batch at `pos` as they are encoded, decompressed if it is compressed.

    Raises UNSUPPORTED_COMPRESSION_TYPE if the codec is unknown; CannotDecompress (a ValueError)."""
    data = memoryview(buf)[pos + HEADER_SIZE : pos + header.size]
    codec = header.attributes & COMPRESSION_MASK
    return decompress(codec, data, size_max) if codec else bytes(data)


def check_crc(buf: Buffer, pos: int, size: int) -> bool:
    """Whether the batch of `size` bytes at `pos` has the checksum that its header claims."""
    return bool(compute_crc(buf, pos, size) == _CRC.unpack_from(buf, pos + CRC_POS)[0])


def stamp(buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch, which the CRC does not cover."""
    _BASE_OFFSET.pack_into(buf, pos, base_offset)
    _LEADER_EPOCH.pack_into(buf, pos + LEADER_EPOCH_POS, leader_epoch)


def stamp_log_append_time(buf: bytearray | memoryview, pos: int, size: int, timestamp_ms: int) -> None:
    """Give every record the broker's time (message.timestamp.type=LogAppendTime), and recompute the CRC."""
    (attributes,) = _ATTRIBUTES.unpack_from(buf, pos + ATTRIBUTES_POS)
    _ATTRIBUTES.pack_into(buf, pos + ATTRIBUTES_POS, attributes | TIMESTAMP_TYPE_MASK)
    _BASE_OFFSET.pack_into(buf, pos + MAX_TIMESTAMP_POS, timestamp_ms)
    _CRC.pack_into(buf, pos + CRC_POS, compute_crc(buf, pos, size))


def stamp_producer(
    buf: bytearray | memoryview, pos: int, size: int, producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    """Write another producer id, epoch and base sequence, and renew the checksum."""
    _PRODUCER.pack_into(buf, pos + PRODUCER_ID_POS, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(buf, pos + CRC_POS, compute_crc(buf, pos, size))


def base_offset_at(buf: Buffer, pos: int) -> int:
    """The base offset field of the batch at `pos`."""
    offset: int = _BASE_OFFSET.unpack_from(buf, pos)[0]
    return offset


def max_timestamp_at(buf: Buffer, pos: int) -> int:
    """The max timestamp field of the batch at `pos`."""
    timestamp: int = _BASE_OFFSET.unpack_from(buf, pos + MAX_TIMESTAMP_POS)[0]
    return timestamp


def stamp_max_timestamp(buf: bytearray | memoryview, pos: int, size: int, timestamp_ms: int) -> None:
    """Write the max timestamp field, and recompute the CRC."""
    _BASE_OFFSET.pack_into(buf, pos + MAX_TIMESTAMP_POS, timestamp_ms)
    _CRC.pack_into(buf, pos + CRC_POS, compute_crc(buf, pos, size))


def validate_records(buf: Buffer, pos: int, header: BatchHeader) -> None:
    """Raise INVALID_RECORD unless a producer's batch has one record per offset and room for that many records.

    Only compaction leaves offsets without a record. The records themselves are checked afterwards (`check.py`).
    """
    if header.record_count == 0 or header.record_count != header.last_offset_delta + 1:
        raise BrokerError(
            ErrorCode.INVALID_RECORD,
            f"a produced batch must have one record per offset; it has {header.record_count} for {header.last_offset_delta + 1}",
        )
    if not header.attributes & COMPRESSION_MASK and header.size - HEADER_SIZE < MIN_RECORD_SIZE * header.record_count:
        raise BrokerError(
            ErrorCode.INVALID_RECORD, f"{header.size - HEADER_SIZE} bytes cannot hold {header.record_count} records"
        )


_UNCHECKED = Struct(">qiibI")
_CHECKED = Struct(">hiqqqhii")
"""The two parts of the header: the one that the CRC does not cover, and the one that it covers."""


def with_records(
    header: BatchHeader, records: Sequence[Buffer], record_count: int, codec: Codec = Codec.NONE, level: int | None = None
) -> bytes:
    """The batch of this header with other encoded records, compressed with `codec`. Size, checksum, codec and record count are
    those of the new records; everything else in the header stays."""
    return assemble(
        records,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        attributes=header.attributes & ~COMPRESSION_MASK,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=record_count,
        codec=codec,
        level=level,
    )


def assemble(
    records: Sequence[Buffer],
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
    codec: Codec = Codec.NONE,
    level: int | None = None,
) -> bytes:
    """Join the encoded parts of records to one batch, compressed with `codec`. `level`: see `compression.LEVELS`."""
    checked = _CHECKED.pack(
        attributes | codec,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    body = b"".join(records)
    if codec:
        body = compress(codec, body, level)
    crc = crc32c.crc32c(body, crc32c.crc32c(checked))
    size = HEADER_SIZE + len(body)
    return _UNCHECKED.pack(base_offset, size - LENGTH_PREFIX, leader_epoch, MAGIC, crc) + checked + body
