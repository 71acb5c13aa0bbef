"""The codecs of compressed batches. Only the records are compressed: header, offsets, checksum and largest timestamp are plain.

    1 gzip      members (RFC 1952)
    2 snappy    82 'SNAPPY' 00 | i32 version 1 | i32 compatible 1 | (i32 size | raw block)*       as Java's clients write it,
                or one raw block                                                                  as librdkafka writes it
    3 lz4       frames (lz4 frame format 1.6) of independent blocks: Java's clients read no linked ones
    4 zstd      frames (RFC 8878)

All four come from cramjam: one wheel without dependencies, which decompresses into a buffer of a fixed size. That bound is what
stops a bomb (1 KB that becomes 1 GB): no call here allocates more than its limit.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

import cramjam

from strandline.protocol.errors import BrokerError, ErrorCode

Buffer = bytes | bytearray | memoryview

RECORDS_BYTES_MAX = 32 << 20
"""The largest size of the records of one batch after decompression, and of all batches of one partition in a request. Kafka has
no such limit."""


class Codec(IntEnum):
    """A compression codec, by its number in the attributes of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


COMPRESSION_NAMES: Final = tuple(codec.name.lower() for codec in Codec)
LEVELS: Final[dict[Codec, tuple[int, int, int]]] = {Codec.GZIP: (1, 9, 6), Codec.LZ4: (1, 17, 9), Codec.ZSTD: (-131072, 22, 3)}
"""The lowest, the highest and the default level of a codec, as in Kafka (KIP-390). Snappy has none."""


class Compression(NamedTuple):
    """The codec with which batches are compressed, and its level."""

    codec: Codec
    level: int | None = None
    """See LEVELS. None: the codec's default."""


class CannotDecompress(ValueError):
    """The bytes are no valid output of their codec, or would become too large. The message says which."""


class TooLarge(CannotDecompress):
    """The bytes would become larger than the caller allows."""


def codec_name(codec: int) -> str:
    """ "gzip", or "number 7" for a codec that Kafka's format does not define."""
    return COMPRESSION_NAMES[codec] if codec < len(COMPRESSION_NAMES) else f"number {codec}"


def check_codec(codec: int) -> None:
    """Raise UNSUPPORTED_COMPRESSION_TYPE unless the number (0 to 7) is one of Kafka's codecs."""
    if codec >= len(COMPRESSION_NAMES):
        raise BrokerError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"a batch is compressed with codec {codec_name(codec)}")


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress the records of a batch. `level`: see LEVELS; None, and -1 for gzip, is the codec's default."""
    if codec in LEVELS and (level is None or (codec is Codec.GZIP and level == -1)):
        level = LEVELS[codec][2]
    return _COMPRESS[codec](data, level)


def decompress(codec: int, data: Buffer, size_max: int = RECORDS_BYTES_MAX) -> bytes:
    """Decompress the records of a batch with this codec (1 to 7). Allocates at most `size_max` bytes.

    Raises BrokerError UNSUPPORTED_COMPRESSION_TYPE if the codec is unknown; CannotDecompress, TooLarge.
    """
    check_codec(codec)
    name = COMPRESSION_NAMES[codec]
    if not len(data):
        raise CannotDecompress(f"there are no bytes to decompress with {name}")
    try:
        return _DECOMPRESS[Codec(codec)](data, size_max)
    except cramjam.DecompressionError as e:
        raise CannotDecompress(f"the records cannot be decompressed with {name}: {e}") from None


def _too_large(size_max: int) -> TooLarge:
    return TooLarge(f"the records need more than {size_max} bytes when they are decompressed")


# -- gzip, lz4 frames and zstd: streams that do not say how large they become ------------------------------------------

_FULL = "failed to write whole buffer"
"""cramjam's error text for an output buffer that is too small. A test fails if a new version has another text."""
_FIRST_GUESS, _GROWTH = 16, 8
_GUESS_MIN = 64 << 10

_Into = Callable[[Buffer, bytearray], int]


def _bounded(into: _Into) -> Callable[[Buffer, int], bytes]:
    """A function that decompresses into ever larger buffers, at most `size_max`. Pages that are not written cost nothing."""

    def run(data: Buffer, size_max: int) -> bytes:
        room = min(max(_FIRST_GUESS * len(data), _GUESS_MIN), size_max)
        while True:
            out = bytearray(room)
            try:
                size = into(data, out)
            except cramjam.DecompressionError as e:
                if str(e) != _FULL:
                    raise
                if room == size_max:
                    raise _too_large(size_max) from None
                room = min(_GROWTH * room, size_max)
            else:
                return bytes(memoryview(out)[:size])

    return run


