"""The cleaner meets batches that no producer of ours sends, and keys of any size. If it cannot read a batch, it refuses the batch
and changes nothing: the log stays as it is, and readable."""

from __future__ import annotations

import gzip
from random import Random

import pytest
from cleaner_kit import Cleaned, clean, keyed, rows
from storage_kit import DIR, NOW_MS, open_log, read_all

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records import batch as v2
from strandline.protocol.records.batch import HEADER_SIZE, read_header
from strandline.protocol.records.compression import RECORDS_BYTES_MAX, Codec, compress
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.memory.memory_files import MemoryFiles

MIB = 1 << 20
PLAIN = bytes(keyed([(b"a", b"1" * 50), (b"b", b"2" * 50), (b"a", b"3" * 50)])[HEADER_SIZE:])
"""Three records, of which the first is superseded."""


def stored(payload: bytes, codec: int, *, count: int = 3) -> bytes:
    """A batch of offsets 0 to 2 with this payload, and the right checksum."""
    return v2.assemble(
        [payload],
        base_offset=0,
        leader_epoch=0,
        attributes=codec,
        last_offset_delta=2,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS + 2,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=count,
    )


def flipped(payload: bytes) -> bytes:
    """The payload with a wrong byte in its middle."""
    changed = bytearray(payload)
    changed[len(changed) // 2] ^= 0xFF
    return bytes(changed)


def with_length(payload: bytes, by: int) -> bytes:
    """A gzip payload that claims this much more decompressed bytes."""
    return payload[:-4] + (int.from_bytes(payload[-4:], "little") + by).to_bytes(4, "little")


COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
BROKEN = {
    **{f"{codec.name.lower()} cut off": stored(compress(codec, PLAIN)[:-9], codec) for codec in COMPRESSED},
    **{f"{codec.name.lower()} noise": stored(Random(codec).randbytes(90), codec) for codec in COMPRESSED},
    "gzip flipped": stored(flipped(compress(Codec.GZIP, PLAIN)), Codec.GZIP),
    "lz4 flipped": stored(flipped(compress(Codec.LZ4, PLAIN)), Codec.LZ4),
    "gzip claims more": stored(with_length(compress(Codec.GZIP, PLAIN), 1), Codec.GZIP),
    "gzip claims less": stored(with_length(compress(Codec.GZIP, PLAIN), -1), Codec.GZIP),
    "snappy claims more": stored(bytes([len(PLAIN) % 128 | 128, len(PLAIN) // 128 + 1, *b"\x00a"]), Codec.SNAPPY),
    "empty payload": stored(b"", Codec.ZSTD),
    "fewer records than claimed": stored(compress(Codec.ZSTD, PLAIN[: len(PLAIN) * 2 // 3]), Codec.ZSTD),
    "more records than claimed": stored(compress(Codec.ZSTD, PLAIN), Codec.ZSTD, count=2),
    "bytes after the records": stored(compress(Codec.ZSTD, PLAIN + b"\0\0\0"), Codec.ZSTD),
    **{f"{codec.name.lower()} bomb": stored(compress(codec, bytes(RECORDS_BYTES_MAX + 1)), codec) for codec in COMPRESSED},
    "nested bomb": stored(compress(Codec.ZSTD, gzip.compress(bytes(RECORDS_BYTES_MAX + 1))), Codec.ZSTD),
    "codec 5": stored(PLAIN, 5),
}


def log_with(first: bytes) -> tuple[MemoryFiles, Log]:
    """A log that begins with this batch, as the disk may hold it, and has newer records after it."""
    files = MemoryFiles(Random(0))
    files.make_dirs(DIR)
    files.write(f"{DIR}/{0:020d}.log", first)
    log = open_log(files, config=LogConfig(max_message_bytes=4 * MIB))
    assert log.log_end_offset == 3
    log.append_as_leader(keyed([(b"a", b"4")]), 0, NOW_MS)
    log.roll(NOW_MS)
    log.update_high_watermark(4)
    return files, log


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("where", ["dirty", "clean"])
def test_batch_that_cannot_be_read_fails_the_cleaning_and_changes_nothing(name: str, where: str) -> None:
    files, log = log_with(BROKEN[name])
    if where == "clean":
        log.append_as_leader(keyed([(b"a", b"5")]), 0, NOW_MS)
        log.roll(NOW_MS)
        log.update_high_watermark(5)
    before, names = read_all(log), files.list(DIR)
    with pytest.raises(BrokerError) as caught:
        clean(log, 0 if where == "dirty" else 4)
    assert caught.value.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    assert (read_all(log), files.list(DIR)) == (before, names)
    assert log.failure.error is None


def test_sound_batch_of_the_same_form_is_cleaned() -> None:
    """So the batches above are refused only for their payload."""
    for codec in COMPRESSED:
        _, log = log_with(stored(compress(codec, PLAIN), codec))
        assert clean(log) == Cleaned(4, 1)
        assert rows(log) == [(1, b"b", b"2" * 50), (3, b"a", b"4")]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_keys_of_a_mebibyte_are_cleaned_with_a_small_map(codec: Codec) -> None:
    """A key takes 24 bytes of the map, whatever its length."""
    first, second = Random(1).randbytes(MIB), Random(1).randbytes(MIB - 1) + b"!"
    log = open_log(config=LogConfig(max_message_bytes=4 * MIB))
    for key, value in ((first, b"1"), (second, b"1"), (first, b"2"), (second, None), (second, b"3"), (b"", b"empty key")):
        log.append_as_leader(keyed([(key, value)], codec=codec), 0, NOW_MS)
    log.roll(NOW_MS)
    log.update_high_watermark(6)
    assert clean(log, keys=3).next_dirty == 6
    assert rows(log) == [(2, first, b"2"), (4, second, b"3"), (5, b"", b"empty key")]
    assert [read_header(each).record_count for each in read_all(log)] == [0, 1, 0, 1, 1]
