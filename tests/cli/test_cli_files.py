"""`log dump` and `config keys`: commands that need no cluster."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from cli_world import Outcome, one_sentence, run
from storage_kit import NOW_MS, batch, open_log

from strandline.controller.metadata.records import TopicRecord, UserScramCredentialRecord, encode_record
from strandline.protocol.records.batch import HEADER_SIZE, compute_crc, read_header, with_records
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.compression import Codec
from strandline.protocol.records.fence import make_fence
from strandline.storage.files import RealFiles
from strandline.storage.log.log import LogConfig


def segment(tmp_path: Path, *parts: bytes) -> str:
    path = tmp_path / "00000000000000000005.log"
    path.write_bytes(b"".join(parts))
    return str(path)


FIRST = encode_batch([(b"k", b"v", [("h", b"1")], 123), (None, b"\xff", [], 124)], base_offset=5, leader_epoch=2)
SECOND = encode_batch([(None, b"w", [], 125)], base_offset=7, leader_epoch=3)


def test_dump_shows_the_batches_of_a_segment(tmp_path: Path) -> None:
    first, second = run("log", "dump", segment(tmp_path, FIRST, SECOND), "--json").lines()
    assert (first["base_offset"], first["last_offset"], first["count"], first["leader_epoch"], first["crc_ok"]) == (
        5,
        6,
        2,
        2,
        True,
    )
    assert (second["position"], second["base_offset"], second["leader_epoch"]) == (len(FIRST), 7, 3)


def test_dump_shows_the_records_on_request(tmp_path: Path) -> None:
    (batch,) = run("log", "dump", segment(tmp_path, FIRST), "--records", "--json").lines()
    assert batch["records"] == [
        {"offset": 5, "timestamp_ms": 123, "key": "k", "value": "v", "headers": [["h", "1"]]},
        {"offset": 6, "timestamp_ms": 124, "key": None, "value": "\\xff", "headers": []},
    ]
    assert "key 'k' value 'v'" in run("log", "dump", segment(tmp_path, FIRST), "--records").out


def test_dump_shows_fencing_tokens(tmp_path: Path) -> None:
    path = segment(tmp_path, make_fence(9, 5, 2), SECOND)
    fence, data = run("log", "dump", path, "--records", "--json").lines()
    assert (fence["fencing_token"], fence["count"], data["fencing_token"]) == (9, 0, None)
    assert " control fencing-token 9 crc " in run("log", "dump", path).out


def test_dump_stops_at_a_torn_batch_and_says_where(tmp_path: Path) -> None:
    outcome = run("log", "dump", segment(tmp_path, FIRST, SECOND[:-3]), "--json")
    assert outcome.code == 1
    assert len(outcome.lines()) == 1
    assert f"readable up to position {len(FIRST)}" in outcome.err


def test_dump_marks_a_batch_with_a_wrong_checksum(tmp_path: Path) -> None:
    outcome = run("log", "dump", segment(tmp_path, FIRST, SECOND[:-1] + b"\x07"), "--json")
    assert outcome.code == 1
    assert [b["crc_ok"] for b in outcome.lines()] == [True, False]


def test_dump_of_an_empty_segment_is_empty(tmp_path: Path) -> None:
    outcome = run("log", "dump", segment(tmp_path))
    assert (outcome.code, outcome.out) == (0, "")


def test_dump_of_a_missing_file_names_it(tmp_path: Path) -> None:
    outcome = run("log", "dump", str(tmp_path / "nothing.log"))
    assert outcome.code == 1
    assert str(tmp_path / "nothing.log") in outcome.err


def test_dump_shows_codec_and_delete_horizon(tmp_path: Path) -> None:
    """With the bit, the base timestamp is the time from which on a cleaner may drop the batch's tombstones."""
    batch = bytearray(with_records(read_header(FIRST), [FIRST[HEADER_SIZE:]], read_header(FIRST).record_count, Codec.ZSTD))
    batch[22] |= 0x40
    batch[17:21] = struct.pack(">I", compute_crc(batch, 0, len(batch)))
    (shown,) = run("log", "dump", segment(tmp_path, bytes(batch)), "--json").lines()
    assert (shown["compression"], shown["delete_horizon_ms"], shown["crc_ok"]) == ("zstd", 123, True)
    assert " compression zstd delete-horizon 123 crc " in run("log", "dump", segment(tmp_path, bytes(batch))).out
    (plain,) = run("log", "dump", segment(tmp_path, FIRST), "--json").lines()
    assert plain["delete_horizon_ms"] is None


