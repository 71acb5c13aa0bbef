"""The core of a replica fetcher: how a follower copies all its partitions from one leader, with one fetch at a time.

The core plans fetches and applies responses; the shell (`fetcher_shell.py`) owns the connection. One fetcher serves one leader
(and one fetcher id, if `num.replica.fetchers` spreads the partitions). Rules:

- A follower always fetches at its log end, or at the first damaged offset of its log. Its *position* (leader epoch, that offset,
  and the newest epoch before it) is computed again for every partition whose position changed, and only these partitions are in
  the request: the leader's fetch session (KIP-227) remembers the others. An idle partition costs nothing per fetch.
- A response counts for a partition only if it answers the partition's *current* position. Between request and response the
  partition may have been removed, given to another leader, or truncated.
- Every fetch carries the epoch of the last local record. If the leader's history differs, it answers with a diverging epoch
  instead of records. The follower truncates, takes neither records nor high watermark from that response, and fetches again
  (KIP-595).
- A partition whose fetch fails is delayed, a little longer each time, and leaves the session meanwhile. The other partitions go
  on. The first delay is short because right after an election the new leader's metadata may be a few ms behind ours.
- If the leader's log may lack tombstones that the follower needs, nothing of the response is used. The follower asks for the
  leader's range, and begins a fresh copy if the leader's log is compacted up to those tombstones. Until then it keeps its log.
- If the error is `FENCED_LEADER_EPOCH` for our present epoch, our metadata is behind, and only newer metadata helps.
- If consumers read a partition here, the request says so, and the leader sends a new high watermark at once (KIP-392). Without
  readers the follower receives it with the next response, which costs no extra fetch (KAFKA-9731).

A long poll must not hold up a partition that has just been added (a new topic, a new leader). So if a partition becomes ready
while an incremental fetch is parked at the leader, a second fetch is sent after it in the same session. Then a response may have
been built from a position that a later request has replaced. So requests are numbered, and a response is ignored for a partition
that a later request named.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from strandline.broker.partition.partition import FetchPosition, Partition
from strandline.broker.replication.leader_range import LeaderRange
from strandline.broker.replication.throttle import CHUNK_S, ReplicationThrottle
from strandline.protocol.errors import BrokerError, ErrorCode, PeerError, to_code
from strandline.protocol.fetch_sessions import SESSION_ERRORS, next_epoch
from strandline.protocol.log_limits import LineLimits, Suppressed, printable
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.data import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    ForgottenPartition,
)
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.files import DiskError

logger = get_logger(__name__)


FIRST_BACKOFF_MS = 20
THROTTLE_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """The settings `replica.fetch.*`, in ms and bytes."""

    wait_ms_max: int = 500
    bytes_min: int = 1
    partition_bytes_max: int = 1 << 20
    response_bytes_max: int = 10 << 20
    backoff_ms: int = 1000
    """The longest delay of a partition whose fetch fails."""


class Plan(NamedTuple):
    """A fetch to send, with the numbers that decide which parts of its response count."""

    request: FetchRequest
    sequence: int
    generation: int


class FetchState(Enum):
    """Whether the fetcher fetches a partition now (Kafka's ReplicaState without `Truncating`: with KIP-595 a fetch finds the
    divergence)."""

    FETCHING = "fetching"
    DELAYED = "delayed"
    """After an error, or throttled: not fetched before `due`."""
    AWAITING_LEADER_RANGE = "awaiting_leader_range"
    """Out of range, of an unknown history, or about to begin a fresh copy: not fetched before the leader has answered where its
    log starts and ends."""


_FETCHING, _DELAYED, _AWAITING_LEADER_RANGE = FetchState


class _PartitionFetch:
    """One partition that the fetcher copies."""

    __slots__ = (
        "attempts",
        "due",
        "lacks_below",
        "leader_high_watermark",
        "partition",
        "reader_came",
        "said_readers",
        "sent",
        "sequence",
        "state",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.sent: FetchPosition | None = None
        """The position that the leader's session holds for this follower; None if it was not sent in this session."""
        self.reader_came = False
        """Whether a consumer has begun to read the partition here since the last position was sent, even if it has stopped."""
        self.said_readers = False
        """Whether the position that the leader's session holds says that consumers read the partition here."""
        self.sequence = 0
        """The number of the request that named `sent`."""
        self.state = _FETCHING
        self.lacks_below = 0
        """The offset below which the leader may lack tombstones, if the partition awaits the leader's range for a fresh copy. 0
        if it awaits the range for another reason."""
        self.due = 0.0
        """When a delayed partition is fetched again (loop time, in seconds)."""
        self.attempts = 0
        """Failed attempts in a row; back to 0 with the first response that counts."""
        self.leader_high_watermark = 0
        """The high watermark in the leader's last response."""


