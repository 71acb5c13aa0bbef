"""Fetch sessions (KIP-227): the leader remembers a fetcher's partitions, so that a fetch names only those that changed.

A session holds the fetcher's position in each of its partitions, and a set of *dirty* partitions: those that the leader has to
visit before the next answer. A partition is dirty if the fetcher named it, if it moved (it marks itself dirty), if it had more
records than the response had room for, if its last answer was an error, or if its follower is not in the ISR yet. So a session of
a thousand idle partitions costs nothing, neither per fetch nor per append to other partitions.

Session epochs: 0 asks for a new session, -1 for an answer without one, n continues the session whose next epoch is n. Any gap is
refused, and the fetcher begins a new session; so the two sides cannot disagree about the partitions without noticing it.

The cache is bounded. When it is full, a new session replaces a session that was idle for `EVICTION_S`. If there is none, it
replaces the least valuable session that it outranks: consumers rank below followers, small sessions below large ones. Sessions
younger than `EVICTION_S` are spared, except those of consumers if a follower needs room.
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
from strandline.protocol.security.principal import ANONYMOUS, Principal

NO_SESSION = 0
NO_TOPIC_ID = bytes(16)
SESSION_ID_MAX = 2**31 - 1
EVICTION_S = 120.0
PARTITIONS_MAX = 100_000
"""Largest number of partitions in one session, which bounds its memory."""


class SessionPartition:
    """One partition of one session: the fetcher's position, and the offsets that the last response contained."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "has_readers",
        "key",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "partition",
        "readers_high_watermark",
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
        """Set by the first visit; None again when the partition leaves this broker."""
        self.current_leader_epoch = self.fetch_offset = -1
        self.has_readers = False
        """Consumers read the partition from this follower, and wait there for the high watermark (KIP-392)."""
        self.readers_high_watermark = -1
        """The follower's high watermark when it named its position, if it has readers; -1 if not. A session also has the high
        watermark that was sent since (`sent_high_watermark`); a fetch without a session has only this one."""
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1
        self.records_are_out = False
        """Records were sent since the fetcher named its position, and its next fetch starts after them. A response that is built
        before that fetch arrives starts at the earlier offset. The fetcher drops it as stale, so its HW has to be sent again."""
        self.sent_error = 0
        """The error of the last response, if the fetcher has not named the partition since. The same error completes no parked
        fetch."""

    def update(self, wanted: FetchPartition) -> None:
        """Take the position that a request names."""
        if wanted.fetch_offset <= self.fetch_offset or wanted.current_leader_epoch != self.current_leader_epoch:
            # The fetcher did not use the last response (a divergence, or a stale response): send the HW again.
            self.sent_high_watermark = -1
        self.current_leader_epoch = wanted.current_leader_epoch
        self.fetch_offset = wanted.fetch_offset
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.log_start_offset = wanted.log_start_offset
        self.max_bytes = max(0, wanted.partition_max_bytes)
        self.readers_high_watermark = wanted.readers_high_watermark
        self.has_readers = wanted.readers_high_watermark >= 0
        self.records_are_out = False
        self.sent_error = 0

    def is_start_news(self, log_start_offset: int) -> bool:
        """Whether a response sent now would be the first with this log start that the fetcher uses. The fetcher drops a stale
        response."""
        return log_start_offset != self.sent_log_start_offset and not self.records_are_out

    @property
    def names_rack(self) -> bool:
        return bool(self.session.rack_id)

    def is_high_watermark_news_for_readers(self, high_watermark: int) -> bool:
        """Whether a response sent now would be the first that lets consumers of this follower read more. The follower's high
        watermark never exceeds its log end, which is its fetch offset."""
        is_higher = min(high_watermark, self.fetch_offset) > self.readers_high_watermark
        return is_higher and high_watermark != self.sent_high_watermark and not self.records_are_out

    def mark_dirty(self) -> ParkedFetch | None:
        """Let the session visit the partition before its next answer. Returns the session's parked fetch, if it has one."""
        session = self.session
        session.dirty[self.key] = self
        return session.parked

    def on_answer(self, answer: FetchPartitionResponse, size: int, look_again: bool) -> None:
        """Remember the offsets in a response, and whether the partition has to be visited again before it moves.

        A partition that was served goes to the end of the queue, so that a full response does not starve the other partitions."""
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
        (partition.followers if self.session.is_follower else partition.consumers)[self] = None

    def detach(self) -> None:
        """Stop watching the partition."""
        session = self.session
        partition, self.partition = self.partition, None
        if partition is None:
            return
        if not session.is_follower:
            partition.consumers.pop(self, None)
            return
        partition.followers.pop(self, None)
        if partition.leader_state is not None:
            partition.leader_state.forget_session(session.replica_id, session)


