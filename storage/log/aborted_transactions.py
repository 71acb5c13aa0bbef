"""The aborted transactions of a log: found for a reader, saved with the segments, and loaded when the log is opened.

After an orderly stop the files of the indexes are used as they are. After any other stop those of the segments from the recovery
point on are rebuilt, because the files of earlier segments became durable before the recovery point passed them. A file that
cannot be right (`TransactionIndex.load`) is rebuilt, with all after it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from strandline.protocol.loggers import get_logger
from strandline.storage.disk import join
from strandline.storage.log.log_state import LogState
from strandline.storage.log.segment import Segment
from strandline.storage.log.transaction_index import TRANSACTION_INDEX_SUFFIX, AbortedTransaction, TransactionIndex

logger = get_logger(__name__)


def collect_aborted(log: LogState, offset: int, end_offset: int) -> list[AbortedTransaction]:
    """The aborted transactions that have offsets within `offset` to `end_offset` (exclusive), in the order of their first
    offsets."""
    found: list[AbortedTransaction] = []
    for segment in log.segments[log.segment_for(offset) :]:
        if segment.aborted is not None and segment.aborted.collect(offset, end_offset, found):
            break
    found.sort(key=_first_offset)
    return found


def _first_offset(transaction: AbortedTransaction) -> int:
    return transaction.first_offset


def add_aborted(segment: Segment, transaction: AbortedTransaction) -> None:
    """Note a transaction whose marker is the segment's last batch."""
    if segment.aborted is None:
        segment.aborted = TransactionIndex()
    segment.aborted.append(transaction)


def save_aborted(log: LogState, segment: Segment) -> None:
    """Write the segment's index if it has changed. The next flush makes it durable."""
    path = segment.path(TRANSACTION_INDEX_SUFFIX)
    if segment.aborted is not None and segment.aborted.save(log.files, path):
        if segment.aborted:
            log.unsynced[path] = None
        else:
            log.unsynced.pop(path, None)
        log.unsynced[log.dir] = None


def load_aborted(log: LogState, names: Sequence[str], rebuilt_from: int) -> int:
    """Load the indexes of the segments below the offset `rebuilt_from`, and empty those of the others. `names`: the files of the
    directory. Returns from which offset on the markers of the log have to be added, which is lower if a file is damaged."""
    files = {name for name in names if name.endswith(TRANSACTION_INDEX_SUFFIX)}
    if not files:
        return rebuilt_from
    for segment, end in log.segments_with_ends():
        path = segment.path(TRANSACTION_INDEX_SUFFIX)
        name = path.rpartition("/")[2]
        if name not in files:
            continue
        files.remove(name)
        if segment.base_offset < rebuilt_from:
            segment.aborted = TransactionIndex.load(log.files.read(path), segment.base_offset, end)
            if segment.aborted is None:
                rebuilt_from = segment.base_offset
                logger.warning("log.transaction_index_damaged", **log.fields, segment=segment.base_offset)
        if segment.base_offset >= rebuilt_from:
            segment.aborted = TransactionIndex()
    for name in sorted(files):
        log.files.remove(join(log.dir, name))  # the index of a segment that the log no longer has
    return rebuilt_from


def save_rebuilt(log: LogState, rebuilt_from: int) -> None:
    """Save the indexes that were rebuilt, but for that of the last segment, which a new recovery would rebuild again."""
    for segment in log.segments[:-1]:
        if segment.base_offset >= rebuilt_from:
            save_aborted(log, segment)


def joined(segments: Sequence[Segment], removed_markers: Collection[int] = ()) -> TransactionIndex | None:
    """The index of the segment that replaces these ones, without the markers at these offsets. The caller saves it. None if the
    segment needs no index."""
    parts = [segment.aborted.without(removed_markers) for segment in segments if segment.aborted is not None]
    entries = b"".join(parts)
    return TransactionIndex(entries, is_saved=True) if entries else None