def test_dump_says_which_records_cannot_be_read_and_goes_on(tmp_path: Path) -> None:
    bad = bytearray(FIRST)
    bad[61:64] = b"\xff\xff\xff"
    bad[17:21] = struct.pack(">I", compute_crc(bad, 0, len(bad)))
    outcome = run("log", "dump", segment(tmp_path, bytes(bad), SECOND), "--records", "--json")
    assert outcome.code == 1
    assert [len(batch.get("records", [])) for batch in outcome.lines()] == [0, 1]
    assert "the records of the batch at position 0 cannot be read" in one_sentence(outcome._replace(out=""))


METADATA = encode_batch(
    [(None, encode_record(TopicRecord("orders", b"t" * 16)), [], 5), (None, b"\x00not ours", [], 6)], base_offset=5
)


def test_dump_hides_the_keys_of_credentials(tmp_path: Path) -> None:
    """A dump ends in tickets and chats. A damaged record, and one that an Apache Kafka wrote, are not shown either."""
    record = encode_record(UserScramCredentialRecord("alice", 1, b"SECRETsalt", b"SECRETstored", b"SECRETserver", 4096))
    values = [record, record[:-1], b"\x01\x0b\x00\x06alice\x01SECRET"]
    folder = tmp_path / "__cluster_metadata-0"
    folder.mkdir()
    path = folder / "00000000000000000000.log"
    path.write_bytes(encode_batch([(None, value, [], 1) for value in values], base_offset=0, leader_epoch=1))
    outcome = run("log", "dump", str(path), "--records", "--json")
    assert "SECRET" not in outcome.out
    assert "SECRET" not in run("log", "dump", str(path), "--records").out
    readable, damaged, of_kafka = outcome.lines()[0]["records"]
    assert readable["fields"] == {
        "name": "alice",
        "mechanism": 1,
        "salt": "[hidden]",
        "stored_key": "[hidden]",
        "server_key": "[hidden]",
        "iterations": 4096,
    }
    assert (damaged["value"], of_kafka["value"]) == ("[hidden]", "[hidden]")


