"""Zigzag varints, in which Kafka encodes small signed numbers of a record.

    zigzag(n)  =  n << 1 if n >= 0,  (-n << 1) - 1 otherwise        0 -> 0, -1 -> 1, 1 -> 2, -2 -> 3
    varint(z)  =  groups of 7 bits, least significant first; the top bit of a byte says that another byte follows

`VARINTS[n]` has the bytes of 0 <= n < 8192 (one or two bytes), which covers nearly every length and offset delta.
"""

from __future__ import annotations

VARINTS: list[bytes] = [bytes((n << 1,)) for n in range(64)] + [bytes((n << 1 & 0x7F | 0x80, n >> 6)) for n in range(64, 8192)]

MAX_VARINT_BYTES = 10


def encode_varint(n: int) -> bytes:
    """The bytes of any 64-bit signed number."""
    if 0 <= n < 8192:
        return VARINTS[n]
    z = n << 1 if n >= 0 else (-n << 1) - 1
    out = bytearray()
    while z > 0x7F:
        out.append(z & 0x7F | 0x80)
        z >>= 7
    out.append(z)
    return bytes(out)


def varint_size(n: int) -> int:
    """Return the number of bytes of `encode_varint(n)`."""
    z = n << 1 if n >= 0 else (-n << 1) - 1
    return max(1, (z.bit_length() + 6) // 7)


def decode_varint(buf: bytes | bytearray | memoryview, pos: int) -> tuple[int, int]:
    """The number at `pos` and the position after it. Raises IndexError beyond the end of `buf`, ValueError for more than ten
    bytes."""
    z = shift = 0
    while True:
        byte = buf[pos]
        pos += 1
        z |= (byte & 0x7F) << shift
        if byte < 0x80:
            return z >> 1 if not z & 1 else -(z >> 1) - 1, pos
        shift += 7
        if shift >= 7 * MAX_VARINT_BYTES:
            raise ValueError("a varint has more than ten bytes")
