"""Collects the requests to re-check at the end of the current event-loop iteration (Kafka's ActionQueue).

Partitions report their changes, which fill three dirty sets, and one pass at the end of the iteration serves these. So several
follower fetches that arrive in one iteration cost one pass over the waiting produces, and several appends cost one answer to a
parked follower. Nothing is scanned: a request that is in no set costs nothing.

What is re-checked:

    the log end moved          followers' parked fetches
    the high watermark moved   waiting produces, consumers' parked fetches, and those of followers that have readers of the
                               partition (KIP-392); other followers get it with their next response
    the ISR changed            waiting produces (the ISR may be below the minimum now), and waiting deletions
    the log start moved        followers' parked fetches, and waiting deletions
    the low watermark moved    waiting deletions
    a follower was truncated   consumers' parked fetches
    role or epoch changed      all of them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from strandline.broker.partition.partition import Partition, Role
from strandline.broker.partition.watchers import ParkedFetch, PartitionWatcher
from strandline.protocol.errors import ErrorCode
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)


class ActionQueue:
    """The observer of all partitions of a broker (`PartitionObserver`)."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._is_scheduled = False
        self._produces: dict[Partition, None] = {}
        self._deletions: dict[Partition, None] = {}
        self._fetches: dict[ParkedFetch, None] = {}

    # -- notifications of partitions ----------------------------------------------------------------------------------

    def on_log_end_moved(self, partition: Partition) -> None:
        if partition.followers:
            self._wake(partition.followers)

    def on_high_watermark_moved(self, partition: Partition) -> None:
        for watcher in partition.followers:
            parked = watcher.mark_dirty()
            if watcher.has_readers and parked is not None:
                self._fetches[parked] = None
                self._schedule()
        if partition.consumers:
            self._wake(partition.consumers)
        if len(partition.waiters):
            self._produces[partition] = None
            self._schedule()

    def on_isr_changed(self, partition: Partition) -> None:
        for watcher in partition.followers:
            watcher.mark_dirty()
        if len(partition.waiters):
            self._produces[partition] = None
            self._schedule()
        self.on_low_watermark_moved(partition)

    def on_log_start_moved(self, partition: Partition) -> None:
        self._wake(partition.followers)
        self.on_low_watermark_moved(partition)

    def on_low_watermark_moved(self, partition: Partition) -> None:
        if len(partition.deletions):
            self._deletions[partition] = None
            self._schedule()

    def on_follower_truncated(self, partition: Partition) -> None:
        self._wake(partition.consumers)

    def on_role_changed(self, partition: Partition) -> None:
        attached = [*partition.followers, *partition.consumers]
        self._wake(attached)
        if partition.role is Role.NONE:
            for watcher in attached:
                watcher.detach()
        if len(partition.waiters):
            self._produces[partition] = None
            self._schedule()
        self.on_low_watermark_moved(partition)

    def _wake(self, watchers: Iterable[PartitionWatcher]) -> None:
        for watcher in watchers:
            parked = watcher.mark_dirty()
            if parked is not None:
                self._fetches[parked] = None
                if not self._is_scheduled:
                    self._schedule()

    # -- the pass -----------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self.run)

    def run(self) -> None:
        """Re-check the requests of the dirty sets. Requests that enter them meanwhile are re-checked in the next iteration."""
        self._is_scheduled = False
        produces, self._produces = self._produces, {}
        deletions, self._deletions = self._deletions, {}
        fetches, self._fetches = self._fetches, {}
        # A bug in one operation must not keep the others from being served.
        for partition in produces:
            try:
                serve_waiters(partition)
            except Exception:
                logger.exception("action_queue.action_failed", subject=repr(partition))
        for partition in deletions:
            try:
                serve_deletions(partition)
            except Exception:
                logger.exception("action_queue.action_failed", subject=repr(partition))
        for fetch in fetches:
            try:
                fetch.try_complete()
            except Exception:
                logger.exception("action_queue.action_failed", subject=repr(fetch))


def serve_waiters(partition: Partition) -> None:
    """Complete the waiting produces that the partition's present state decides."""
    leader_state = partition.leader_state
    if leader_state is None:
        partition.waiters.fail(partition.absence)
    elif leader_state.is_under_min_isr:
        partition.waiters.fail(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    else:
        partition.waiters.reach(partition.log.high_watermark, leader_state.epoch)


def serve_deletions(partition: Partition) -> None:
    """Complete the waiting DeleteRecords requests that the partition's present state decides."""
    leader_state = partition.leader_state
    if leader_state is None:
        partition.deletions.fail(partition.absence)
    else:
        partition.deletions.reach(leader_state.low_watermark(), leader_state.epoch)
