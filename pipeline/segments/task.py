"""Reads ranges of segments into Arrow batches: those of a Spark task, or whole segments without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from strandline.pipeline.segments.batch_rows import batch_rows, clipped
from strandline.pipeline.segments.columns import chosen
from strandline.pipeline.segments.files import SegmentMissing, opened
from strandline.pipeline.segments.layout import SegmentFile, find_segments
from strandline.pipeline.segments.options import SegmentOptions
from strandline.pipeline.segments.plan import Part, extent_of, whole
from strandline.pipeline.segments.record_rows import Offsets, record_rows
from strandline.pipeline.segments.walk import Walk, Wanted


def read_part(part: Part, options: SegmentOptions) -> Iterator[pa.RecordBatch]:
    """Yields the Arrow batches of a range. Raises SegmentMissing if the file was deleted, unless `ignoreMissingFiles` is true."""
    file = part.file
    try:
        with opened(file.path) as read:
            walk = Walk(read, extent_of(file), part.range, _wanted(options))
            if options.rows == "record":
                wanted = Offsets(options.start_offset, options.end_offset)
                yield from record_rows(walk, file, options.columns, options.rows_per_batch, wanted, part.committed)
            else:
                found = clipped(walk, options.start_offset, options.end_offset)
                yield from batch_rows(found, file, options.columns, options.rows_per_batch)
    except SegmentMissing:
        if not options.ignore_missing_files:
            raise


def _wanted(options: SegmentOptions) -> Wanted:
    if options.rows == "record":
        return Wanted.RECORDS
    return Wanted.CRC if {"crcComputed", "damage"} & set(options.columns) else Wanted.HEADERS


def read_batches(file: SegmentFile, columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """Yields Arrow batches with one row per record batch of a segment, damage included. An empty `columns` selects all columns.
    Raises UsageError for an unknown column, and SegmentMissing."""
    return read_part(whole(file), SegmentOptions((file.path,), "batch", chosen("batch", columns)))


def read_records(file: SegmentFile, columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """Yields Arrow batches with one row per record of a segment, and one per damaged batch. An empty `columns` selects all
    columns. Raises UsageError for an unknown column, and SegmentMissing."""
    return read_part(whole(file), SegmentOptions((file.path,), "record", chosen("record", columns)))


__all__ = ["find_segments", "read_batches", "read_part", "read_records"]
