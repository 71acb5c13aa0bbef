"""What a controller counts: elections and fail-overs that it decided while it was active, and the quorum's course."""

from __future__ import annotations

from collections import deque

from strandline.controller.metadata.image import NO_LEADER, MetadataDelta
from strandline.protocol.metrics import DURATION_S, Histogram


class ControllerMetrics:
    """Counts since the start of the process, over all the times that it was active."""

    def __init__(self) -> None:
        self.elections = 0
        """Partitions that were given another leader."""
        self.unclean_elections = 0
        """Of these, to a leader from outside the ISR."""
        self.new_active_controllers = 0
        self.fenced_brokers = 0
        """For their silence, not at their own wish."""
        self.expired_sessions = 0
        self.failover = Histogram(DURATION_S)
        self.silent_since: dict[int, float] = {}
        """Broker -> when the connection of its heartbeats broke; until it is heard of again, or fenced."""

    def on_connection_lost(self, broker_id: int, now: float) -> None:
        self.silent_since.setdefault(broker_id, now)

    def on_heard(self, broker_id: int) -> None:
        self.silent_since.pop(broker_id, None)

    def on_delta(self, delta: MetadataDelta) -> None:
        """What the active controller has just decided."""
        for key in delta.changed_partitions:
            before, after = delta.before.partition(key), delta.image.partition(key)
            if before is None or after is None or after.leader in (before.leader, NO_LEADER):
                continue
            self.elections += 1
            self.unclean_elections += after.leader not in before.isr


class QuorumMetrics:
    def __init__(self) -> None:
        self.leader_changes = 0
        self.commit = Histogram()
        """On the leader, from an append to its commit."""
        self.leaderless = Histogram(DURATION_S)
        self._appended: deque[tuple[int, float]] = deque()
        """(last offset, when) of what this leader appended and has not seen committed."""
        self._leaderless_since: float | None = None

    def on_append(self, last_offset: int, now: float) -> None:
        self._appended.append((last_offset, now))

    def on_high_watermark(self, high_watermark: int, now: float) -> None:
        appended = self._appended
        while appended and appended[0][0] < high_watermark:
            self.commit.observe(now - appended.popleft()[1])

    def on_resign(self) -> None:
        self._appended.clear()

    def on_leader_known(self, is_known: bool, now: float) -> None:
        """Called when it changes, and at the start."""
        if not is_known:
            self._leaderless_since = now if self._leaderless_since is None else self._leaderless_since
            return
        self.leader_changes += 1
        if self._leaderless_since is not None:
            self.leaderless.observe(now - self._leaderless_since)
            self._leaderless_since = None
