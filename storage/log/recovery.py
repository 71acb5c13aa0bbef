"""Opening a log: data on the disk is trusted only as far as it can be checked.

After an orderly stop only the end of the last segment is read, from its index on. After any other stop the batches from the
recovery point on are scanned (`recovery_scan.py`). Where a batch is damaged, one of four things happens:

- **No valid batch follows**: a torn tail. It is cut off, and `LogState.possible_data_loss` is set.
- **Valid batches follow, and according to the checkpoints the offset was neither flushed nor committed**: holes that a lost
  page cache leaves. The log is cut here, too, and `LogState.possible_data_loss` is set: with acks=1 a leader may have
  acknowledged the records that follow.
- **Valid batches follow, and the offset was flushed or committed**: the disk has damaged old data. Nothing is cut.
  `LogState.corrupt_at` reports it, and the replica must be repaired from another one (S42).
- **The offset lies below `keep_below`** (the metadata log of a voter): the log is not opened, and its files stay as they are.

Weak spots:

- Base offset, length and leader epoch are not covered by the CRC. Continuity checks the first two. A leader epoch that was
  flipped upwards in the very last batches, after the last entry of the epoch checkpoint, looks like a new epoch.
- After a failed fsync the next process may still read the lost bytes from the page cache, and its next flush counts them as
  durable. The metadata log, whose guarantees all rest on fsync, is therefore written again (`Log.rewrite_from`). Data logs are
  not, because they may have gigabytes; their guarantees rest on replication.
"""

from __future__ import annotations

import re

from strandline.protocol.errors import BrokerError
from strandline.protocol.loggers import get_logger
from strandline.storage.checkpoints import LEADER_EPOCHS, LeaderEpochCheckpoint, read_if_present
from strandline.storage.disk import join, parent
from strandline.storage.log.aborted_transactions import load_aborted
from strandline.storage.log.epoch_cache import LeaderEpochCache
from strandline.storage.log.log_state import LogState
from strandline.storage.log.producer_recovery import load_producers, remove_needless_snapshots, remove_snapshots
from strandline.storage.log.recovery_scan import scan
from strandline.storage.log.replacement import finish_replacements
from strandline.storage.log.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, Segment

logger = get_logger(__name__)

_SEGMENT_FILE = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex)\Z", re.ASCII)
_LEFTOVER = re.compile(r"(\d{20}(\.\w+)+\.(deleted|tmp|cleaned)|(leader-epoch-checkpoint|partition\.metadata)\.tmp)\Z", re.ASCII)


def load(log: LogState, *, clean_shutdown: bool, keep_below: int, now_ms: int) -> None:
    """Fill a new `LogState` from its directory, or create the directory with one empty segment."""
    files = log.files
    fresh = not files.exists(log.dir)
    if fresh:
        files.make_dirs(log.dir)
    names = [] if fresh else finish_replacements(log, files.list(log.dir))
    _remove_leftovers(log, names)
    empty = _open_segments(log, names, now_ms)
    checkpoint = None if fresh else load_epochs(log, empty=empty, clean=clean_shutdown)
    log.epochs = LeaderEpochCache(checkpoint or ())
    unknown_from = None
    if not empty and not (clean_shutdown and checkpoint is not None and _load_clean(log)):
        unknown_from = log.segments[log.segment_for(log.recovery_point) if checkpoint is not None else 0].base_offset
        scan(log, checkpoint, keep_below)
    if empty or not clean_shutdown:
        # Names that a killed process created may be in the page cache only, so the next flush has to cover them.
        log.unsynced[log.dir] = log.unsynced[parent(log.dir)] = None
        if checkpoint is not None:
            log.unsynced[join(log.dir, LEADER_EPOCHS)] = None
    apply_checkpoints(log, checkpoint, names, trust_snapshots=clean_shutdown, unknown_from=unknown_from)


