"""A follower as its leader sees it: how far its log reaches, and since when it has not been caught up.

The caught-up time is the latest moment at which the follower's fetch offset reached what was the leader's log end at
that moment. Two tiers find it. A fetch at the leader's end: caught up now. A fetch that reaches where the leader's log
ended *when the follower fetched before*: caught up as of that earlier fetch; so a follower that always closes the gap
it saw stays in sync, although a busy leader is always a few records ahead. Else the time stays as it is.

An idle follower sends incremental fetches that do not name the partition (KIP-227), and nothing is walked for them. It
still fetched: the moment is kept once, on its session, and read here when the leader's log moves on.

What is known ends when the follower leaves the ISR, is fenced, or is another process: it must show anew that it keeps up.
Kafka goes on counting it (isCaughtUp looks at the time alone), so that the high watermark waits up to
`replica.lag.time.max.ms` for a broker that was just unfenced and whose fetch connection is still dead, or that has come
back with everything to copy.
"""

from __future__ import annotations

from typing import Protocol

UNKNOWN_OFFSET = -1
NEVER = float("-inf")


class FetchTimes(Protocol):
    """A follower's fetch session, as far as a replica needs it."""

    last_fetch_time: float
    """When the newest fetch of the session came in; it stood for all partitions of the session."""


class Replica:
    """One follower, within one leader epoch. Made anew when the leader epoch advances."""

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
        """The offset of its last fetch in this leader epoch; unknown before the first."""
        self.last_fetch_leader_end_offset = UNKNOWN_OFFSET
        self.last_fetch_time = NEVER
        self.last_caught_up_time = last_caught_up_time
        """Decreases only when it becomes void."""
        self.broker_epoch = -1
        """The registration that its last fetch came from; -1 before the first fetch."""
        self.session: FetchTimes | None = None
        """The session that holds the partition for this follower."""
        self.void_since = NEVER
        """What it fetched up to then does not count; NEVER: it has named the partition in a fetch since."""

    def on_fetch(self, fetch_offset: int, log_start_offset: int, leader_end_offset: int, broker_epoch: int, now: float) -> bool:
        """Record a fetch; True when it shows a log end other than the one known before."""
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
        """The leader's log, of which we have everything, is about to grow: settle what the fetches since meant."""
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
        """It is no member of the ISR any more, or another process: what it was says nothing about what it will be."""
        self.last_caught_up_time = self.last_fetch_time = NEVER
        self.void_since = now

    @property
    def is_heard(self) -> bool:
        """Whether it has fetched since its progress became void, be it in a fetch that did not name the partition."""
        return self.void_since == NEVER or (self.session is not None and self.session.last_fetch_time > self.void_since)

    def is_caught_up(self, leader_end_offset: int, now: float, lag_s_max: float) -> bool:
        return self.log_end_offset == leader_end_offset or now - self.last_caught_up_time <= lag_s_max
