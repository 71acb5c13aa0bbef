"""The metrics of a controller: elections and fail-overs that it decided while active, and those of the quorum."""

from __future__ import annotations

from collections import deque
from typing import get_args

from strandline.controller.decision import Cause, MaybeCause
from strandline.controller.metadata.image import NO_LEADER, MetadataDelta
from strandline.protocol.metrics import DURATION_S, Histogram


class ControllerMetrics:
    """Counts since the start of the process, over all periods in which it was the active controller."""

    def __init__(self) -> None:
        self.elections = 0
        """Elections of a new leader for a partition."""
        self.elections_by_cause: dict[Cause, int] = dict.fromkeys(get_args(Cause), 0)
        self.unclean_elections = 0
        """Elections of a leader from outside the ISR and the ELR."""
        self.reported_losses = 0
        """Unclean elections whose report has a range of records that may be lost."""
        self.elections_from_elr = 0
        """Elections of an eligible leader replica, because the ISR was empty (KIP-966)."""
        self.new_active_controllers = 0
        self.fenced_brokers = 0
        """Brokers that the controller fenced after they fell silent, not at their own request."""
        self.expired_sessions = 0
        self.struck_replicas = 0
        """Replicas that left an ISR or ELR because their broker may have lost records."""
        self.failover = Histogram(DURATION_S)
        self.silent_since: dict[int, float] = {}
        """Broker -> when the connection of its heartbeats broke; until its next heartbeat, or until it is fenced."""

    def on_connection_lost(self, broker_id: int, now: float) -> None:
        self.silent_since.setdefault(broker_id, now)

    def on_heard(self, broker_id: int) -> None:
        self.silent_since.pop(broker_id, None)

    def on_delta(self, delta: MetadataDelta, cause: MaybeCause = "") -> None:
        """Count the elections in a decision of the active controller. `cause` is that of the decision."""
        for key in delta.changed_partitions:
            before, after = delta.before.partition(key), delta.image.partition(key)
            if cause == "records_lost" and before is not None and after is not None:
                self.struck_replicas += len({*before.isr, *before.elr} - {*after.isr, *after.elr})
            if before is None or after is None or after.leader in (before.leader, NO_LEADER):
                continue
            self.elections += 1
            if cause:
                self.elections_by_cause[cause] += 1
            self.elections_from_elr += after.leader in before.elr
            self.unclean_elections += after.leader not in (*before.isr, *before.elr)
        self.reported_losses += sum(report.lost_from != report.lost_to for report in delta.new_unclean_elections())


class QuorumMetrics:
    """The metrics of one voter of the metadata quorum."""

    def __init__(self) -> None:
        self.leader_changes = 0
        self.commit = Histogram()
        """Seconds from an append to its commit, on the leader."""
        self.leaderless = Histogram(DURATION_S)
        self._appended: deque[tuple[int, float]] = deque()
        """(last offset, time) of each append of this leader that is not committed yet."""
        self._leaderless_since: float | None = None

    def on_append(self, last_offset: int, now: float) -> None:
        self._appended.append((last_offset, now))

    def on_high_watermark(self, high_watermark: int, now: float) -> None:
        """Measure the time from append to commit, for the appends below the high watermark."""
        appended = self._appended
        while appended and appended[0][0] < high_watermark:
            self.commit.observe(now - appended.popleft()[1])

    def on_resign(self) -> None:
        """Drop the appends that are not committed: their time is not measured."""
        self._appended.clear()

    def on_leader_known(self, is_known: bool, now: float) -> None:
        """Called at the start, and whenever the known leader changes."""
        if not is_known:
            self._leaderless_since = now if self._leaderless_since is None else self._leaderless_since
            return
        self.leader_changes += 1
        if self._leaderless_since is not None:
            self.leaderless.observe(now - self._leaderless_since)
            self._leaderless_since = None
