"""The four codecs: batches that other clients compressed are read, and damaged or too large ones are refused."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from random import Random
from threading import Thread

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_compressed_batches import CODECS, RECORDS

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records import batch as v2
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.check import check_records
from strandline.protocol.records.compression import (
    LEVELS,
    RECORDS_BYTES_MAX,
    CannotDecompress,
    Codec,
    compress,
    decompress,
)
from strandline.protocol.records.reader import decode_batch, iter_records

TIME = 1_700_000_000_000
COMPRESSED = [codec for codec in Codec if codec]
RECORDED = {
    name: base64.b64decode(raw)
    for name, raw in json.loads((Path(__file__).parent / "compressed_batches.json").read_text()).items()
}
TEXT = b"many values that look alike, number %d; "


def a_batch(codec: Codec, count: int = 50, **given: int) -> bytearray:
    records = [(b"k%d" % i, TEXT % i, [("h", b"x")], TIME + i) for i in range(count)]
    return bytearray(encode_batch(records, codec=codec, **given))


@pytest.mark.parametrize("name", RECORDED)
def test_batches_of_other_clients_are_read(name: str) -> None:
    """The batches are Java's, librdkafka's and aiokafka's, as a real Apache Kafka stored them. They differ in framing and in
    block sizes."""
    raw = RECORDED[name]
    assert {header.compression for _, header in v2.iter_headers(raw)} == {CODECS.index(name.split()[1]) + 1}
    assert [(r.key, r.value) for r in iter_records(raw)] == [(k.encode(), v.encode()) for k, v in RECORDS]
    for pos, header in v2.iter_headers(raw):
        times = check_records(raw, pos, header)
        assert times.newest == header.max_timestamp


def test_every_client_is_recorded_with_every_codec() -> None:
    assert RECORDED.keys() == {f"{client} {codec}" for client in ("java", "confluent-kafka", "aiokafka") for codec in CODECS}


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_compressed_batch_has_the_records_and_the_header_of_a_plain_one(codec: Codec) -> None:
    plain, packed = (
        a_batch(Codec.NONE, producer_id=7, producer_epoch=1, base_sequence=3),
        a_batch(codec, producer_id=7, producer_epoch=1, base_sequence=3),
    )
    ours, theirs = v2.read_header(packed), v2.read_header(plain)
    assert ours._replace(size=0, crc=0, attributes=0) == theirs._replace(size=0, crc=0, attributes=0)
    assert ours.compression == codec
    assert len(packed) < len(plain) / 2
    assert decode_batch(packed, 0, ours) == decode_batch(plain, 0, theirs)
    assert check_records(packed, 0, ours) == check_records(plain, 0, theirs)


@given(codec=st.sampled_from(COMPRESSED), data=st.binary(max_size=2000), times=st.sampled_from([1, 2, 100]), level=st.data())
def test_what_is_compressed_comes_back(codec: Codec, data: bytes, times: int, level: st.DataObject) -> None:
    lowest, highest, _ = LEVELS.get(codec, (0, 0, 0))
    drawn = level.draw(st.none() | st.integers(max(lowest, -10), highest))
    assert decompress(codec, compress(codec, data * times, drawn)) == data * times


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("size", [0, 1, 32 << 10, (32 << 10) + 1, 64 << 10, (64 << 10) + 1, 300_000])
def test_sizes_around_the_blocks_of_the_formats_come_back(codec: Codec, size: int) -> None:
    """Noise does not become smaller, so the formats store it uncompressed; the other data is one repeated byte."""
    for data in (Random(size).randbytes(size), b"a" * size):
        assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_is_refused_at_the_limit(codec: Codec) -> None:
    """Some kilobytes that would become a gigabyte must not take a gigabyte before they are refused (F13)."""
    bomb = compress(codec, bytes(RECORDS_BYTES_MAX + 1))
    with pytest.raises(CannotDecompress, match=f"more than {RECORDS_BYTES_MAX} bytes"):
        decompress(codec, bomb)
    assert len(decompress(codec, compress(codec, bytes(1_000_000)), 1_000_000)) == 1_000_000
    with pytest.raises(CannotDecompress, match="more than 999999 bytes"):
        decompress(codec, compress(codec, bytes(1_000_000)), 999_999)


def test_a_snappy_block_that_claims_a_gigabyte_is_refused_before_anything_is_allocated() -> None:
    claim = bytes.fromhex("80808080 04") + b"\0" * 20
    xerial = compress(Codec.SNAPPY, b"")[:16] + len(claim).to_bytes(4, "big") + claim
    for data in (claim, xerial):
        with pytest.raises(CannotDecompress, match="bytes when they are decompressed"):
            decompress(Codec.SNAPPY, data)


def test_many_small_blocks_share_one_limit() -> None:
    """Each block alone stays below the limit."""
    block = bytes(cramjam.snappy.compress_raw(bytes(600)))
    data = compress(Codec.SNAPPY, b"") + (len(block).to_bytes(4, "big") + block) * 2
    assert len(decompress(Codec.SNAPPY, data, 1200)) == 1200
    with pytest.raises(CannotDecompress, match="more than 1199"):
        decompress(Codec.SNAPPY, data, 1199)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_damage_is_an_error_of_the_batch_and_never_another_one(codec: Codec) -> None:
    """Cut, extended, empty, noise, a flipped bit: CannotDecompress, or (if no checksum notices) other bytes."""
    rnd, good = Random(5), compress(codec, b"".join(TEXT % i for i in range(200)))
    bad = [good[: rnd.randrange(len(good))] for _ in range(50)] + [b"", b"\0", good[:4], *(rnd.randbytes(n) for n in range(60))]
    for _ in range(300):
        flipped = bytearray(good)
        flipped[rnd.randrange(len(good))] ^= 1 << rnd.randrange(8)
        bad.append(bytes(flipped))
    refused = 0
    for data in bad:
        try:
            decompress(codec, data, 1 << 20)
        except CannotDecompress:
            refused += 1
    assert refused > 60


@pytest.mark.parametrize("codec", COMPRESSED)
def test_undecompressable_payload_is_refused_from_producers_and_named_to_readers(codec: Codec) -> None:
    """To a producer it is INVALID_RECORD, which is not retried; to a reader it is damage."""
    raw = a_batch(codec)
    raw[v2.HEADER_SIZE :] = Random(5).randbytes(len(raw) - v2.HEADER_SIZE)  # Snappy reads some random bytes without an error.
    header = v2.read_header(raw)
    with pytest.raises(BrokerError) as refused:
        check_records(raw, 0, header)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    with pytest.raises(BrokerError, match=codec.name.lower()) as damaged:
        decode_batch(raw, 0, header, check_crc=False)
    assert damaged.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("claimed", [49, 51])
def test_a_record_count_that_the_payload_does_not_have_is_refused(codec: Codec, claimed: int) -> None:
    """Count and last offset agree with each other, but not with the records."""
    raw = a_batch(codec)
    raw[57:61] = claimed.to_bytes(4, "big")
    raw[23:27] = (claimed - 1).to_bytes(4, "big")
    header = v2.read_header(raw)
    v2.validate_records(raw, 0, header)
    with pytest.raises(BrokerError, match="malformed"):
        check_records(raw, 0, header)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused_by_its_number(codec: int) -> None:
    raw = a_batch(Codec.NONE)
    raw[22] |= codec
    for refuse in (
        lambda: decode_batch(raw, 0, v2.read_header(raw), check_crc=False),
        lambda: check_records(raw, 0, v2.read_header(raw)),
    ):
        with pytest.raises(BrokerError, match=f"number {codec}") as e:
            refuse()
        assert e.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_lz4_frames_have_independent_blocks() -> None:
    """Java's clients refuse linked ones ("Dependent block stream is unsupported")."""
    frame = compress(Codec.LZ4, b"a" * 200_000)
    assert frame[:4] == bytes.fromhex("04224d18")
    assert frame[4] & 0b0010_0000


def test_levels_are_honoured() -> None:
    text = b"".join(TEXT % (i * i) for i in range(5000))
    for codec, (_, highest, _) in LEVELS.items():
        assert len(compress(codec, text, highest)) < len(compress(codec, text, 1 if codec is not Codec.LZ4 else 9))


@pytest.mark.parametrize("codec", LEVELS)
def test_other_threads_run_while_records_are_compressed(codec: Codec) -> None:
    """A broker compresses on a thread, and its event loop must not wait: at level 17 lz4 takes a second for some MB."""
    text = b"".join(b"%d and %d" % (i, i * i) for i in range(200_000))
    worker = Thread(target=compress, args=(codec, text[:1_000_000] if codec is Codec.ZSTD else text, LEVELS[codec][1]))
    worker.start()
    turns = 0
    while worker.is_alive():
        worker.join(0.001)
        turns += 1
    assert turns > 8


def test_lz4_frames_of_linked_blocks_are_refused() -> None:
    """A broker of Kafka refuses them. If one were stored, no Java consumer could get past it."""
    with pytest.raises(CannotDecompress, match="linked blocks"):
        decompress(Codec.LZ4, bytes(cramjam.lz4.compress(b"a" * 200_000)))
