"""Fetch sessions (KIP-227): the leader remembers what a fetcher wants, so that a fetch names only what changed.

A session holds the asker's position in each of its partitions and a set of *dirty* ones: those that have to be looked
at before the next answer. A partition is dirty when the asker named it, when something moved there (told by the
partition itself), when there was more to read than fitted, when its last answer was an error, or when its follower is
not in the ISR yet. So a session of a thousand idle partitions costs nothing, neither per fetch nor per append elsewhere.

Epochs: 0 asks for a new session, -1 for an answer without one, n continues a session whose next epoch is n. Any gap is
refused, and the asker begins anew; the two sides never disagree about the partitions in silence.

The cache is bounded. When it is full, a newcomer takes the place of a session that was idle for `EVICTION_S`; else of
the least valuable one that it outranks: consumers before followers, smaller before larger. Young sessions are spared,
except consumers' when a follower needs room.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from strandline.broker.partition.partition import Partition
from strandline.broker.partition.watchers import ParkedFetch
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, next_epoch
from strandline.protocol.messages.data import FetchPartition, FetchPartitionResponse, FetchRequest, ForgottenPartition
from strandline.protocol.partitions import TopicIdPartition, refuse_repeated

NO_SESSION = 0
SESSION_ID_MAX = 2**31 - 1
EVICTION_S = 120.0
PARTITIONS_MAX = 100_000
"""Of one session: a bound of its memory."""


class SessionPartition:
    """One partition of one session: the asker's position, and what he was told last."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "key",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "partition",
        "records_are_out",
        "sent_error",
        "sent_high_watermark",
        "sent_log_start_offset",
        "session",
    )

    def __init__(self, key: TopicIdPartition, session: FetchSession) -> None:
        self.key = key
        self.session = session
        self.partition: Partition | None = None
        """Attached on the first visit; None again when the partition is gone from this broker."""
        self.current_leader_epoch = self.fetch_offset = -1
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1
        self.records_are_out = False
        """He will ask from where these records end; an answer behind them is still from where they began, and he drops it."""
        self.sent_error = 0
        """The error he was told and has not reacted to; the same one again is no news."""

    def update(self, wanted: FetchPartition) -> None:
        if wanted.fetch_offset <= self.fetch_offset or wanted.current_leader_epoch != self.current_leader_epoch:
            # He did not take our last answer (a divergence, a response that came too late): tell the HW again.
            self.sent_high_watermark = -1
        self.current_leader_epoch = wanted.current_leader_epoch
        self.fetch_offset = wanted.fetch_offset
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.log_start_offset = wanted.log_start_offset
        self.max_bytes = max(0, wanted.partition_max_bytes)
        self.records_are_out = False
        self.sent_error = 0

    def mark_dirty(self) -> ParkedFetch | None:
        """Have the session look at the partition before its next answer. Returns the session's parked fetch, if it has one."""
        session = self.session
        session.dirty[self.key] = self
        return session.parked

    def on_answer(self, answer: FetchPartitionResponse, size: int, look_again: bool) -> None:
        """Remember what the response tells the fetcher, and whether the session has to look here again.

        A partition that was served goes to the end of the queue, so that a full response does not starve the others."""
        self.sent_high_watermark = -1 if self.records_are_out else answer.high_watermark
        self.sent_log_start_offset = -1 if self.records_are_out else answer.log_start_offset
        self.sent_error = answer.error_code
        self.records_are_out |= size > 0
        session, key = self.session, self.key
        if size or not look_again:
            session.dirty.pop(key, None)
        if look_again and key in session.partitions:
            session.dirty[key] = self

    def attach(self, partition: Partition) -> None:
        """Watch the partition: it marks this entry dirty when it moves."""
        self.partition = partition
        partition.add_watcher(self, is_follower=self.session.is_follower)

    def detach(self) -> None:
        """Stop watching the partition."""
        session = self.session
        partition, self.partition = self.partition, None
        if partition is None:
            return
        partition.remove_watcher(self, is_follower=session.is_follower)
        if partition.leader_state is not None:
            partition.leader_state.forget_session(session.replica_id, session)


