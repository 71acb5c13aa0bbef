"""The comparison of replicas sees a difference of one byte, and does not mind where a replica rolled its segments."""

from __future__ import annotations

from pathlib import Path

from strandline.testing.replicas import compare_replicas


def write(data: Path, partition: str, *segments: bytes) -> None:
    folder = data / partition
    folder.mkdir(parents=True)
    position = 0
    for segment in segments:
        (folder / f"{position:020}.log").write_bytes(segment)
        position += len(segment)


def test_replicas_with_the_same_bytes_are_equal_however_they_are_cut_into_segments(tmp_path: Path) -> None:
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


def test_only_the_partitions_of_the_topic_are_compared(tmp_path: Path) -> None:
    """`orders-eu-0` is a partition of another topic, and `orders-0.abc-delete` is on its way out."""
    for name in ("orders-0", "orders-10", "orders-2", "orders-eu-0", "orders-0.abc-delete"):
        write(tmp_path / "1", name, name.encode())
    assert [c.partition for c in compare_replicas({"broker-1": tmp_path / "1"}, "orders")] == [
        "orders-0",
        "orders-2",
        "orders-10",
    ]
