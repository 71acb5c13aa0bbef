"""The segments source without Spark: which files it finds, and which Arrow rows it makes of batches, records and damage."""

from __future__ import annotations

import base64
import json
import os
import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from segment_files import batch, index_of, positions, segment, write_log

from strandline.pipeline.segments.columns import BATCH_COLUMNS, RECORD_COLUMNS
from strandline.pipeline.segments.files import SegmentMissing
from strandline.pipeline.segments.layout import find_segments
from strandline.pipeline.segments.options import SegmentOptions, segment_options
from strandline.pipeline.segments.plan import plan
from strandline.pipeline.segments.task import read_batches, read_part, read_records
from strandline.protocol.errors import UsageError
from strandline.protocol.records.batch import ATTRIBUTES_POS, CRC_POS, HEADER, HEADER_SIZE, compute_crc, stamp
from strandline.protocol.records.builder import encode_batch, encode_values
from strandline.protocol.records.compression import Codec, compress
from strandline.storage.checkpoints import MetaProperties, PartitionMetadata, uuid_to_text

TOPIC_ID = bytes(range(16))


def options(path: Path | str, **written: str) -> SegmentOptions:
    return segment_options({"path": str(path), **written})


def rows(path: Path | str, **written: str) -> list[dict[str, Any]]:
    """All rows that a job with these options reads."""
    chosen = options(path, **written)
    return [row for task in plan(chosen) for part in task for some in read_part(part, chosen) for row in some.to_pylist()]


def compressed(codec: int, records: Sequence[bytes], data: bytes | None = None) -> bytes:
    """A compressed batch as Kafka's clients send it; the header is not compressed. `data` replaces the compressed records."""
    plain = encode_batch([(None, value, (), 1000) for value in records], leader_epoch=0)
    name = ("gzip", "snappy", "lz4", "zstd")[codec - 1]
    if data is None and name == "snappy":
        block = pa.compress(plain[HEADER_SIZE:], codec=name, asbytes=True)
        data = b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block
    elif data is None and name == "lz4":  # pyarrow links the blocks of a frame, which Kafka's clients neither write nor read
        data = compress(Codec.LZ4, plain[HEADER_SIZE:])
    elif data is None:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, name) as stream:
            stream.write(plain[HEADER_SIZE:])
        data = sink.getvalue().to_pybytes()
    made = bytearray(plain[:HEADER_SIZE] + data)
    struct.pack_into(">i", made, 8, len(made) - 12)
    struct.pack_into(">h", made, ATTRIBUTES_POS, codec)
    struct.pack_into(">I", made, CRC_POS, compute_crc(made, 0, len(made)))
    stamp(made, 0, 0, 0)
    return bytes(made)


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Data directories of two brokers, as `strandline up` creates them, with logs and with other files and folders."""
    for node in (1, 2):
        data = tmp_path / f"broker-{node}" / "data"
        log = write_log(data / "my-orders-0", [(0, segment(4)), (12, segment(2, base_offset=12))])
        write_log(data / "my-orders-1", [(0, b"")])
        write_log(data / "__cluster_metadata-0", [(0, segment(1))])
        write_log(data / "gone-0.6d7aed-delete", [(0, segment(1))])
        (data / "lost+found").mkdir()
        (data / "meta.properties").write_bytes(MetaProperties("c", node, TOPIC_ID).encode())
        (log / "partition.metadata").write_bytes(PartitionMetadata.encode(TOPIC_ID))
        (log / "00000000000000000099.log.deleted").write_bytes(b"x")
    return tmp_path


def test_logs_of_all_brokers_are_found_and_nothing_else(cluster: Path) -> None:
    found = find_segments([str(cluster)])
    assert [(f.broker, f.topic, f.partition, f.base_offset, f.is_last) for f in found] == [
        (node, "my-orders", *rest)
        for node in (1, 2)
        for rest in ((0, 0, False), (0, 12, True), (1, 0, True))
    ]  # fmt: skip
    assert {f.topic_id for f in found} == {uuid_to_text(TOPIC_ID), None}


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("", 4 * 2 + 2 * 2),
        ("broker-1", 6),
        ("broker-1/data", 6),
        ("broker-1/data/my-orders-0", 6),
        ("broker-1/data/my-orders-0/00000000000000000012.log", 2),
    ],
)
def test_path_may_name_a_cluster_a_broker_a_log_or_a_file(cluster: Path, path: str, count: int) -> None:
    assert len(rows(cluster / path)) == count


def test_relative_path_is_resolved_where_the_read_is_planned(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's workers may have another working directory."""
    monkeypatch.chdir(cluster)
    assert {row["path"] for row in rows(".")} == {row["path"] for row in rows(cluster)}


