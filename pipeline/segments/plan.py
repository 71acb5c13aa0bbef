"""Plans the tasks of a read: lists the segment files, and reads headers and indexes of large ones to cut them into ranges.

The decisions are in `splits.py`; this module does the file access. Spark starts a new process for each query to plan it, so this
module does not import pyarrow, which would make every query slower.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from strandline.pipeline.segments.committed import Committed, committed_of
from strandline.pipeline.segments.files import SegmentMissing, opened
from strandline.pipeline.segments.layout import SegmentFile, find_segments, segments_of
from strandline.pipeline.segments.options import SegmentOptions
from strandline.pipeline.segments.splits import Index, cuts, index_entries, overlapping, packed, ranges
from strandline.pipeline.segments.walk import Extent, Range


class Part(NamedTuple):
    """A range of a file, read by one task."""

    file: SegmentFile
    range: Range
    committed: Committed | None = None
    """Which batches are read; None: all."""


def extent_of(file: SegmentFile) -> Extent:
    return Extent(file.base_offset, file.size, file.is_last)


def whole(file: SegmentFile) -> Part:
    """The whole file as one part."""
    return Part(file, Range(0, file.size, file.base_offset))


def plan(options: SegmentOptions) -> list[list[Part]]:
    """The parts of each task, one list per task. Raises UsageError for a wrong path, and SegmentMissing."""
    files = find_segments(options.paths, options.topics, options.partitions)
    parts = []
    for folder, of_log in groupby(files, lambda file: os.path.dirname(file.path)):
        segments = list(of_log)
        committed = None
        if options.reads_committed:
            committed = committed_of(segments_of(folder), ignore_missing=options.ignore_missing_files)
        bases = [segment.base_offset for segment in segments]
        for i in overlapping(bases, options.start_offset, options.end_offset):
            for part in _split(segments[i], options):
                of_file = committed and committed.since(part.file.base_offset)
                parts.append((part.range.end - part.range.start, part._replace(committed=of_file)))
    return packed(parts, options.split_bytes)


def _split(file: SegmentFile, options: SegmentOptions) -> Iterator[Part]:
    if file.size <= options.split_bytes:
        yield whole(file)
        return
    try:
        with opened(file.path) as read:
            found = cuts(read, extent_of(file), _index(file), options.split_bytes)
    except SegmentMissing:
        if not options.ignore_missing_files:
            raise
        return
    for each in ranges(found, file.size, options.start_offset, options.end_offset):
        yield Part(file, each)


def _index(file: SegmentFile) -> Index:
    try:
        with open(file.index_path, "rb") as index:
            return index_entries(index.read(), file.size)
    except OSError:
        return []