@pytest.mark.parametrize("name", ["__cluster_metadata-0/00000000000000000005.log", "00000000000000000005-0000000001.checkpoint"])
def test_dump_decodes_the_records_of_the_metadata_log(tmp_path: Path, name: str) -> None:
    """Records of an Apache Kafka, which has another encoding, are shown as bytes."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(METADATA)
    (shown,) = run("log", "dump", str(path), "--records", "--json").lines()
    topic, foreign = shown["records"]
    assert (topic["record"], topic["fields"]) == ("TopicRecord", {"name": "orders", "topic_id": "dHR0dHR0dHR0dHR0dHR0dA"})
    assert (foreign["value"], "not readable" in foreign["unreadable"]) == ("\x00not ours", True)
    assert "TopicRecord name='orders' topic_id=" in run("log", "dump", str(path), "--records").out


def dumped(path: Path, *words: str) -> Outcome:
    return run("log", "dump", str(path), *words)


@pytest.fixture
def log_folder(tmp_path: Path) -> Path:
    """A log with three segments and their files, after an orderly close."""
    folder = tmp_path / "orders-0"
    log = open_log(RealFiles(), str(folder), config=LogConfig(segment_bytes=1200, index_interval_bytes=100))
    for number in range(30):
        log.append_as_leader(batch(b"v" * 20, timestamp_ms=NOW_MS + number, producer=(7, 2, number)), number // 10, NOW_MS)
    log.close()
    return folder


def test_dump_shows_the_entries_of_both_indexes(log_folder: Path) -> None:
    """The offsets are absolute, and each entry points to a batch that the dump of the segment shows."""
    index = sorted(log_folder.glob("*.index"))[1]
    batches = {one["position"]: one for one in dumped(index.with_suffix(".log"), "--json").lines()}
    entries = dumped(index, "--json").lines()
    assert entries
    assert all(batches[entry["position"]]["last_offset"] == entry["offset"] for entry in entries)
    times = dumped(index.with_suffix(".timeindex"), "--json").lines()
    stamps = {one["last_offset"]: one["timestamp_ms"] for one in batches.values()}
    assert times
    assert all(stamps[entry["offset"]] == entry["timestamp_ms"] for entry in times)
    assert dumped(index).out.splitlines()[0] == f"offset {entries[0]['offset']} position {entries[0]['position']}"


def test_dump_shows_producers_and_checkpoints(log_folder: Path) -> None:
    rows = dumped(sorted(log_folder.glob("*.snapshot"))[-1], "--json").lines()
    last = {"producer_id": 7, "producer_epoch": 2, "last_sequence": 29, "last_offset": 29, "offset_delta": 0}
    assert rows[-1] == last | {"timestamp_ms": NOW_MS + 29, "coordinator_epoch": -1, "transaction_first_offset": -1}
    assert dumped(log_folder / "leader-epoch-checkpoint").out.splitlines()[1] == "epoch 1 start offset 10"
    offsets = log_folder / "replication-offset-checkpoint"
    offsets.write_text("0\n1\norders 0 7\n")
    assert dumped(offsets, "--json").lines() == [{"topic": "orders", "partition": 0, "offset": 7}]
    ids = log_folder / "partition.metadata"
    ids.write_text("version: 0\ntopic_id: dHR0dHR0dHR0dHR0dHR0dA\n")
    assert dumped(ids).out == "topic id dHR0dHR0dHR0dHR0dHR0dA\n"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("00000000000000000000.index", b"\0\0\0\1\0\0\0\1\0", "no multiple of 8"),
        ("00000000000000000000.index.deleted", struct.pack(">IIII", 5, 5, 4, 6), "do not ascend"),
        ("00000000000000000000.timeindex", b"x" * 13, "no multiple of 12"),
        ("00000000000000000000.snapshot", b"\0\1garbage", "checksum is wrong"),
        ("00000000000000000000.snapshot", b"", "cut off"),
        ("replication-offset-checkpoint", b"0\n2\norders 0 1\n", "number of lines"),
        ("leader-epoch-checkpoint", b"\xff\xfe", "number of lines"),
        ("partition.metadata", b"", "no topic id"),
    ],
)
def test_a_damaged_file_gets_one_sentence(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    outcome = dumped(path)
    assert outcome.code == 1
    assert f"{path} is damaged: " in outcome.err
    assert words in one_sentence(outcome._replace(out=""))


def test_an_index_that_kafka_allocated_ahead_is_not_damaged(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000100.index"
    path.write_bytes(struct.pack(">II", 5, 70) + bytes(800))
    outcome = dumped(path)
    assert (outcome.code, outcome.out) == (0, "offset 105 position 70\n")
    assert "allocated ahead" in outcome.err


def test_a_folder_gets_one_sentence(tmp_path: Path) -> None:
    assert "directory" in one_sentence(dumped(tmp_path))


def test_config_keys_has_default_unit_and_meaning_of_every_key() -> None:
    keys = run("config", "keys", "--json").json()["keys"]
    by_name = {k["name"]: k for k in keys}
    assert by_name["broker.session.timeout.ms"]["unit"] == "ms"
    assert set(by_name["broker.session.timeout.ms"]["used_by"]) == {"broker", "controller"}
    assert by_name["node.id"]["default"] == "(required)"
    assert "retention.ms" in by_name
    assert all(k["meaning"] for k in keys)


def test_config_keys_can_be_filtered() -> None:
    out = run("config", "keys", "replica.fetch").out
    assert "replica.fetch.max.bytes" in out
    assert "node.id" not in out