def test_segment_below_several_paths_is_read_once(cluster: Path) -> None:
    log = cluster / "broker-1" / "data" / "my-orders-0"
    assert len(rows(f"{log / '00000000000000000012.log'},{log},{cluster}")) == len(rows(cluster))


def test_metadata_log_is_read_only_if_named(cluster: Path) -> None:
    assert {row["topic"] for row in rows(cluster, topics="__cluster_metadata")} == {"__cluster_metadata"}
    assert {row["topic"] for row in rows(cluster)} == {"my-orders"}


@pytest.mark.parametrize(
    ("path", "text"),
    [("nothing", "cannot be listed: No such file"), ("broker-1/data/lost+found", "holds no log"), ("s3://a/b", "mounted")],
)
def test_path_without_logs_is_rejected_with_the_reason(cluster: Path, path: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        rows(path if "://" in path else cluster / path)


def test_batch_row_has_every_field_of_the_header(tmp_path: Path) -> None:
    data = encode_batch(
        [(b"k", b"v", (), 1000), (None, b"w", (), 2500)],
        base_offset=7, leader_epoch=3, producer_id=41, producer_epoch=2, base_sequence=9,
    )  # fmt: skip
    log = write_log(tmp_path / "orders-0", [(7, data)])
    (row,) = rows(tmp_path)
    assert list(row) == list(BATCH_COLUMNS)
    assert row.pop("baseTimestamp").timestamp() == 1.0
    assert row.pop("maxTimestamp").timestamp() == 2.5
    assert row.pop("crcStored") == row.pop("crcComputed") == compute_crc(data, 0, len(data))
    assert row == {
        "path": str(log / "00000000000000000007.log"), "broker": None, "topic": "orders", "partition": 0, "topicId": None,
        "segmentBase": 7, "position": 0, "baseOffset": 7, "lastOffset": 8, "leaderEpoch": 3, "recordCount": 2,
        "producerId": 41, "producerEpoch": 2, "baseSequence": 9, "timestampType": 0, "codec": "none",
        "isTransactional": False, "isControl": False, "sizeBytes": len(data), "damage": None,
    }  # fmt: skip


def test_record_row_has_the_record_and_its_batch(tmp_path: Path) -> None:
    records = [(b"key", b"value", (("a", b"1"), ("b", None)), 1000), (None, None, (), 2500)]
    data = encode_batch(records, base_offset=7, leader_epoch=3, producer_id=41, producer_epoch=2, base_sequence=2**31 - 1)
    write_log(tmp_path / "orders-0", [(7, data)])
    first, second = rows(tmp_path, rows="record")
    assert list(first) == list(RECORD_COLUMNS)
    assert (first["offset"], second["offset"], first["baseOffset"], second["baseOffset"]) == (7, 8, 7, 7)
    assert (first["sequence"], second["sequence"]) == (2**31 - 1, 0)
    assert (first["key"], first["value"], second["key"], second["value"]) == (b"key", b"value", None, None)
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert (second["headers"], second["sizeBytes"], first["sizeBytes"]) == (None, 0, 3 + 5 + 3)
    assert (second["timestamp"].timestamp(), second["timestampType"]) == (2.5, 0)
    assert {(r["leaderEpoch"], r["producerId"], r["producerEpoch"], r["isControl"], r["damage"]) for r in (first, second)} == {
        (3, 41, 2, False, None)
    }


@pytest.mark.parametrize("split", ["1", "100", "400", "1m"])
@pytest.mark.parametrize("kind", ["batch", "record"])
def test_any_split_size_gives_the_same_rows(tmp_path: Path, split: str, kind: str) -> None:
    data = bytearray(segment(20))
    write_log(tmp_path / "orders-0", [(0, bytes(data)), (60, segment(7, base_offset=60))], index_of(segment(7, base_offset=60)))
    whole = rows(tmp_path, rows=kind)
    assert len(whole) == 27 * (1 if kind == "batch" else 3)
    assert rows(tmp_path, rows=kind, splitBytes=split) == whole


def test_small_segments_share_a_task_and_large_segments_are_split(tmp_path: Path) -> None:
    for n in range(40):
        write_log(tmp_path / f"small-{n}", [(0, segment(2))])
    assert len(plan(options(tmp_path))) == 1
    write_log(tmp_path / "large-0", [(0, segment(40, size=1000))])
    tasks = plan(options(tmp_path, splitBytes="30k"))
    assert sum(part.file.topic == "large" for task in tasks for part in task) > 3


@pytest.mark.parametrize(
    ("written", "offsets"),
    [
        ({"startingOffset": "10"}, range(10, 90)),
        ({"endingOffset": "50"}, range(50)),
        ({"startingOffset": "31", "endingOffset": "32"}, range(31, 32)),
        ({"startingOffset": "90"}, ()),
    ],
)
def test_offsets_prune_segments_splits_and_rows(tmp_path: Path, written: dict[str, str], offsets: Sequence[int]) -> None:
    write_log(tmp_path / "orders-0", [(n, segment(10, base_offset=n)) for n in (0, 30, 60)])
    for split in ("200", "1m"):
        found = rows(tmp_path, rows="record", splitBytes=split, **written)
        assert [row["offset"] for row in found] == list(offsets)
        of_batches = rows(tmp_path, splitBytes=split, **written)
        assert {offset // 3 * 3 for offset in offsets} == {row["baseOffset"] for row in of_batches}
    read = sum(
        part.range.end - part.range.start for task in plan(options(tmp_path, splitBytes="200", **written)) for part in task
    )
    assert read < 1.5 * len(segment(10)) * 3 * (len(offsets) + 15) / 90


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_batch_is_sound_and_its_records_are_read(tmp_path: Path, codec: int) -> None:
    values = [b"value %d" % n + b"." * 100 for n in range(50)]
    write_log(tmp_path / "orders-0", [(0, compressed(codec, values))])
    (row,) = rows(tmp_path)
    assert (row["damage"], row["codec"], row["recordCount"]) == (None, ("gzip", "snappy", "lz4", "zstd")[codec - 1], 50)
    found = rows(tmp_path, rows="record")
    assert [(r["offset"], r["value"], r["damage"]) for r in found] == [(n, v, None) for n, v in enumerate(values)]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batch_of_apache_kafka_is_read(tmp_path: Path, codec: str) -> None:
    """The batches were written by the producer of Kafka 4.3 and copied from its broker's log: 100 random letters per value."""
    golden = json.loads((Path(__file__).parent / "kafka_compressed_batches.json").read_text())[codec]
    base_offset, records = golden["base_offset"], golden["records"]
    write_log(tmp_path / "orders-0", [(base_offset, base64.b64decode(golden["batch"]))])
    (row,) = rows(tmp_path)
    assert (row["damage"], row["codec"], row["recordCount"]) == (None, codec, records)
    found = rows(tmp_path, rows="record")
    assert [row["offset"] for row in found] == list(range(base_offset, base_offset + records))
    assert all(len(row["value"]) == 100 and row["value"].isalpha() and row["damage"] is None for row in found)


@pytest.mark.parametrize("codec", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("data", [b"", b"no such stream", b"\x82SNAPPY\0" + b"\xff" * 20])
def test_undecodable_records_are_one_damaged_row(tmp_path: Path, codec: int, data: bytes) -> None:
    bad = compressed(min(codec, 4), [b"x"], data)
    if codec == 7:
        made = bytearray(bad)
        struct.pack_into(">h", made, ATTRIBUTES_POS, 7)
        struct.pack_into(">I", made, CRC_POS, compute_crc(made, 0, len(made)))
        bad = bytes(made)
    write_log(tmp_path / "orders-0", [(0, bad + batch(1, [b"next"]))])
    assert [row["damage"] for row in rows(tmp_path)] == [None, None]
    first, second = rows(tmp_path, rows="record")
    assert first["damage"].split(":")[0] in ("codec", "records")
    assert (first["offset"], first["baseOffset"], second["value"]) == (None, 0, b"next")


def test_damaged_batch_is_one_row_among_the_records(tmp_path: Path) -> None:
    data = bytearray(segment(3))
    data[positions(bytes(data))[1] + 90] ^= 1
    write_log(tmp_path / "orders-0", [(0, bytes(data) + b"torn")])
    found = rows(tmp_path, rows="record")
    assert [row["offset"] for row in found] == [0, 1, 2, None, 6, 7, 8, None]
    assert [row["damage"] and row["damage"].split(":")[0] for row in found] == [None] * 3 + ["checksum"] + [None] * 3 + [
        "torn tail"
    ]
    assert found[3]["sizeBytes"] == len(segment(1))


def test_columns_have_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    write_log(tmp_path / "orders-0", [(0, segment(1))])
    (row,) = rows(tmp_path, columns="sizebytes, topic")
    assert list(row) == ["sizeBytes", "topic"]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ({"rows": "lines"}, "rows must be batch or record, not 'lines'"),
        ({"column": "topic"}, "unknown option 'column'; did you mean 'columns'?"),
        ({"columns": "ofset", "rows": "record"}, "no column 'ofset'; did you mean 'offset'?"),
        ({"columns": "key"}, "rows=batch has no column 'key'"),
        ({"columns": "topic,TOPIC"}, "column topic is named twice"),
        ({"splitBytes": "much"}, "splitBytes must be a number of bytes"),
        ({"partitions": "a"}, "partitions must be a whole number"),
        ({"startingOffset": "-1"}, "startingOffset must be at least 0"),
        ({"pushFilters": "yes"}, "pushFilters must be true or false"),
    ],
)
def test_wrong_option_is_rejected_by_name(written: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text.replace("?", r"\?")):
        options("/a", **written)


def test_missing_path_is_rejected() -> None:
    with pytest.raises(UsageError, match="no path is given"):
        segment_options({})


def test_deleted_segment_is_an_error_or_skipped(tmp_path: Path) -> None:
    log = write_log(tmp_path / "orders-0", [(0, segment(2)), (6, segment(1, base_offset=6))])
    for ignore in ("false", "true"):
        chosen = options(tmp_path, ignoreMissingFiles=ignore)
        ((first, second),) = plan(chosen)
        os.rename(first.file.path, log / "elsewhere")
        if ignore == "true":
            assert list(read_part(first, chosen)) == []
        else:
            with pytest.raises(
                SegmentMissing, match=r"00000000000000000000\.log cannot be read: No such file.*ignoreMissingFiles"
            ):
                list(read_part(first, chosen))
        assert sum(map(len, read_part(second, chosen))) == 1
        os.rename(log / "elsewhere", first.file.path)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A worker must be able to read files larger than its memory: here 200 MB of batches, then a hole of 256 MB."""
    log = write_log(tmp_path / "orders-0", [(0, b"")])
    piece = bytearray(segment(250, size=5300))
    starts = positions(bytes(piece))
    with (log / "00000000000000000000.log").open("wb") as file:
        for n in range(50):
            for i, at in enumerate(starts):
                stamp(piece, at, 3 * (250 * n + i), 0)
            file.write(piece)
        file.truncate(file.tell() + (256 << 20))
    assert 190 << 20 < 50 * len(piece) < 210 << 20
    chosen = options(tmp_path)
    tracemalloc.start()
    try:
        counts = {"sound": 0, "preallocated": 0}
        for task in plan(chosen):
            for part in task:
                for some in read_part(part, chosen):
                    for damage in some.column("damage").to_pylist():
                        counts["sound" if damage is None else damage.split(":")[0]] += 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert counts == {"sound": 12_500, "preallocated": 1}
    assert peak < 24 << 20, peak


# -- any bytes -------------------------------------------------------------------------------------------------------

i8, i16, i32, i64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64))
payloads = st.one_of(
    st.binary(max_size=60),
    st.lists(st.binary(max_size=9), min_size=1, max_size=4).map(lambda v: encode_values(v, timestamp_ms=0)[HEADER_SIZE:]),
)


@st.composite
def arbitrary_batches(draw: st.DrawFn) -> bytes:
    """Batches with a possible header and the right CRC, but arbitrary other fields and records."""
    payload, last_delta = draw(payloads), draw(st.integers(0, 5))
    fields = [
        draw(st.integers(0, 40)), HEADER_SIZE - 12 + len(payload), draw(st.integers(-1, 9)), 2, 0, draw(i16), last_delta,
        draw(i64), draw(i64), draw(i64), draw(i16), draw(i32), draw(st.integers(0, last_delta + 1)),
    ]  # fmt: skip
    made = bytearray(HEADER.pack(*fields) + payload)
    struct.pack_into(">I", made, CRC_POS, compute_crc(made, 0, len(made)))
    return bytes(made)


@given(st.lists(st.one_of(arbitrary_batches(), st.binary(max_size=80), st.just(segment(2))), max_size=6).map(b"".join))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_become_rows(tmp_path: Path, data: bytes) -> None:
    """No bytes raise an error: the Arrow batches are valid, and the sizes of the rows add up to the size of the file."""
    path = tmp_path / "orders-0" / "00000000000000000000.log"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    (file,) = find_segments([str(path)])
    batches = list(read_batches(file))
    records = list(read_records(file))
    for each in batches + records:
        each.validate(full=True)
    assert sum(row for each in batches for row in each.column("sizeBytes").to_pylist()) == len(data)
    known = {row for each in batches for row in each.column("position").to_pylist()}
    assert {row for each in records for row in each.column("position").to_pylist()} <= known