def _gzip(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.gzip.compress(data, level))


def _zstd(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.zstd.compress(data, level))


# -- lz4 -----------------------------------------------------------------------------------------------------------------

_LZ4_HEADER = bytes.fromhex("04224d187040ad")
"""Magic number, flags (independent blocks of at most 64 KiB, each with a checksum), and the checksum of the flags."""
_LZ4_BLOCK = 64 << 10
_LZ4_END = bytes(4)
_LZ4_END_OF_LIBRARY = 8
"""The frames of the library end with a checksum of their content, too."""
_LZ4_DEFAULT_LEVEL = 9
"""Kafka's default level, at which lz4-java takes its fast compressor. It takes the slow one for every other level."""
_LZ4_FAST, _LZ4_SLOWEST = 1, 12
"""Levels of the lz4 library: its fast compressor, and the last level of its slow one."""


def _lz4(data: Buffer, level: int | None) -> bytes:
    """A frame of blocks that the library compresses one by one. Its compressor of whole frames with independent blocks keeps
    the GIL for seconds at high levels, and all other threads wait; its function for frames of linked blocks releases it."""
    of_library = _LZ4_FAST if level is None or level == _LZ4_DEFAULT_LEVEL else min(level + 2, _LZ4_SLOWEST)
    view, parts = memoryview(data), [_LZ4_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK):
        frame = bytes(cramjam.lz4.compress(view[start : start + _LZ4_BLOCK], of_library))
        parts.append(frame[len(_LZ4_HEADER) : -_LZ4_END_OF_LIBRARY])
    parts.append(_LZ4_END)
    return b"".join(parts)


_LZ4_FLAGS_POS, _LZ4_INDEPENDENT = 4, 0x20
_unlz4_any = _bounded(cramjam.lz4.decompress_into)


def _unlz4(data: Buffer, size_max: int) -> bytes:
    """Decompress lz4 frames. As in Kafka, a frame of linked blocks is refused, because Java's consumers cannot read it."""
    is_frame = data[:_LZ4_FLAGS_POS] == _LZ4_HEADER[:_LZ4_FLAGS_POS] and len(data) > _LZ4_FLAGS_POS
    if is_frame and not data[_LZ4_FLAGS_POS] & _LZ4_INDEPENDENT:
        raise CannotDecompress("the records are an lz4 frame of linked blocks, which Kafka's clients cannot read")
    return _unlz4_any(data, size_max)


# -- snappy: blocks that begin with their decompressed size ------------------------------------------------------------

_XERIAL = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL + bytes.fromhex("0000000100000001")
_XERIAL_BLOCK = 32 << 10
_I32 = Struct(">i")


def _snappy(data: Buffer, level: int | None) -> bytes:
    view, parts = memoryview(data), [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (_I32.pack(len(block)), block)
    return b"".join(parts)


def _unsnappy(data: Buffer, size_max: int) -> bytes:
    view = memoryview(data)
    if view[: len(_XERIAL)] != _XERIAL:
        return _snappy_block(view, size_max, size_max)
    parts: list[bytes] = []
    at, room = len(_XERIAL_HEADER), size_max
    while at < len(view):
        left = len(view) - at - _I32.size
        size = _I32.unpack_from(view, at)[0] if left > 0 else 0
        if not 0 < size <= left:
            raise CannotDecompress(f"a block of snappy claims {size} bytes where {max(left, 0)} are left")
        at += _I32.size
        parts.append(_snappy_block(view[at : at + size], room, size_max))
        room -= len(parts[-1])
        at += size
    return b"".join(parts)


def _snappy_block(block: memoryview, room: int, size_max: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > room:
        raise _too_large(size_max)
    return bytes(cramjam.snappy.decompress_raw(block))


_COMPRESS: Final[dict[Codec, Callable[[Buffer, int | None], bytes]]] = {
    Codec.NONE: lambda data, level: bytes(data),
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
_DECOMPRESS: Final[dict[Codec, Callable[[Buffer, int], bytes]]] = {
    Codec.NONE: lambda data, size_max: bytes(data),
    Codec.GZIP: _bounded(cramjam.gzip.decompress_into),
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _bounded(cramjam.zstd.decompress_into),
}
