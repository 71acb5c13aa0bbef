"""The progress of a table in one partition, and whether its contents can be trusted. Pure.

A partition is NEW (to be read from its beginning, or from the end of a snapshot), then LOADING up to its target, the log end when
the loading began, then LIVE. It becomes NEW again if its log does not continue at the table's position: records were deleted or
truncated, the topic was recreated, or tombstones may have been removed before the table read them (snapshot.py says why).
"""

from __future__ import annotations

from enum import Enum

TOMBSTONE_SHARE = 0.9
"""The share of `delete.retention.ms` that may pass until the table has read up to the log end again."""
TOMBSTONES_KEPT_MS_MIN = 5_000
"""With a shorter `delete.retention.ms` snapshots are not used, and a table that runs is checked as if it were this long: the
checks themselves take time, and the cleaner removes a tombstone only when it cleans the log for the second time."""
CLOCK_STEP_MS = 500
"""The wall clock may be set back by this much without an effect: no longer than TOMBSTONE_SHARE leaves of any
`delete.retention.ms`."""
LOADINGS_MAX = 3
"""If a partition was loaded this often in a row, and took too long each time to prove that no tombstone is missing, the table
trusts the last loading. Otherwise it would load a large partition for ever."""


class Phase(Enum):
    NEW = "new"
    LOADING = "loading"
    LIVE = "live"


class Progress:
    """One partition of a table."""

    __slots__ = (
        "applied",
        "epoch_end",
        "fresh_at_ms",
        "leader_epoch",
        "live_at_ms",
        "loadings",
        "phase",
        "target",
        "target_at_ms",
        "topic_id",
    )

    def __init__(self, topic_id: bytes) -> None:
        self.topic_id = topic_id
        self.phase = Phase.NEW
        self.target = -1
        """While LOADING: the table shows the partition when it has read up to this offset."""
        self.target_at_ms = 0
        """When the table asked for `target`, in milliseconds on the wall clock."""
        self.applied = -1
        """While LIVE: the table shows all records below this offset. -1 before that."""
        self.leader_epoch = -1
        """The leader epoch of the last record that was read; -1 if it is not known."""
        self.epoch_end = -1
        """The offset after that record."""
        self.fresh_at_ms = 0
        """All records that the table has not read yet were appended after this time, in milliseconds on the wall clock."""
        self.live_at_ms = 0
        """When the last loading has ended, in milliseconds on the wall clock."""
        self.loadings = 0
        """Loadings in a row without a `confirm`."""

    def load(self, target: int, now_ms: int, fresh_at_ms: int | None = None) -> None:
        """Begin to load. `target`: the log end, for which the table asked at `now_ms`. `fresh_at_ms`: that of the snapshot with
        which the loading begins; None: it begins at the beginning of the log."""
        self.phase = Phase.LOADING
        self.target, self.target_at_ms = target, now_ms
        self.fresh_at_ms = now_ms if fresh_at_ms is None else fresh_at_ms
        self.loadings += 1

    def read(self, leader_epoch: int, next_offset: int) -> None:
        """All records below `next_offset` were read. `leader_epoch`: the leader epoch of the last one."""
        self.leader_epoch, self.epoch_end = leader_epoch, next_offset

    @property
    def applied_epoch(self) -> int:
        """The leader epoch of the record before `applied`; -1 if it is not known."""
        return self.leader_epoch if self.epoch_end == self.applied else -1

    def go_live(self, position: int, now_ms: int) -> None:
        self.phase = Phase.LIVE
        self.applied, self.live_at_ms = position, now_ms

    def restart(self) -> None:
        """Read the partition again from its beginning."""
        self.phase = Phase.NEW
        self.applied = self.target = self.leader_epoch = self.epoch_end = -1

    def has_seen_tombstones(self, now_ms: int, kept_ms: float | None) -> bool:
        """Whether no tombstone can be missing, now that the table has read up to the log end. `kept_ms`: the topic's
        `delete.retention.ms`; None: not known."""
        return tombstones_are_there(self.fresh_at_ms, now_ms, kept_ms)

    def may_have_missed_tombstones(self, now_ms: int, kept_ms: float | None) -> bool:
        """Whether a LIVE partition must be read again, now that it has read up to the log end: it had not done so for too long,
        so tombstones may have been removed first. False if `kept_ms` is not known. The time that a loading took does not count
        if the next one would take as long (LOADINGS_MAX), or if tombstones are kept only for a moment."""
        if kept_ms is None:
            return False
        is_loading_trusted = kept_ms < TOMBSTONES_KEPT_MS_MIN or self.loadings >= LOADINGS_MAX
        since_ms = max(self.fresh_at_ms, self.live_at_ms) if is_loading_trusted else self.fresh_at_ms
        return not tombstones_are_there(since_ms, now_ms, max(kept_ms, TOMBSTONES_KEPT_MS_MIN))

    def was_confirmed_since(self, asked_at_ms: int, now_ms: int) -> bool:
        """Whether a check that began after this time has confirmed the partition, or it was loaded since. A time in the future
        proves neither: the clock was set back."""
        return asked_at_ms < self.fresh_at_ms <= now_ms + CLOCK_STEP_MS

    def confirm(self, asked_at_ms: int) -> None:
        """The table has read up to the log end, for which it asked at this time, and no tombstone is missing."""
        self.fresh_at_ms, self.loadings = asked_at_ms, 0


def tombstones_are_there(fresh_at_ms: int, now_ms: int, kept_ms: float | None) -> bool:
    """Whether the log certainly still has every tombstone that was appended after `fresh_at_ms`. False if the clock was set back,
    because it proves nothing then."""
    if kept_ms is None or kept_ms < TOMBSTONES_KEPT_MS_MIN:
        return False
    return 0 <= now_ms - fresh_at_ms < kept_ms * TOMBSTONE_SHARE