class FetchSession:
    """The partitions that one fetcher reads. A session with id 0 lives for one request only."""

    __slots__ = (
        "created_at",
        "dirty",
        "epoch",
        "id",
        "is_follower",
        "last_fetch_time",
        "parked",
        "partitions",
        "principal",
        "rack_id",
        "replica_epoch",
        "replica_id",
    )

    def __init__(
        self,
        session_id: int,
        replica_id: int,
        replica_epoch: int,
        now: float,
        rack_id: str = "",
        principal: Principal = ANONYMOUS,
    ) -> None:
        self.id = session_id
        self.principal = principal
        """The owner of the session: no other principal can continue or end it."""
        self.epoch = next_epoch(INITIAL_EPOCH)
        """The session epoch that the next request must name."""
        self.replica_id = replica_id
        self.replica_epoch = replica_epoch
        self.is_follower = replica_id >= 0
        """Sessions of followers are privileged: consumers must not starve replication."""
        self.rack_id = rack_id
        """The rack of the consumer, from its newest request; empty if it reads from leaders only (KIP-392)."""
        self.partitions: dict[TopicIdPartition, SessionPartition] = {}
        self.dirty: dict[TopicIdPartition, SessionPartition] = {}
        """The partitions to visit before the next answer, the longest waiting first. Other modules do not change it: they call
        `SessionPartition.mark_dirty` and `forget_quiet`."""
        self.parked: ParkedFetch | None = None
        """The request that waits for news; a session has at most one."""
        self.created_at = now
        self.last_fetch_time = now

    @property
    def size(self) -> int:
        return len(self.partitions)

    def update(self, wanted: Iterable[FetchPartition], forgotten: Iterable[ForgottenPartition] = ()) -> None:
        """Take the partitions that a request names, all of which are dirty now, and drop those that it forgets.

        Raises FETCH_SESSION_TOPIC_ID_ERROR if the request adds a topic without an id: sessions know topics by their ids."""
        for item in wanted:
            key = (item.topic_id, item.partition)
            cached = self.partitions.get(key)
            if cached is None:
                if self.id and item.topic_id == NO_TOPIC_ID:
                    raise BrokerError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
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
        """Drop partitions from the dirty set: they were visited, had no news, and need no other visit before they move."""
        for cached in quiet:
            self.dirty.pop(cached.key, None)

    def close(self) -> None:
        """Answer the parked request, and stop watching every partition."""
        if self.parked is not None:
            self.parked.complete()
        for cached in self.partitions.values():
            cached.detach()
        # This breaks the reference cycles: the garbage collector hardly ever runs in a broker.
        self.partitions.clear()
        self.dirty.clear()


class FetchSessionCache:
    """The sessions of a broker, at most `slots`."""

    def __init__(self, random: Random, slots: int = 1000) -> None:
        self._random = random
        self.slots = slots
        """The largest number of sessions."""
        self._sessions: dict[int, FetchSession] = {}
        """Sessions by their id, the least recently used first."""
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    @property
    def partition_count(self) -> int:
        return sum(session.size for session in self._sessions.values())

    def session_for(self, request: FetchRequest, now: float, principal: Principal = ANONYMOUS) -> tuple[FetchSession, bool]:
        """The session of a request of this principal, updated by the request, and whether the answer must list every partition.

        Raises INVALID_REQUEST, FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR."""
        refuse_repeated(request.partitions)
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            _refuse_too_many(len(request.partitions))
            named = self._sessions.get(request.session_id)
            if named is not None and named.replica_id == request.replica_id and named.principal == principal:
                self.remove(named.id)
            return self.full_fetch(request, now, principal), True
        session = self.incremental_fetch(request, now, principal)
        if session.partitions:
            return session, False
        self.remove(session.id)
        return FetchSession(NO_SESSION, request.replica_id, request.replica_epoch, now, request.rack_id, principal), False

    def full_fetch(self, request: FetchRequest, now: float, principal: Principal = ANONYMOUS) -> FetchSession:
        """The session of a request that names all its partitions. Its id is 0 if it ends with the response, because the request
        did not ask for a session or the cache has no room."""
        session = FetchSession(NO_SESSION, request.replica_id, request.replica_epoch, now, request.rack_id, principal)
        session.update(request.partitions)
        if request.session_epoch == INITIAL_EPOCH and session.partitions:
            self._maybe_admit(session, now)
        return session

    def incremental_fetch(self, request: FetchRequest, now: float, principal: Principal = ANONYMOUS) -> FetchSession:
        """The session that the request continues, updated by the request. Raises what `session_for` raises."""
        session = self._sessions.get(request.session_id)
        # A session belongs to one process: another replica, or the same one restarted, cannot continue it.
        if session is None or (session.replica_id, session.replica_epoch) != (request.replica_id, request.replica_epoch):
            raise BrokerError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.principal != principal:
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
        session.rack_id = request.rack_id
        session.last_fetch_time = now
        self._sessions[session.id] = self._sessions.pop(session.id)
        return session

    def remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _maybe_admit(self, session: FetchSession, now: float) -> None:
        if len(self._sessions) < self.slots or self.try_evict(session, now):
            session.id = self._new_id()
            self._sessions[session.id] = session

    def try_evict(self, newcomer: FetchSession, now: float) -> bool:
        """Remove a session that the newcomer may replace. False if there is none."""
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
    """The value of a session when room is needed: the smallest rank is evicted first."""
    return session.is_follower, session.size, session.id


def _refuse_too_many(count: int) -> None:
    if count > PARTITIONS_MAX:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"a fetch session holds at most {PARTITIONS_MAX} partitions")
