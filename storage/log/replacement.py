"""Replacing closed segments of a log by one that the cleaner has written, so that a crash leaves the old or the new ones.

    00..00.log.cleaned    being written, then whole and fsynced     a start removes it
    00..00.log.swap       takes the place of the old segments       a start finishes the replacement
    00..00.log            the old ones are renamed to .deleted

The new segment has every offset of the old ones (fillers keep the offsets without gaps), so its name and its last batch tell
which old segments it replaces. The old ones vanish lowest offset first: if the old segment of the same name is still there, all
are. If there are aborted transactions, the index of the new segment gets the name of the first old one's before anything else is
renamed. If a crash leaves it beside the old segments, a start rebuilds it if it has entries beyond the first one's end. Otherwise
it lacks at most transactions of which the log has no record, which no reader asks for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from strandline.protocol.errors import BrokerError, StrandlineError
from strandline.protocol.loggers import get_logger
from strandline.protocol.records.batch import check_crc, corrupt
from strandline.storage.disk import Files, join
from strandline.storage.log.aborted_transactions import joined
from strandline.storage.log.batch_iteration import iter_batches
from strandline.storage.log.log_state import LogState
from strandline.storage.log.segment import INDEX_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX, Segment, file_name
from strandline.storage.log.transaction_index import TRANSACTION_INDEX_SUFFIX

logger = get_logger(__name__)

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"

_SWAP = re.compile(r"(\d{20})\.log\.swap\Z", re.ASCII)
_LOG = re.compile(r"(\d{20})\.log\Z", re.ASCII)


class CleanedSegment(NamedTuple):
    """A rewritten segment under its temporary name, durable. Its indexes lie beside it."""

    base_offset: int
    end_offset: int
    size: int
    removed_tombstones_end: int = 0
    """The offset after the last tombstone or marker that it lacks because its delete horizon has passed; 0 if there is none."""
    superseded_below: int = 0
    """The records that have superseded those that it lacks lie below this offset; see `LogState`."""
    removed_markers: frozenset[int] = frozenset()
    """The offsets of the markers that it lacks. The log no longer has a batch of their transactions."""


class CleaningAborted(StrandlineError):
    """The log has changed since the cleaning began, so its result is not used."""


def replace_segments(log: LogState, old: Sequence[Segment], cleaned: CleanedSegment, truncations: int) -> list[str]:
    """Replace segments, as `Log.replace_segments` describes."""
    first = _check_unchanged(log, old, cleaned, truncations)
    log.tombstones_removed_below = max(log.tombstones_removed_below, cleaned.removed_tombstones_end)
    log.superseded_below = max(log.superseded_below, cleaned.superseded_below)
    files, path, aborted = log.files, old[0].path, joined(old, cleaned.removed_markers)
    if aborted is not None:
        files.write_atomic(path(TRANSACTION_INDEX_SUFFIX), aborted.entries)
    elif old[0].aborted is not None:
        files.remove(path(TRANSACTION_INDEX_SUFFIX))
        log.unsynced.pop(path(TRANSACTION_INDEX_SUFFIX), None)
    files.rename(path(LOG_SUFFIX) + CLEANED_SUFFIX, path(LOG_SUFFIX) + SWAP_SUFFIX)
    files.fsync_dir(log.dir)
    paths = [gone for segment in old for gone in log.remove_files(segment, is_rewritten=segment is old[0])]
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        files.rename(path(suffix) + CLEANED_SUFFIX, path(suffix))
    files.rename(path(LOG_SUFFIX) + SWAP_SUFFIX, path(LOG_SUFFIX))
    files.fsync_dir(log.dir)
    log.segments[first : first + len(old)] = [Segment.open(files, log.dir, cleaned.base_offset, old[-1].created_ms)]
    log.segments[first].aborted = aborted
    log.tail.drop_below(cleaned.end_offset)
    log.cursors = {offset: cursor for offset, cursor in log.cursors.items() if all(cursor[0] is not each for each in old)}
    logger.info("log.segments_replaced", **log.fields, segments=len(old), segment=cleaned.base_offset)
    return paths


def _check_unchanged(log: LogState, old: Sequence[Segment], cleaned: CleanedSegment, truncations: int) -> int:
    """The index of the first old segment. Raises CleaningAborted unless all are closed segments of the log, and unchanged."""
    if log.truncations != truncations:
        raise CleaningAborted("the log was truncated while it was cleaned")
    first = log.segment_for(old[0].base_offset)
    present = log.segments[first : first + len(old)]
    if len(present) != len(old) or any(a is not b for a, b in zip(present, old, strict=True)):
        raise CleaningAborted("segments were deleted while they were cleaned")
    following = log.segments[first + len(old) : first + len(old) + 1]
    if not following or following[0].base_offset != cleaned.end_offset:
        raise CleaningAborted("the last segment of a log is not cleaned")
    if log.corrupt_at is not None and cleaned.base_offset <= log.corrupt_at < cleaned.end_offset:
        raise CleaningAborted("a batch was found to be damaged")
    return first


def finish_replacements(log: LogState, names: list[str]) -> list[str]:
    """Finish the replacements that a crash has interrupted. Returns the names in the directory."""
    swaps = [int(match[1]) for name in names if (match := _SWAP.match(name))]
    for base in swaps:
        _finish(log, base, sorted(int(match[1]) for name in log.files.list(log.dir) if (match := _LOG.match(name))))
    if not swaps:
        return names
    log.unsynced[log.dir] = None
    return log.files.list(log.dir)


def _finish(log: LogState, base: int, present: list[int]) -> None:
    """Put the new segment in the place of the old ones. It was durable before its rename to `.swap`. If it is damaged or empty
    nevertheless, and the old segments are still there, it is removed and they stay."""
    files, swap = log.files, join(log.dir, file_name(base, LOG_SUFFIX)) + SWAP_SUFFIX
    end = _end_of(files, log.dir, base)
    if end is None and base in present:
        logger.error("log.replacement_damaged", **log.fields, segment=base)
        files.remove(swap)
        return
    for covered in present:
        if base <= covered < (base if end is None else end):
            _remove(log, covered, is_rewritten=covered == base)
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        files.remove(join(log.dir, file_name(base, suffix)))
    files.rename(swap, join(log.dir, file_name(base, LOG_SUFFIX)))
    logger.info("log.replacement_finished", **log.fields, segment=base)


def _remove(log: LogState, base: int, *, is_rewritten: bool) -> None:
    kept = (SNAPSHOT_SUFFIX, TRANSACTION_INDEX_SUFFIX) if is_rewritten else ()
    for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX, TRANSACTION_INDEX_SUFFIX):
        if suffix not in kept:
            log.files.remove(join(log.dir, file_name(base, suffix)))


def _end_of(files: Files, directory: str, base: int) -> int | None:
    """The offset after the last batch of the new segment; None if it is empty or damaged."""
    file = files.open(join(directory, file_name(base, LOG_SUFFIX)) + SWAP_SUFFIX, create=False)
    expected = base
    try:
        for _, header, data, inside in iter_batches(Segment(files, directory, base, file, 0), 0):
            if header.base_offset != expected or not check_crc(data, inside, header.size):
                corrupt(f"no valid batch at offset {expected}")
            expected = header.next_offset
    except BrokerError:
        return None
    finally:
        file.close()
    return expected if expected > base else None
