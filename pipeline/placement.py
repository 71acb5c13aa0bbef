"""Chooses a partition for each row of an Arrow batch, a column at a time. Pure; no Python object is created per row.

The column `partition` decides, else the murmur2 hash of the key, as in every client of Strandline and Kafka; it is computed one
word at a time over all keys of one length. Rows with neither go to one partition in blocks of `BLOCK_ROWS`, then to the next. The
block depends only on the row's number in its task, so that every attempt of the task chooses the same partition.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from strandline.client.producer.partitioner import MURMUR2_M, MURMUR2_SEED, positive_hash

BLOCK_ROWS = 10_000
"""How many successive rows without a key go to one partition: the rows of Spark's Arrow batch, which then stays whole."""
WORD_BYTES = 4
LENGTHS_MAX, KEY_BYTES_MAX = 24, 64
"""If keys have more different lengths than this, or are longer, hashing by column is not faster than one by one."""

_UINT32 = pa.uint32()
_M = pa.scalar(MURMUR2_M, _UINT32)
_BITS = {bits: pa.scalar(bits, _UINT32) for bits in (8, 13, 15, 16, 24)}


def partitions_of(rows: pa.RecordBatch, first: int, task: int, partitions: int) -> pa.Array:
    """The partition of each row, as int32 without nulls. `first` is the number of the first row within its task. Every attempt of
    the task gets the same result, provided that it passes the same `partitions`."""
    names = rows.schema.names
    chosen = rows.column("partition") if "partition" in names else pa.nulls(rows.num_rows, pa.int32())
    if chosen.null_count and "key" in names:
        chosen = pc.coalesce(chosen, partitions_of_keys(rows.column("key"), partitions))
    return pc.coalesce(chosen, _blocks(rows.num_rows, first, task, partitions)) if chosen.null_count else chosen


def _blocks(count: int, first: int, task: int, partitions: int) -> pa.Array:
    runs, at = [], first
    while at < first + count:
        block = at // BLOCK_ROWS
        stop = min(first + count, (block + 1) * BLOCK_ROWS)
        runs.append(pa.repeat(pa.scalar((task + block) % partitions, pa.int32()), stop - at))
        at = stop
    return pa.concat_arrays(runs) if runs else pa.array([], pa.int32())


def split_by_partition(rows: pa.RecordBatch, chosen: pa.Array) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Splits the rows by partition; the order within a partition is kept."""
    if not rows.num_rows:
        return
    bounds = pc.min_max(chosen).as_py()
    if bounds["min"] == bounds["max"]:
        yield bounds["min"], rows
        return
    order = pc.array_sort_indices(chosen)  # Stable.
    rows, start = rows.take(order), 0
    for partition, stop in _runs(chosen.take(order)):
        yield partition, rows.slice(start, stop - start)
        start = stop


def _runs(ordered: pa.Array) -> Iterator[tuple[int, int]]:
    """Each value of a sorted array, with the index after its last occurrence."""
    encoded = pc.run_end_encode(ordered)
    return zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True)


# -- keys -------------------------------------------------------------------------------------------------------------


def partitions_of_keys(keys: pa.Array, partitions: int) -> pa.Array:
    """The partition of each key, as int32; null for a null key."""
    present = keys.drop_null().cast(pa.binary())
    if not len(present):
        return pa.nulls(len(keys), pa.int32())
    hashes = positive_hashes(present).cast(pa.int32())
    count = pa.scalar(partitions, pa.int32())
    chosen = pc.subtract(hashes, pc.multiply(pc.divide(hashes, count), count))
    if len(present) == len(keys):
        return chosen
    return pc.replace_with_mask(pa.nulls(len(keys), pa.int32()), keys.is_valid(), chosen)


def positive_hashes(keys: pa.Array) -> pa.Array:
    """`partitioner.positive_hash` of each key: uint32 if computed by column, int64 if one by one. No key may be null."""
    lengths = pc.binary_length(keys)
    different = pc.unique(lengths).to_pylist()
    if len(different) > LENGTHS_MAX or max(different) > KEY_BYTES_MAX:
        return pa.array(map(positive_hash, keys.to_pylist()), pa.int64())
    if len(different) == 1:
        return _hashes_of_one_length(keys, different[0])
    indexes = [pc.indices_nonzero(pc.equal(lengths, length)) for length in different]
    hashes = [_hashes_of_one_length(keys.take(at), length) for at, length in zip(indexes, different, strict=True)]
    return pa.concat_arrays(hashes).take(pc.array_sort_indices(pa.concat_arrays(indexes)))


def _hashes_of_one_length(keys: pa.Array, length: int) -> pa.Array:
    hashes = pa.repeat(pa.scalar(MURMUR2_SEED ^ length, _UINT32), len(keys))
    tail_at = length - length % WORD_BYTES
    for at in range(0, tail_at, WORD_BYTES):
        word = pc.multiply(_numbers(keys, at, _UINT32), _M)
        word = pc.multiply(_xor_shifted(word, 24), _M)
        hashes = pc.bit_wise_xor(pc.multiply(hashes, _M), word)
    if tail_at < length:
        hashes = pc.multiply(pc.bit_wise_xor(hashes, _tails(keys, tail_at, length)), _M)
    hashes = _xor_shifted(pc.multiply(_xor_shifted(hashes, 13), _M), 15)
    return pc.bit_wise_and(hashes, pa.scalar(0x7FFFFFFF, _UINT32))


def _xor_shifted(numbers: pa.Array, bits: int) -> pa.Array:
    return pc.bit_wise_xor(numbers, pc.shift_right(numbers, _BITS[bits]))


def _tails(keys: pa.Array, start: int, stop: int) -> pa.Array:
    """The last one to three bytes of each key as a number, lowest byte first."""
    tails = _numbers(keys, start, pa.uint8()).cast(_UINT32)
    for nth, at in enumerate(range(start + 1, stop), 1):
        byte = _numbers(keys, at, pa.uint8()).cast(_UINT32)
        tails = pc.bit_wise_or(tails, pc.shift_left(byte, _BITS[8 * nth]))
    return tails


def _numbers(keys: pa.Array, at: int, kind: pa.DataType) -> pa.Array:
    """The number at byte `at` of each key, lowest byte first (this machine's order: Arrow is little-endian)."""
    cut = pc.binary_slice(keys, at, at + kind.bit_width // 8)
    assert cut.offset == 0, "a slice of bytes is a new array"
    return pa.Array.from_buffers(kind, len(cut), [None, cut.buffers()[2]])