class FetcherCore:
    """Plans fetches and applies their responses. No clock, no socket; times are the loop's, in seconds."""

    def __init__(
        self,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        settings: FetcherSettings,
        on_disk_error: Callable[[DiskError], None],
        throttle: ReplicationThrottle | None = None,
    ) -> None:
        """`throttle`: limits the bytes that this broker receives for reassignments."""
        self._throttle = throttle or ReplicationThrottle()
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self.settings = settings
        """Replaced when they change; each fetch is planned with the settings of its time."""
        self._on_disk_error = on_disk_error
        self._entries: dict[TopicIdPartition, _PartitionFetch] = {}
        self._dirty: dict[TopicIdPartition, None] = {}
        """Partitions to fetch whose position the leader's session does not know yet."""
        self._delayed: list[tuple[float, TopicIdPartition]] = []
        """A heap of (due, partition). An entry counts only if it equals its partition's `due`."""
        self._session_keys: dict[TopicIdPartition, None] = {}
        """The partitions of the leader's session, after the last request that was sent."""
        self._forgotten: dict[TopicIdPartition, None] = {}
        """Partitions to drop from the session: a subset of `_session_keys`, disjoint from `_dirty`."""
        self._session_id = 0
        self._session_epoch = 0
        """0: the next fetch is a full one that asks for a new session."""
        self._session_refused = False
        self.generation = 0
        """The number of the session; a response of an earlier session does not count."""
        self._sequence = 0
        self._in_flight = 0
        self._full_in_flight = False
        self._paused_until = 0.0
        self._failures = 0
        self._out_of_range: dict[TopicIdPartition, FetchPosition] = {}
        self._limits = LineLimits()
        """Log limits, by error and partition: an error that repeats at every attempt is logged once a minute."""

    def __len__(self) -> int:
        return len(self._entries)

    def partition(self, key: TopicIdPartition) -> Partition | None:
        """The partition, if this fetcher fetches it."""
        entry = self._entries.get(key)
        return None if entry is None else entry.partition

    def lags(self) -> Iterator[tuple[Partition, int]]:
        """Each partition with the number of records that it is behind its leader's high watermark; for metrics."""
        for entry in self._entries.values():
            yield entry.partition, max(0, entry.leader_high_watermark - entry.partition.log.log_end_offset)

    @property
    def fetches(self) -> int:
        """How many fetches were sent."""
        return self._sequence

    def awaits(self, plan: Plan, key: TopicIdPartition) -> bool:
        """Whether the response to this fetch counts for the partition, which was not removed, added or fetched again since."""
        entry = self._entries.get(key)
        return entry is not None and entry.sent is not None and entry.sequence <= plan.sequence

    # -- membership ---------------------------------------------------------------------------------------------------

    def add(self, partition: Partition) -> None:
        """Start fetching a partition from its log end, or start over."""
        self._entries[partition.key] = _PartitionFetch(partition)
        self._make_ready(partition.key)

    def remove(self, key: TopicIdPartition) -> None:
        if self._entries.pop(key, None) is not None:
            self._set_aside(key)

    def on_reader(self, key: TopicIdPartition) -> bool:
        """Called when a consumer begins to read the partition here. Returns whether a fetch has to report that to the leader.
        When the last consumer has stopped, the next fetch that names the partition anyway reports that."""
        entry = self._entries.get(key)
        if entry is None or entry.said_readers or entry.state is not _FETCHING:
            return False
        entry.reader_came = True
        self._make_ready(key)
        return True

    def _make_ready(self, key: TopicIdPartition) -> None:
        self._forgotten.pop(key, None)
        self._dirty[key] = None

    def _set_aside(self, key: TopicIdPartition) -> None:
        self._dirty.pop(key, None)
        if key in self._session_keys:
            self._forgotten[key] = None

    def _delay(self, entry: _PartitionFetch, now: float) -> None:
        """Do not fetch the partition for a while. The delay doubles with each failure in a row, up to `backoff_ms`."""
        delay_ms = min(FIRST_BACKOFF_MS << min(entry.attempts, 16), self.settings.backoff_ms)
        entry.attempts += 1
        self._delay_until(entry, now + delay_ms / 1000)

    def _delay_until(self, entry: _PartitionFetch, due: float) -> None:
        entry.state = _DELAYED
        entry.due = due
        heapq.heappush(self._delayed, (entry.due, entry.partition.key))
        self._set_aside(entry.partition.key)

    def _wake_delayed(self, now: float) -> None:
        while self._delayed and self._delayed[0][0] <= now:
            due, key = heapq.heappop(self._delayed)
            entry = self._entries.get(key)
            if entry is not None and entry.state is _DELAYED and entry.due == due:
                if entry.partition.throttle_rate and self._throttle.is_exceeded(now):
                    self._leave_out(entry, now)
                    continue
                entry.state = _FETCHING
                self._make_ready(key)

    def next_due(self) -> float | None:
        """Return the time at which `plan` must be called again for a delayed partition or the whole fetcher; None if never."""
        if self._paused_until:
            return self._paused_until
        return self._delayed[0][0] if self._delayed else None

    # -- planning -----------------------------------------------------------------------------------------------------

    def plan(self, now: float) -> Plan | None:
        """The next fetch, or None if there is nothing to send now."""
        if now < self._paused_until:
            return None
        self._paused_until = 0.0
        self._wake_delayed(now)
        if not self._may_send():
            return None
        full = self._session_epoch == 0
        self._sequence += 1
        partitions = self._take_dirty()
        if full:
            self._session_keys = dict.fromkeys((p.topic_id, p.partition) for p in partitions)
            self._forgotten.clear()
        request = self._request(partitions, full)
        if not full:
            self._session_epoch = next_epoch(self._session_epoch)
        self._in_flight += 1
        self._full_in_flight = full
        return Plan(request, self._sequence, self.generation)

    def _may_send(self) -> bool:
        """One fetch at a time. A second one only after a parked incremental fetch, for partitions that have just become ready."""
        if self._in_flight == 0:
            return bool(self._dirty or self._session_keys)
        return self._in_flight == 1 and not self._full_in_flight and self._session_epoch > 0 and bool(self._dirty)

    def _take_dirty(self) -> list[FetchPartition]:
        partitions = []
        for key in self._dirty:
            entry = self._entries[key]
            position = entry.sent = entry.partition.fetch_position()
            entry.sequence = self._sequence
            entry.said_readers = entry.reader_came or entry.partition.has_readers
            entry.reader_came = False
            self._session_keys[key] = None
            partitions.append(
                FetchPartition(
                    topic_id=key[0],
                    partition=key[1],
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.fetch_offset,
                    last_fetched_epoch=position.last_fetched_epoch,
                    log_start_offset=position.log_start_offset,
                    partition_max_bytes=self._partition_bytes_max(entry.partition),
                    readers_high_watermark=entry.partition.log.high_watermark if entry.said_readers else -1,
                )
            )
            assert position.last_fetched_epoch >= 0 or position.fetch_offset <= position.log_start_offset, (
                "a fetch from a log with records carries the epoch of the last one"
            )
        self._dirty.clear()
        return partitions

    def _partition_bytes_max(self, partition: Partition) -> int:
        """The most bytes to fetch of the partition at a time; less if it is throttled (`CHUNK_S`)."""
        limit, rate = self.settings.partition_bytes_max, partition.throttle_rate
        return min(limit, max(1, int(rate * CHUNK_S))) if rate else limit

    def _request(self, partitions: list[FetchPartition], full: bool) -> FetchRequest:
        forgotten = [ForgottenPartition(*key) for key in self._forgotten]
        for key in self._forgotten:
            self._session_keys.pop(key, None)
        self._forgotten.clear()
        settings = self.settings
        return FetchRequest(
            replica_id=self._broker_id,
            replica_epoch=self._broker_epoch(),
            # The full fetch only opens the session: it returns at once, and the long poll starts with the next one.
            max_wait_ms=0 if full and not self._session_refused else settings.wait_ms_max,
            min_bytes=settings.bytes_min,
            max_bytes=settings.response_bytes_max,
            isolation_level=0,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            partitions=partitions,
            forgotten=forgotten,
        )

    # -- responses ----------------------------------------------------------------------------------------------------

    def on_response(self, plan: Plan, response: FetchResponse, now: float) -> list[TopicIdPartition]:
        """Apply a response. Returns the partitions whose log or high watermark it may have moved. Raises `PeerError` if the
        response is malformed."""
        if plan.generation != self.generation:
            return []
        self._in_flight -= 1
        if response.error_code:
            self._on_session_error(to_code(response.error_code), now)
            return []
        if len(response.partitions) != len(response.records):
            raise PeerError(
                f"the fetch response has {len(response.partitions)} partitions, but {len(response.records)} sets of records"
            )
        self._failures = 0
        touched = []
        for answer, records in zip(response.partitions, response.records, strict=True):
            entry = self._entries.get((answer.topic_id, answer.partition))
            if entry is None or entry.sent is None or entry.state is not _FETCHING or entry.sequence > plan.sequence:
                continue
            if self._on_partition(entry, entry.sent, answer, records, now):
                touched.append(entry.partition.key)
        self._take_session(plan, response)
        return touched

    def _take_session(self, plan: Plan, response: FetchResponse) -> None:
        if plan.request.session_epoch == 0:
            self._full_in_flight = False
            self._session_id = response.session_id
            self._session_refused = response.session_id == 0
        if response.session_id == 0:
            self._session_id = 0
            self._end_session()
        elif plan.request.session_epoch == 0:
            self._session_epoch = 1

    def _on_session_error(self, code: ErrorCode, now: float) -> None:
        if code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._session_id = 0
        lost_session = code in SESSION_ERRORS
        self._failures += 1
        if not lost_session or self._failures > 1:
            self._pause(now)
        suppressed = self._limits.admit(code.name, now)
        if suppressed is not None:
            logger.info("fetcher.session_lost", error=code.name, attempts=self._failures, **suppressed.fields)
        self._end_session()

    def on_failure(self, plan: Plan, code: ErrorCode, now: float) -> None:
        """Called if the leader refused the request as a whole. The session ends, and the fetcher pauses."""
        if plan.generation == self.generation:
            self._on_session_error(code, now)

    def on_connection_lost(self) -> None:
        self._start_over()

    def _pause(self, now: float) -> None:
        self._paused_until = now + min(FIRST_BACKOFF_MS << min(self._failures, 16), self.settings.backoff_ms) / 1000

    def _start_over(self) -> None:
        """Handle the loss of the connection: no request in flight gets a response, and the leader may be another process."""
        self._out_of_range.clear()
        for entry in self._entries.values():
            if entry.state is _AWAITING_LEADER_RANGE:
                entry.state = _FETCHING
        self._end_session()

    def _end_session(self) -> None:
        """Forget the session: the next fetch is a full one. It names the old session's id, which closes that session. Partitions
        that wait for the leader's range go on waiting.

        A leader fills its response in the order of the request. So the partitions that have just received records go last.
        Otherwise, if the leader grants no sessions, a busy partition could keep the others from being fetched."""
        self.generation += 1
        for key in self._dirty:
            self._entries[key] = self._entries.pop(key)
        self._dirty.clear()
        self._session_epoch = 0
        self._in_flight = 0
        self._full_in_flight = False
        self._session_keys.clear()
        self._forgotten.clear()
        for key, entry in self._entries.items():
            if entry.state is _AWAITING_LEADER_RANGE:
                continue
            entry.sent = None
            if entry.state is _FETCHING:
                self._dirty[key] = None

    # -- one partition of a response ----------------------------------------------------------------------------------

    def _on_partition(
        self, entry: _PartitionFetch, sent: FetchPosition, answer: FetchPartitionResponse, records: memoryview, now: float
    ) -> bool:
        """Apply one partition's part of a response. True if the partition's log or high watermark may have moved."""
        if answer.error_code:
            self._on_error(entry, sent, to_code(answer.error_code), now)
            return False
        try:
            if answer.diverging_epoch.epoch >= 0:
                entry.partition.truncate_to_divergence(sent, answer.diverging_epoch)
                appended = False
            elif answer.tombstones_removed_below > sent.fetch_offset and entry.partition.needs_fresh_copy(
                sent, answer.tombstones_removed_below
            ):
                self._await_fresh_copy(entry, sent, answer.tombstones_removed_below, now)
                return False
            elif entry.partition.has_unknown_history(sent, answer.log_start_offset):
                self._await_range(entry, sent, lacks_below=0)
                return False
            else:
                appended = entry.partition.append_fetched(sent, answer, records)
        except DiskError as e:
            self._on_disk_failure(entry, e)
            return False
        except BrokerError as e:
            self._on_refusal(entry, e, now)
            return False
        except Exception:
            logger.exception("fetcher.partition_failed", **entry.partition.fields)
            self.remove(entry.partition.key)
            return False
        entry.attempts = 0
        entry.leader_high_watermark = answer.high_watermark
        if not appended or len(records) or entry.partition.log.log_start_offset != sent.log_start_offset:
            self._make_ready(entry.partition.key)
        if entry.partition.throttle_rate and len(records):
            self._pay(entry, len(records), now)
        return appended

    def _pay(self, entry: _PartitionFetch, size: int, now: float) -> None:
        """Count the bytes of a throttled partition. If they exceed the rate, the next fetches leave the partition out until the
        rate permits more."""
        self._throttle.record(size / entry.partition.throttle_rate, now)
        if self._throttle.is_exceeded(now) and entry.state is _FETCHING:
            self._leave_out(entry, now)

    def _leave_out(self, entry: _PartitionFetch, now: float) -> None:
        """Delay the partition until the rate permits more, or for `THROTTLE_LOOK_S`, because the throttle may have ended then."""
        self._delay_until(entry, min(self._throttle.paid_until, now + THROTTLE_LOOK_S))

    def _on_refusal(self, entry: _PartitionFetch, error: BrokerError, now: float) -> None:
        """Delay a partition whose replica cannot append the leader's records, or must not yet. If its log is damaged, the next
        fetch starts at the damage."""
        suppressed = self._admit(entry, error.code, now)
        if suppressed is not None:
            partition, name = entry.partition, error.code.name
            logger.warning("fetcher.append_refused", **partition.fields, error=name, reason=printable(error), **suppressed.fields)
        self._delay(entry, now)

    def _on_error(self, entry: _PartitionFetch, sent: FetchPosition, code: ErrorCode, now: float) -> None:
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            logger.info("fetcher.out_of_range", **entry.partition.fields, fetch_offset=sent.fetch_offset)
            self._await_range(entry, sent, lacks_below=0)
            return
        if code == ErrorCode.FENCED_LEADER_EPOCH and sent.leader_epoch == entry.partition.fetch_position().leader_epoch:
            logger.info("fetcher.fenced", **entry.partition.fields)
            self.remove(entry.partition.key)
            return
        if entry.attempts:  # the first error is not logged: a new leader's metadata may be a moment behind ours
            suppressed = self._admit(entry, code, now)
            if suppressed is not None:
                attempts = entry.attempts + 1
                logger.info(
                    "fetcher.partition_delayed", **entry.partition.fields, error=code.name, attempts=attempts, **suppressed.fields
                )
        self._delay(entry, now)

    def _on_disk_failure(self, entry: _PartitionFetch, error: DiskError) -> None:
        logger.error("fetcher.disk_failed", **entry.partition.fields, reason=str(error))
        self.remove(entry.partition.key)
        self._on_disk_error(error)

    def _admit(self, entry: _PartitionFetch, code: ErrorCode, now: float) -> Suppressed | None:
        return self._limits.admit(f"{code.name} {entry.partition.topic}-{entry.partition.key[1]}", now)

    # -- out of range, or in need of a fresh copy ---------------------------------------------------------------------

    def _await_range(self, entry: _PartitionFetch, sent: FetchPosition, lacks_below: int) -> None:
        entry.state, entry.lacks_below = _AWAITING_LEADER_RANGE, lacks_below
        self._set_aside(entry.partition.key)
        self._out_of_range[entry.partition.key] = sent

    def _await_fresh_copy(self, entry: _PartitionFetch, sent: FetchPosition, lacks_below: int, now: float) -> None:
        partition = entry.partition
        suppressed = self._limits.admit(f"fresh copy {partition.topic}-{partition.key[1]}", now)
        if partition.has_records and suppressed is not None:
            logger.warning(
                "fetcher.fresh_copy_needed", **partition.fields, tombstones_removed_below=lacks_below, **suppressed.fields
            )
        self._await_range(entry, sent, lacks_below)

    def take_out_of_range(self) -> dict[TopicIdPartition, FetchPosition]:
        """The partitions that have begun to await the leader's range since the last call, with their positions."""
        taken, self._out_of_range = self._out_of_range, {}
        return taken

    def on_leader_range(self, key: TopicIdPartition, asked: FetchPosition, found: LeaderRange, now: float) -> None:
        """Apply the leader's range.

        - The leader's log ends before ours: cut our log to its end.
        - It starts after our log end, or our records are of an unknown history: start over at its log start, with its state of
          producers.
        - A fresh copy is needed, and the leader's log is compacted far enough for one: begin the copy.
        - Otherwise: fetch again later."""
        entry = self._entries.get(key)
        if entry is None or entry.sent is not asked:
            return
        partition, (start, end, producers, clean_below) = entry.partition, found
        try:
            if end < asked.fetch_offset:
                partition.truncate_to_leader_end(asked, end)
            elif start > asked.fetch_offset or partition.has_unknown_history(asked, start):
                partition.truncate_fully_and_start_at(asked, start, producers, clean_below)
            elif entry.lacks_below and clean_below >= entry.lacks_below:
                partition.begin_copy(asked, start, clean_below, producers)
            else:
                self._await_cleaning(entry, clean_below, now)
                return
        except DiskError as e:
            self._on_disk_failure(entry, e)
            return
        except BrokerError as e:
            self._on_refusal(entry, e, now)
            return
        logger.info("fetcher.leader_range_applied", **partition.fields, leader_log=[start, end], fetch_offset=asked.fetch_offset)
        entry.state = _FETCHING
        entry.sent = None  # A response that the leader built before it answered for its range is ignored.
        self._make_ready(key)

    def _await_cleaning(self, entry: _PartitionFetch, clean_below: int, now: float) -> None:
        """Fetch again later: the position is within the leader's range again, or the leader's log cleaner has to finish a round
        before a fresh copy."""
        suppressed = self._limits.admit(f"cleaning {entry.partition.topic}-{entry.partition.key[1]}", now)
        if entry.lacks_below and suppressed is not None:
            logger.info(
                "fetcher.copy_delayed_by_cleaning",
                **entry.partition.fields,
                tombstones_removed_below=entry.lacks_below,
                first_dirty_offset=clean_below,
                **suppressed.fields,
            )
        self._delay(entry, now)

    def on_leader_range_failed(self, key: TopicIdPartition, asked: FetchPosition, now: float) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.sent is asked:
            self._delay(entry, now)
