"""Maps a group or a transactional id to its partition of the internal topic, by Kafka's rule: Kafka's tools compute the same
partition."""

from __future__ import annotations


def java_hash(text: str) -> int:
    """`String.hashCode()` of Java: over UTF-16 code units, as a signed 32-bit integer."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_of(key: str, partitions: int) -> int:
    """The number of the partition of a group or a transactional id. The absolute value of the smallest integer is 0, as in
    Kafka's `Utils.abs`."""
    value = java_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partitions
