"""The comparison of replicas notices a difference of one byte, and ignores where a replica rolled its segments."""

from __future__ import annotations

from pathlib import Path

from strandline.protocol.records.builder import encode_batch
from strandline.testing.replicas import Comparison, compare_replicas


def write(data: Path, partition: str, *segments: bytes) -> None:
    folder = data / partition
    folder.mkdir(parents=True)
    position = 0
    for segment in segments:
        (folder / f"{position:020}.log").write_bytes(segment)
        position += len(segment)


def test_replicas_with_different_segments_can_be_equal(tmp_path: Path) -> None:
    write(tmp_path / "1", "orders-0", b"abcdef")
    write(tmp_path / "2", "orders-0", b"abc", b"def")
    (comparison,) = compare_replicas({"broker-1": tmp_path / "1", "broker-2": tmp_path / "2"}, "orders")
    assert comparison.equal
    assert [log.size for log in comparison.logs] == [6, 6]


def test_one_different_byte_is_seen(tmp_path: Path) -> None:
    write(tmp_path / "1", "orders-0", b"abcdef")
    write(tmp_path / "2", "orders-0", b"abcdeF")
    (comparison,) = compare_replicas({"broker-1": tmp_path / "1", "broker-2": tmp_path / "2"}, "orders")
    assert not comparison.equal
    assert "DIFFERENT" in str(comparison)


def batch(offset: int, key: bytes, value: bytes | None) -> bytes:
    return encode_batch([(key, value, (), 7)], base_offset=offset)


def test_replicas_of_a_compacted_topic_are_compared_by_record(tmp_path: Path) -> None:
    """The cleaner of one replica has removed a record that another one still holds."""
    superseded, last, other = batch(0, b"a", b"1"), batch(1, b"a", b"2"), batch(1, b"a", b"3")
    for name, log in (("1", superseded + last), ("2", last), ("3", other), ("4", superseded), ("5", last[:-1] + b"?")):
        write(tmp_path / name, "orders-0", log)

    def compare(*names: str, compacted: bool = True) -> Comparison:
        return compare_replicas({f"broker-{name}": tmp_path / name for name in names}, "orders", compacted=compacted)[0]

    assert compare("1", "2").equal
    assert not compare("1", "2", compacted=False).equal
    assert "broker-3 has" in str(compare("1", "3"))
    assert "the last values of the keys [b'a']" in str(compare("1", "4"))
    assert "a log cannot be read" in str(compare("1", "5"))
    assert not compare("1", "5").equal


def test_only_the_partitions_of_the_topic_are_compared(tmp_path: Path) -> None:
    """`orders-eu-0` is a partition of another topic, and `orders-0.abc-delete` is being deleted."""
    for name in ("orders-0", "orders-10", "orders-2", "orders-eu-0", "orders-0.abc-delete"):
        write(tmp_path / "1", name, name.encode())
    assert [c.partition for c in compare_replicas({"broker-1": tmp_path / "1"}, "orders")] == [
        "orders-0",
        "orders-2",
        "orders-10",
    ]
