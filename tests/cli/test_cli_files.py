"""`log dump` and `config keys`: commands that need no cluster."""

from __future__ import annotations

from pathlib import Path

from cli_world import run

from strandline.protocol.records.builder import encode_batch


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


def test_dump_of_nothing_names_the_file(tmp_path: Path) -> None:
    outcome = run("log", "dump", str(tmp_path / "nothing.log"))
    assert outcome.code == 1
    assert str(tmp_path / "nothing.log") in outcome.err


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
