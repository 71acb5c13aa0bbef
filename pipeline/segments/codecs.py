"""The codecs of compressed batches: pyarrow has all four of Kafka's. A broker of Strandline stores no compressed batches, Apache
Kafka's does.

    gzip, zstd, lz4 (frames)   a stream
    snappy                     82 'SNAPPY' 00 | i32 version | i32 compatible | (i32 size | raw block)*      or one raw block
"""

from __future__ import annotations

import struct

import pyarrow as pa

from strandline.protocol.records.batch import COMPRESSION_NAMES

RECORDS_BYTES_MAX = 256 << 20
"""The largest size of the records of one batch after decompression."""
_XERIAL = b"\x82SNAPPY\0"
_XERIAL_HEADER = 16
_PIECE = 1 << 20


class CannotDecompress(Exception):
    """The bytes are not valid for their codec, or too large after decompression. The message says which."""


def decompress(codec: int, data: memoryview) -> bytes:
    """Decompresses the records of a batch with this codec (1 to 7). Raises CannotDecompress."""
    name = COMPRESSION_NAMES[codec] if codec < len(COMPRESSION_NAMES) else f"number {codec}"
    try:
        if name == "snappy":
            return _snappy(data)
        if codec >= len(COMPRESSION_NAMES):
            raise CannotDecompress("the codec is unknown")
        return _stream(name, data)
    except CannotDecompress as e:
        raise CannotDecompress(f"codec: {name}: {e}") from None
    except (OSError, ValueError, pa.ArrowException, struct.error) as e:
        raise CannotDecompress(f"codec: the records cannot be decompressed with {name}: {e}") from None


def _stream(name: str, data: memoryview) -> bytes:
    pieces: list[bytes] = []
    size = 0
    with pa.CompressedInputStream(pa.BufferReader(data), name) as stream:
        while piece := stream.read(_PIECE):
            size += len(piece)
            if size > RECORDS_BYTES_MAX:
                raise CannotDecompress(f"the records need more than {RECORDS_BYTES_MAX} bytes")
            pieces.append(piece)
    return b"".join(pieces)


def _snappy(data: memoryview) -> bytes:
    if data[: len(_XERIAL)] != _XERIAL:
        return _snappy_block(data, RECORDS_BYTES_MAX)
    pieces: list[bytes] = []
    at, room = _XERIAL_HEADER, RECORDS_BYTES_MAX
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        if not 0 < size <= len(data) - at - 4:
            raise CannotDecompress(f"a block claims {size} bytes where {len(data) - at - 4} are left")
        pieces.append(_snappy_block(data[at + 4 : at + 4 + size], room))
        room -= len(pieces[-1])
        at += 4 + size
    return b"".join(pieces)


def _snappy_block(block: memoryview, room: int) -> bytes:
    """It begins with the decompressed size, as a varint."""
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > room:
        raise CannotDecompress(f"the records need more than {RECORDS_BYTES_MAX} bytes")
    return bytes(pa.decompress(block, decompressed_size=size, codec="snappy", asbytes=True))