def apply_checkpoints(
    log: LogState,
    checkpoint: list[tuple[int, int]] | None,
    names: list[str],
    *,
    trust_snapshots: bool,
    unknown_from: int | None = None,
) -> None:
    """Limit the offsets of the checkpoints to what the log has, and load epochs and producer states. `unknown_from`: the indexes
    of aborted transactions of the segments from this offset on are rebuilt; None: they are used as they are."""
    end = log.log_end_offset
    if end < log.log_start_offset:
        _restart_empty(log)
        end = log.log_end_offset
    log.log_start_offset = max(log.log_start_offset, log.segments[0].base_offset)
    log.possible_data_loss |= end < log.high_watermark
    log.high_watermark = min(max(log.high_watermark, log.log_start_offset), end)
    trusted_to = end if trust_snapshots else min(log.recovery_point, end)
    log.recovery_point = min(log.recovery_point, end)
    log.first_dirty_offset = min(log.first_dirty_offset, end)
    log.tombstones_removed_below = min(log.tombstones_removed_below, end)
    log.epochs.truncate_from_end(end)
    log.epochs.truncate_from_start(log.log_start_offset)
    log.epochs = LeaderEpochCache(log.epochs.entries, log.save_epochs)
    if log.epochs.entries != (checkpoint or []):
        log.save_epochs()
    has_snapshots = any(name.endswith(SNAPSHOT_SUFFIX) for name in names)
    if has_snapshots:
        remove_snapshots(log, above=max(trusted_to, log.segments[0].base_offset))
    if names:
        rebuilt_from = load_aborted(log, names, end if unknown_from is None else unknown_from)
        load_producers(log, trusted_to=trusted_to, aborted_from=rebuilt_from)
    if has_snapshots:
        remove_needless_snapshots(log)


def _restart_empty(log: LogState) -> None:
    """Drop all segments and continue, empty, at the log start.

    The log ends below its start: the records that are left were deleted before, and those after them were lost in a crash."""
    logger.warning("log.end_raised_to_start", **log.fields)
    for segment in log.segments:
        for path in segment.remove():
            log.files.remove(path)
    log.segments[:] = [Segment.create(log.files, log.dir, log.log_start_offset, log.segments[-1].created_ms)]
    log.log_end_offset = log.log_start_offset
    log.corrupt_at = None


def _remove_leftovers(log: LogState, names: list[str]) -> None:
    """Remove files that were renamed for deletion, temporary files, segments that the cleaner has not finished, and indexes
    without a segment. Files with other names stay."""
    present = set(names)
    for name in names:
        match = _SEGMENT_FILE.match(name)
        orphan = match is not None and match[2] != LOG_SUFFIX and match[1] + LOG_SUFFIX not in present
        if orphan or _LEFTOVER.match(name):
            log.files.remove(join(log.dir, name))


def _open_segments(log: LogState, names: list[str], now_ms: int) -> bool:
    """Open the segments. Returns True if there was none and an empty one was created."""
    bases = [int(match[1]) for name in names if (match := _SEGMENT_FILE.match(name)) and match[2] == LOG_SUFFIX]
    for base in sorted(bases):
        log.segments.append(Segment.open(log.files, log.dir, base, now_ms))
    if not log.segments:
        log.segments = [Segment.create(log.files, log.dir, log.log_start_offset, now_ms)]
    log.log_end_offset = log.segments[-1].base_offset
    return not bases


def load_epochs(log: LogState, *, empty: bool, clean: bool) -> list[tuple[int, int]] | None:
    """The epoch checkpoint, or None if the epochs must be read from all batches of the log.

    That is so if the file is missing or damaged, or if it begins after the log's first records: the log start was moved up to
    delete them, and a crash has brought them back."""
    data = read_if_present(log.files, join(log.dir, LEADER_EPOCHS))
    entries = None if data is None else LeaderEpochCheckpoint.decode(data)
    if entries is None or empty:
        return entries
    start = max(log.log_start_offset, log.segments[0].base_offset)
    if not entries or entries[0][1] > start:
        return None
    if not all(_begins_with_a_batch(log, offset, clean) for _, offset in entries if offset > start):
        logger.warning("log.epochs_damaged", **log.fields)
        return None
    return entries


def _begins_with_a_batch(log: LogState, start: int, clean: bool) -> bool:
    """Return False if `start` lies inside a batch. The checkpoint file has no checksum, so a damaged digit may have changed it.
    Only the log start may lie inside a batch, and the epoch of that batch begins there.

    Checked only where the indexes can be trusted; the scan checks the rest."""
    index = log.segment_for(start)
    segment = log.segments[index]
    if start <= segment.base_offset or not (clean or index < log.segment_for(log.recovery_point)):
        return True
    try:
        found = segment.position_of(start)
    except BrokerError:
        return True  # The segment itself is damaged, which a read or the scan will find.
    return found is None or found[1].base_offset == start


def _load_clean(log: LogState) -> bool:
    """Find the log end by the last segment's index. False if the segment is not what an orderly stop leaves behind."""
    try:
        log.log_end_offset = log.segments[-1].load_tail()
    except BrokerError as e:
        logger.warning("log.damage_after_clean_shutdown", **log.fields, reason=str(e))
        return False
    return True