class FetchSession:
    """What one fetcher wants. With id 0 it lives for one request only."""

    __slots__ = (
        "created_at",
        "dirty",
        "epoch",
        "id",
        "is_follower",
        "last_fetch_time",
        "parked",
        "partitions",
        "replica_epoch",
        "replica_id",
    )

    def __init__(self, session_id: int, replica_id: int, replica_epoch: int, now: float) -> None:
        self.id = session_id
        self.epoch = next_epoch(INITIAL_EPOCH)
        """What the next request must name."""
        self.replica_id = replica_id
        self.replica_epoch = replica_epoch
        self.is_follower = replica_id >= 0
        """Such sessions are privileged: replication must not be starved by consumers."""
        self.partitions: dict[TopicIdPartition, SessionPartition] = {}
        self.dirty: dict[TopicIdPartition, SessionPartition] = {}
        """To be looked at before the next answer, the longest waiting first. Others call `mark_dirty` and `forget_quiet`."""
        self.parked: ParkedFetch | None = None
        """The request that waits for news; at most one."""
        self.created_at = now
        self.last_fetch_time = now

    @property
    def size(self) -> int:
        return len(self.partitions)

    def update(self, wanted: Iterable[FetchPartition], forgotten: Iterable[ForgottenPartition] = ()) -> None:
        """Take over what a request names; all of it is dirty now."""
        for item in wanted:
            key = (item.topic_id, item.partition)
            cached = self.partitions.get(key)
            if cached is None:
                cached = self.partitions[key] = SessionPartition(key, self)
            cached.update(item)
            self.dirty[key] = cached
        for gone in forgotten:
            key = (gone.topic_id, gone.partition)
            cached = self.partitions.pop(key, None)
            if cached is not None:
                self.dirty.pop(key, None)
                cached.detach()

    def forget_quiet(self, quiet: Iterable[SessionPartition]) -> None:
        """Partitions that were looked at, and had neither news nor a reason to look again."""
        for cached in quiet:
            self.dirty.pop(cached.key, None)

    def close(self) -> None:
        """Answer who waits, and hear no more of any partition."""
        if self.parked is not None:
            self.parked.complete()
        for cached in self.partitions.values():
            cached.detach()
        # No circle of references is left for the garbage collector, which hardly ever runs in a broker.
        self.partitions.clear()
        self.dirty.clear()


class FetchSessionCache:
    """The sessions of a broker, at most `slots`."""

    def __init__(self, random: Random, slots: int = 1000) -> None:
        self._random = random
        self._slots = slots
        self._sessions: dict[int, FetchSession] = {}
        """By id; the least recently used first."""
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    @property
    def partition_count(self) -> int:
        return sum(session.size for session in self._sessions.values())

    def session_for(self, request: FetchRequest, now: float) -> tuple[FetchSession, bool]:
        """The session that a request belongs to, updated by it, and whether the answer must list every partition."""
        refuse_repeated(request.partitions)
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            _refuse_too_many(len(request.partitions))
            named = self._sessions.get(request.session_id)
            if named is not None and named.replica_id == request.replica_id:
                self.remove(named.id)
            return self._full(request, now), True
        session = self._continue(request, now)
        if session.partitions:
            return session, False
        self.remove(session.id)
        return FetchSession(NO_SESSION, request.replica_id, request.replica_epoch, now), False

    def _full(self, request: FetchRequest, now: float) -> FetchSession:
        session = FetchSession(NO_SESSION, request.replica_id, request.replica_epoch, now)
        session.update(request.partitions)
        if request.session_epoch == INITIAL_EPOCH and session.partitions:
            self._maybe_admit(session, now)
        return session

    def _continue(self, request: FetchRequest, now: float) -> FetchSession:
        session = self._sessions.get(request.session_id)
        # A session is one process's: another replica, or the same one restarted, has no part in it.
        if session is None or (session.replica_id, session.replica_epoch) != (request.replica_id, request.replica_epoch):
            raise BrokerError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if request.session_epoch != session.epoch:
            raise BrokerError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH, f"expected epoch {session.epoch}, got {request.session_epoch}"
            )
        _refuse_too_many(session.size + len(request.partitions))
        if session.parked is not None:
            session.parked.complete()
        session.update(request.partitions, request.forgotten)
        session.epoch = next_epoch(session.epoch)
        session.last_fetch_time = now
        self._sessions[session.id] = self._sessions.pop(session.id)
        return session

    def remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _maybe_admit(self, session: FetchSession, now: float) -> None:
        if len(self._sessions) < self._slots or self._try_evict(session, now):
            session.id = self._new_id()
            self._sessions[session.id] = session

    def _try_evict(self, newcomer: FetchSession, now: float) -> bool:
        victim = self._victim(newcomer, now)
        if victim is None:
            return False
        self.evictions += 1
        self.remove(victim.id)
        return True

    def _victim(self, newcomer: FetchSession, now: float) -> FetchSession | None:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now - oldest.last_fetch_time > EVICTION_S:
            return oldest
        candidates = (
            session
            for session in self._sessions.values()
            if now - session.created_at > EVICTION_S or (newcomer.is_follower and not session.is_follower)
        )
        least = min(candidates, key=_rank, default=None)
        return least if least is not None and _rank(least)[:2] <= _rank(newcomer)[:2] else None

    def _new_id(self) -> int:
        while True:
            session_id = self._random.randint(1, SESSION_ID_MAX)
            if session_id not in self._sessions:
                return session_id


def _rank(session: FetchSession) -> tuple[bool, int, int]:
    """The least valuable is the smallest."""
    return session.is_follower, session.size, session.id


def _refuse_too_many(count: int) -> None:
    if count > PARTITIONS_MAX:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"a fetch session holds at most {PARTITIONS_MAX} partitions")
