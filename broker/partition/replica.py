"""A follower as its leader sees it: how far its log reaches, and since when it has not been caught up.

The caught-up time is the latest moment at which the follower had all records that the leader's log held at that moment. Two
rules find it. If a fetch asks from the leader's log end, the follower is caught up now. If it asks from where the leader's log
ended *at the follower's previous fetch*, the follower was caught up at that previous fetch. With the second rule a follower that
always closes the gap that it saw stays in sync, although a busy leader is always a few records ahead.

An idle follower sends incremental fetches that do not name the partition (KIP-227), and the leader visits no partition for them.
Such a fetch counts all the same: its time is kept once, on the session, and read here when the leader's log grows.

The progress of a follower becomes void when the follower leaves the ISR, is fenced, or is another process: it must show again
that it keeps up. Kafka goes on counting the old progress (isCaughtUp looks at the time alone), so that its high watermark waits
up to `replica.lag.time.max.ms` for a broker that was just unfenced and whose fetch connection is still dead, or that has come
back with everything to copy.
"""

from __future__ import annotations

from typing import Protocol

UNKNOWN_OFFSET = -1
NEVER = float("-inf")
"""A time before all others, for an event that has not happened yet."""


class FetchTimes(Protocol):
    """A follower's fetch session, as far as a replica needs it."""

    last_fetch_time: float
    """Arrival time of the session's newest fetch (loop time, in seconds); it counts for all partitions of the session."""


class Replica:
    """One follower, within one leader epoch. A new leader epoch begins with new instances."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "last_caught_up_time",
        "last_fetch_leader_end_offset",
        "last_fetch_time",
        "log_end_offset",
        "log_start_offset",
        "session",
        "void_since",
    )

    def __init__(self, broker_id: int, *, last_caught_up_time: float = NEVER) -> None:
        self.broker_id = broker_id
        self.log_start_offset = UNKNOWN_OFFSET
        self.log_end_offset = UNKNOWN_OFFSET
        """The offset of its last fetch in this leader epoch; unknown before its first fetch."""
        self.last_fetch_leader_end_offset = UNKNOWN_OFFSET
        self.last_fetch_time = NEVER
        self.last_caught_up_time = last_caught_up_time
        """Decreases only when the progress becomes void."""
        self.broker_epoch = -1
        """The broker epoch that its last fetch named; -1 before the first fetch."""
        self.session: FetchTimes | None = None
        """The fetch session in which this follower fetches the partition."""
        self.void_since = NEVER
        """Fetches up to this time do not count. NEVER if the follower has named the partition in a fetch since."""

    def on_fetch(self, fetch_offset: int, log_start_offset: int, leader_end_offset: int, broker_epoch: int, now: float) -> bool:
        """Record a fetch. True if it shows another log end than the one known before."""
        if broker_epoch != self.broker_epoch >= 0:
            self.forget_progress(now)
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_time = now
        elif fetch_offset >= self.last_fetch_leader_end_offset and self.last_fetch_time > self.last_caught_up_time:
            self.last_caught_up_time = self.last_fetch_time
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_time = now
        self.void_since = NEVER
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        moved = fetch_offset != self.log_end_offset
        self.log_end_offset = fetch_offset
        return moved

    def before_leader_appends(self) -> None:
        """Called if the follower has the leader's whole log and that log is about to grow: take over the time of the fetches
        that have not named the partition since."""
        if self.session is None:
            return
        last = self.session.last_fetch_time
        if last <= self.void_since:
            return
        if last > self.last_fetch_time:
            self.last_fetch_time = last
            self.last_fetch_leader_end_offset = self.log_end_offset
        if last > self.last_caught_up_time:
            self.last_caught_up_time = last

    def forget_progress(self, now: float) -> None:
        """Make the progress void: the follower has left the ISR, was fenced, or is another process now."""
        self.last_caught_up_time = self.last_fetch_time = NEVER
        self.void_since = now

    @property
    def is_heard(self) -> bool:
        """Whether the follower has fetched since its progress became void, also in a fetch that did not name the partition."""
        return self.void_since == NEVER or (self.session is not None and self.session.last_fetch_time > self.void_since)

    def is_caught_up(self, leader_end_offset: int, now: float, lag_s_max: float) -> bool:
        """Whether the follower has the whole log, or had it within the last `lag_s_max` seconds."""
        return self.log_end_offset == leader_end_offset or now - self.last_caught_up_time <= lag_s_max
