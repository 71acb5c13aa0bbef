"""Selects the replica from which a consumer reads each partition: the leader, or a replica in the consumer's rack that the leader
has named (KIP-392). Pure; times are those of the loop's clock, in seconds.

A consumer with a rack asks the leader first. The leader may answer with the id of a replica instead of records. The consumer
reads from that *preferred replica* until

- the choice is as old as `metadata_max_age_ms`: the leader may name a better replica;
- newer metadata says that the replica has left the cluster or the ISR, or that there is a new leader;
- the replica answers with an error, or the connection to it is lost. For some time after that, the consumer fetches from the
  leader without its rack id, so the leader names no replica: otherwise it might name the same one, which would fail again. This
  time doubles with each failure in a row, up to LEADER_ONLY_S_MAX.

In each case the consumer reads from the leader again. Only the leader decides whether a position is in the log.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

LEADER = -1
"""Stands for the leader in place of a broker id: no replica is preferred."""
LEADER_ONLY_S_MAX = 10.0
CONNECT_S = 0.5
"""Seconds after the choice within which a connection to the replica must be open; otherwise the consumer gives it up."""

Key = TypeVar("Key", bound=Hashable)


class _Choice:
    """The preferred replica of one partition and its failures. It is kept while the partition is assigned, also after the
    consumer has gone back to the leader."""

    __slots__ = ("chosen_at", "failures", "leader_only_until", "refreshes", "replica_id", "seen_records_at")

    def __init__(self) -> None:
        self.replica_id = LEADER
        self.chosen_at = 0.0
        self.refreshes = 0
        """The number of metadata refreshes at the time of the choice: older metadata says nothing about it."""
        self.seen_records_at = 0.0
        """When the replica was chosen, or last sent records."""
        self.failures = 0
        """Failures in a row; 0 again after the first records from a preferred replica."""
        self.leader_only_until = 0.0


class PreferredReplicas(Generic[Key]):
    """The preferred replicas of a consumer's partitions. Empty, and without cost, until a leader names one."""

    def __init__(self, max_age_s: float, retry_s: float) -> None:
        self._max_age_s = max_age_s
        self._retry_s = max(retry_s, 0.001)
        self._choices: dict[Key, _Choice] = {}

    def __bool__(self) -> bool:
        return bool(self._choices)

    def replica(self, key: Key) -> int:
        """The broker id of the preferred replica, or LEADER."""
        choice = self._choices.get(key)
        return LEADER if choice is None else choice.replica_id

    def is_leader_only(self, key: Key, now: float) -> bool:
        """Whether fetches from the leader must leave out the rack id now, so that the leader names no replica."""
        choice = self._choices.get(key)
        return choice is not None and now < choice.leader_only_until

    def choose(self, key: Key, replica_id: int, now: float, refreshes: int) -> None:
        """The leader has named a replica."""
        choice = self._choices.setdefault(key, _Choice())
        choice.replica_id, choice.refreshes = replica_id, refreshes
        choice.chosen_at = choice.seen_records_at = now

    def on_records(self, key: Key, now: float) -> None:
        """The preferred replica has sent records."""
        choice = self._choices.get(key)
        if choice is not None:
            choice.seen_records_at, choice.failures = now, 0

    def drop(self, key: Key) -> None:
        """Read from the leader, which may name a replica again at once."""
        choice = self._choices.get(key)
        if choice is not None:
            choice.replica_id = LEADER

    def fail(self, key: Key, now: float) -> None:
        """The replica has returned an error, or cannot be reached: read from the leader, for some time without the rack id."""
        choice = self._choices.setdefault(key, _Choice())
        choice.leader_only_until = now + min(self._retry_s * (1 << min(choice.failures, 20)), LEADER_ONLY_S_MAX)
        choice.replica_id = LEADER
        choice.failures += 1

    def forget(self, key: Key) -> None:
        """The partition is no longer read."""
        self._choices.pop(key, None)

    # -- what ends a choice -------------------------------------------------------------------------------------------

    def expired(self, now: float) -> list[Key]:
        """The partitions whose choice is too old."""
        limit = now - self._max_age_s
        return [key for key, c in self._choices.items() if c.replica_id != LEADER and c.chosen_at <= limit]

    def is_overdue(self, key: Key, now: float) -> bool:
        """Whether a connection to the preferred replica should have been opened by now."""
        choice = self._choices.get(key)
        return choice is not None and now - choice.chosen_at > CONNECT_S

    def is_outdated_by(self, key: Key, refreshes: int) -> bool:
        """Whether the partition has a preferred replica, and the metadata was refreshed since it was chosen."""
        choice = self._choices.get(key)
        return choice is not None and choice.replica_id != LEADER and refreshes > choice.refreshes

    def any_silent_since(self, at: float) -> bool:
        """Whether a preferred replica was chosen before this time and has sent no records since: it may be cut off."""
        return any(c.replica_id != LEADER and c.seen_records_at <= at for c in self._choices.values())
