"""The guards of the product that are removed one at a time, to see which instrument detects that.

A guard is an expression in a function: a condition that rejects something, or a call that makes something durable. An entry
names its place, its purpose, and the expression that replaces it, most often the `False` that never rejects. Expressions are
compared as syntax trees, so formatting does not matter. An entry that no longer matches its source fails a test
(`tests/testing/simulation/test_guards.py`).

The mutations of `campaign/mutations.py` change larger pieces and are written by hand; these are as small as a guard can be.
"""

from __future__ import annotations

from dataclasses import dataclass

WITHOUT = "STRANDLINE_WITHOUT_GUARD"
WATCH = "STRANDLINE_WATCH_GUARDS"
"""Environment variables that `plugin.py` reads."""

NEVER = "False"
ALWAYS = "True"
NOTHING = "None"


@dataclass(frozen=True, slots=True)
class Guard:
    number: str
    """The number of the guard, such as "G01"."""
    module: str
    """The file, from the root of the repository: "broker/partition/partition.py"."""
    function: str
    """The qualified name: "Partition.make_leader"."""
    guard: str
    """The expression, as it stands in the source."""
    removed: str
    """The expression that replaces it."""
    meaning: str
    """The behaviour of the code without the guard."""
    nth: int = 0
    """The index of the expression, if the function contains it several times."""

    @property
    def place(self) -> str:
        return f"{self.module}: {self.function}"


GUARDS: dict[str, Guard] = {}


def _room(module: str, *guards: tuple[str, str, str, str, str] | tuple[str, str, str, str, str, int]) -> None:
    for number, function, guard, removed, meaning, *nth in guards:
        assert number not in GUARDS, number
        GUARDS[number] = Guard(number, module, function, guard, removed, meaning, *nth)


# -- a partition's role and its follower's side -----------------------------------------------------------------------

_room(
    "broker/partition/partition.py",
    (
        "G01",
        "Partition.make_leader",
        "self._is_stale(registration)",
        NEVER,
        "a broker becomes leader from a registration that is older than the one it has applied",
    ),
    (
        "G02",
        "Partition.make_follower",
        "self._is_stale(registration)",
        NEVER,
        "a broker becomes follower from a registration that is older than the one it has applied",
    ),
    (
        "G03",
        "Partition.make_leader",
        "self.log.assign_epoch_start_offset(registration.leader_epoch, start)",
        NOTHING,
        "a new leader serves requests before it has recorded the start offset of its epoch",
    ),
    (
        "G04",
        "Partition.make_leader",
        "registration.partition_epoch > self.partition_epoch",
        ALWAYS,
        "a leader drops its proposal when the same partition epoch is applied again",
    ),
    (
        "G05",
        "Partition.check_leader_epoch",
        "epoch < self.leader_epoch",
        NEVER,
        "a request with an older leader epoch gets the error for a newer one",
    ),
    (
        "G06",
        "Partition.leading",
        "epoch != self.leader_epoch",
        NEVER,
        "the leader serves a request with any leader epoch",
    ),
    ("G07", "Partition.leading_follower", "epoch < 0", NEVER, "a follower may fetch without a leader epoch"),
    (
        "G08",
        "Partition.divergence",
        "fetch_offset < log_.log_start_offset",
        NEVER,
        "the leader compares a fetch offset below its log start with its history, instead of rejecting the fetch",
    ),
    (
        "G09",
        "Partition.divergence",
        "known < last_fetched_epoch or end < fetch_offset",
        NEVER,
        "the leader does not report to a follower that their histories diverge",
    ),
    (
        "G10",
        "Partition.divergence",
        "end < fetch_offset",
        NEVER,
        "the leader compares only the epochs of the two logs, not the end offset of the common epoch",
    ),
    (
        "G11",
        "Partition._is_at",
        "self.role is Role.FOLLOWER",
        ALWAYS,
        "a leader applies a fetch response to a request that it sent as a follower",
    ),
    (
        "G12",
        "Partition._is_at",
        "self.leader_epoch == position.leader_epoch",
        ALWAYS,
        "a follower applies a fetch response of an older leader epoch",
    ),
    (
        "G13",
        "Partition.append_fetched",
        "not self._is_at(position)",
        NEVER,
        "a follower applies a fetch response that arrives after its position has changed",
    ),
    (
        "G14",
        "Partition.append_fetched",
        "info is None or info.size < len(records)",
        NEVER,
        "a follower adopts the high watermark of a response that also holds records of a newer epoch (KAFKA-18723)",
    ),
    (
        "G15",
        "Partition._check_own_epoch",
        "0 <= epoch < log_.latest_epoch",
        NEVER,
        "a follower appends records of an older epoch after its own records of a newer one",
    ),
    (
        "G16",
        "Partition._check_may_drop_damage",
        "self.may_be_elected",
        NEVER,
        "a member of the ISR deletes its records after the damaged offset",
    ),
    (
        "G17",
        "Partition.has_unknown_history",
        "self._is_at(position)",
        ALWAYS,
        "a follower starts its log over because of a stale response",
    ),
    (
        "G18",
        "Partition.truncate_to_divergence",
        "not self._is_at(position)",
        NEVER,
        "a follower truncates because of a stale response about divergence",
    ),
    (
        "G19",
        "Partition.truncate_to_divergence",
        "min(end, diverging.end_offset)",
        "end",
        "a follower truncates to its own end of the common epoch, not to the leader's (KIP-279)",
    ),
    (
        "G20",
        "Partition.truncate_to_leader_end",
        "self._is_at(position)",
        ALWAYS,
        "a follower truncates to the leader's log end of a stale response",
    ),
    (
        "G21",
        "Partition.truncate_fully_and_start_at",
        "self._is_at(position)",
        ALWAYS,
        "a follower deletes its log because of a stale response about the log start",
    ),
    (
        "G201",
        "Partition.needs_fresh_copy",
        "not self._is_at(position) or tombstones_removed_below <= max(position.fetch_offset, self.copy_clean_below)",
        ALWAYS,
        "a follower keeps values whose tombstones the leader has removed: a deleted key reappears",
    ),
    (
        "G202",
        "Partition._check_may_start_over",
        "self.may_be_elected and self.has_records",
        NEVER,
        "a member of the ISR drops its log because its leader has removed tombstones",
    ),
    (
        "G203",
        "Partition._note_removed_tombstones",
        "removed_below > log_.tombstones_removed_below",
        NEVER,
        "a follower does not record that its copy lacks tombstones, and does not report it when it leads",
    ),
    (
        "G204",
        "Partition._leave_role",
        "min(log_.tombstones_removed_below, log_.log_end_offset)",
        "log_.tombstones_removed_below",
        "a replica reports missing tombstones also for records that it later copies from another leader",
    ),
    (
        "G230",
        "Partition.append_fetched",
        "log_.log_start_offset < response.log_start_offset <= log_.high_watermark",
        NEVER,
        "a follower keeps the records that its leader has deleted",
    ),
    (
        "G231",
        "Partition.append_fetched",
        "self.context.save_log_starts()",
        NOTHING,
        "a follower that restarts serves deleted records again",
    ),
    (
        "G232",
        "Partition.append_fetched",
        "first.base_offset < log_.log_end_offset <= response.log_start_offset and log_.size_bytes",
        NEVER,
        "a follower keeps records below its leader's log start that may be of another history",
    ),
    (
        "G233",
        "Partition.has_unknown_history",
        "self.log.log_start_offset < position.fetch_offset <= leader_log_start_offset",
        NEVER,
        "a follower keeps records whose history its leader no longer has",
    ),
)

_room(
    "broker/moves/mover.py",
    ("G253", "LogMover._check_room", "needed > free", NEVER, "a move between log directories fills the disk, which goes offline"),
)

# -- the leader: ISR and high watermark -------------------------------------------------------------------------------

_room(
    "broker/partition/leader_state.py",
    (
        "G251",
        "LeaderState.maybe_expand_isr",
        "self.is_recovering or not isinstance(isr, CommittedIsr) or replica.broker_id in isr.maximal",
        "not isinstance(isr, CommittedIsr) or replica.broker_id in isr.maximal",
        "a leader that was elected uncleanly expands the ISR before its recovery has ended",
    ),
    (
        "G22",
        "LeaderState.maybe_increment_high_watermark",
        "self.is_under_min_isr",
        NEVER,
        "the high watermark advances while the ISR is smaller than min.insync.replicas",
    ),
    (
        "G23",
        "LeaderState.smallest_log_end",
        "self._is_eligible(replica)",
        NEVER,
        "the high watermark does not wait for a follower that is about to join the ISR (KAFKA-14139)",
    ),
    (
        "G24",
        "LeaderState.on_follower_fetch",
        "broker_epoch < context.registered_epoch(replica.broker_id)",
        NEVER,
        "a fetch of a broker's earlier process counts as progress (KIP-903)",
    ),
    (
        "G25",
        "LeaderState._is_eligible",
        "context.is_active(replica.broker_id)",
        ALWAYS,
        "the leader proposes a fenced broker for the ISR (KIP-841)",
    ),
    (
        "G26",
        "LeaderState._is_eligible",
        "replica.broker_epoch == context.registered_epoch(replica.broker_id)",
        ALWAYS,
        "the leader proposes a broker whose current process has not fetched yet (KIP-903)",
    ),
    (
        "G27",
        "LeaderState.is_in_sync",
        "self.epoch_start_offset",
        "0",
        "a replica joins the ISR below the start of the leader's epoch (KAFKA-7128)",
    ),
    (
        "G28",
        "LeaderState.is_in_sync",
        "self.log.high_watermark",
        "0",
        "a replica joins the ISR below the high watermark",
    ),
    (
        "G29",
        "LeaderState.maybe_expand_isr",
        "not isinstance(isr, CommittedIsr)",
        NEVER,
        "the leader sends a second ISR proposal while one is in flight",
    ),
    (
        "G30",
        "LeaderState._on_result",
        "self.isr is not pending",
        NEVER,
        "the leader applies a late response to an older ISR proposal",
    ),
    (
        "G31",
        "LeaderState._on_result",
        "answer.leader_epoch != self.epoch",
        NEVER,
        "the leader installs an accepted ISR of any leader epoch",
    ),
    (
        "G32",
        "LeaderState._on_result",
        "answer.partition_epoch < self.partition_epoch",
        NEVER,
        "the leader installs an accepted ISR although it has applied a newer partition epoch",
    ),
    (
        "G33",
        "LeaderState.on_refusal",
        "code in _WAIT_FOR_METADATA",
        NEVER,
        "a leader repeats its proposal although the controller has a newer epoch",
    ),
    (
        "G34",
        "LeaderState.on_refusal",
        "isinstance(pending, PendingExpandIsr) and is_doubtful and not is_withdrawn",
        NEVER,
        "the leader drops an ISR expansion of unknown outcome as if it could not have been committed",
    ),
    (
        "G35",
        "LeaderState.install_isr",
        "self.replicas[member].forget_progress(self.context.now())",
        NOTHING,
        "the leader keeps the progress of a member that left the ISR",
    ),
    (
        "G36",
        "LeaderState.on_brokers_changed",
        "replica.forget_progress(self.context.now())",
        NOTHING,
        "the leader keeps the progress of a broker that was fenced",
    ),
    (
        "G37",
        "LeaderState.on_brokers_changed",
        "replica.is_heard",
        ALWAYS,
        "the leader proposes a broker for the ISR as soon as it is unfenced, before it has fetched",
    ),
    (
        "G38",
        "LeaderState.on_follower_fetch",
        "fetch_offset < self.log.high_watermark",
        NEVER,
        "a member of the ISR that lost records stays in it",
    ),
    ("G39", "LeaderState.resign", "self.drop_proposal()", NOTHING, "a leader that resigns leaves its ISR proposal in flight"),
    (
        "G54",
        "LeaderState.forget_session",
        "replica is not None and replica.session is session",
        NEVER,
        "a fetch session that ended still keeps its follower in the ISR",
    ),
    (
        "G234",
        "LeaderState.delete_records",
        "before_offset > log_.high_watermark",
        NEVER,
        "a request to delete records above the high watermark is not refused",
    ),
    (
        "G235",
        "LeaderState.delete_records",
        "self.events.log_start_moved()",
        NOTHING,
        "followers receive a new log start when their parked fetch ends, not at once",
    ),
    (
        "G236",
        "LeaderState.low_watermark",
        "replica.log_start_offset if is_known else UNKNOWN_OFFSET",
        "self.log.log_start_offset",
        "DeleteRecords is answered when the leader has deleted the records",
    ),
    (
        "G237",
        "LeaderState.low_watermark",
        "context.is_active(broker_id)",
        ALWAYS,
        "DeleteRecords waits for replicas that are not alive",
    ),
    (
        "G238",
        "LeaderState.low_watermark",
        "replica.broker_epoch == context.registered_epoch(broker_id)",
        ALWAYS,
        "the low watermark counts the log start of a follower's earlier process",
    ),
    (
        "G239",
        "LeaderState.on_follower_fetch",
        "log_start_offset != replica.log_start_offset or broker_epoch != replica.broker_epoch",
        "broker_epoch != replica.broker_epoch",
        "DeleteRecords is not answered when the last follower has deleted the records",
    ),
)
_room(
    "broker/partition/replica.py",
    (
        "G40",
        "Replica.on_fetch",
        "broker_epoch != self.broker_epoch >= 0",
        NEVER,
        "a restarted follower keeps the progress of its earlier process",
    ),
    (
        "G41",
        "Replica.before_leader_appends",
        "last <= self.void_since",
        NEVER,
        "a fetch from before the reset of a follower's progress counts as caught up",
    ),
    (
        "G42",
        "Replica.on_fetch",
        "fetch_offset >= leader_end_offset",
        ALWAYS,
        "every fetch of a lagging follower counts as caught up",
    ),
)
_room(
    "broker/partition/partition_state.py",
    (
        "G43",
        "PendingExpandIsr.proposed",
        "self.is_withdrawn",
        NEVER,
        "the leader proposes an ISR expansion again after it was withdrawn",
    ),
)

# -- produce and fetch ------------------------------------------------------------------------------------------------

_room(
    "broker/produce/produce_handler.py",
    (
        "G44",
        "ProduceHandler.append",
        "acks == ACKS_ALL and leader_state.is_under_min_isr",
        NEVER,
        "a batch with acks=all is appended although the ISR is smaller than min.insync.replicas",
    ),
    (
        "G45",
        "ProduceHandler._append_all",
        "acks == ACKS_ALL and partition is not None and partition.log.high_watermark < required_offset",
        NEVER,
        "a batch with acks=all is acknowledged before it is committed",
    ),
    (
        "G46",
        "ProduceHandler._check_named",
        "is_over and (is_checked or is_whole(records[position:]))",
        NEVER,
        "a named producer may write after its epoch was replaced",
    ),
    (
        "G47",
        "ProduceHandler._append_all",
        "body.records and self._connections.is_late(body.records[0], request.connection, is_known)",
        NEVER,
        "a late copy of a batch is appended from a connection that its producer has abandoned",
    ),
    (
        "G48",
        "DelayedProduce.on_reached",
        "not self._partitions",
        ALWAYS,
        "a produce request for several partitions is answered when the first batch is committed",
    ),
)
_room(
    "broker/produce/producer_connections.py",
    (
        "G197",
        "ProducerConnections.is_late",
        "connection.id == newest or not (is_whole(records) if is_known is None else is_known)",
        "connection.id == newest",
        "an incomplete batch closes the connection of the producer whose id it carries",
    ),
)
_room(
    "broker/fetch/fetch_handler.py",
    (
        "G49",
        "Fetch.visit_for_follower",
        "leader_state is None or leader_state.epoch != epoch",
        "leader_state is None",
        "the leader serves a follower that fetches in another leader epoch",
    ),
    (
        "G50",
        "Fetch.visit_for_follower",
        "arrival and diverging is None",
        "arrival",
        "a fetch from a diverging offset counts as progress",
    ),
    (
        "G51",
        "Fetch.visit_for_follower",
        "cached.last_fetched_epoch != epoch or not log_.log_start_offset <= offset <= log_.log_end_offset",
        NEVER,
        "the leader never compares a follower's position with its own history",
    ),
)
_room(
    "broker/fetch/fetch_session.py",
    (
        "G52",
        "FetchSessionCache.incremental_fetch",
        "session is None or (session.replica_id, session.replica_epoch) != (request.replica_id, request.replica_epoch)",
        "session is None",
        "another process may continue a fetch session",
    ),
    (
        "G53",
        "FetchSessionCache.incremental_fetch",
        "request.session_epoch != session.epoch",
        NEVER,
        "a fetch session accepts requests out of order",
    ),
)
_room(
    "broker/purgatory.py",
    ("G55", "DelayedOperation.complete", "self.is_completed", NEVER, "a waiting request is completed twice"),
    (
        "G56",
        "WatermarkWatchers.reach",
        "waiting[0][0] <= watermark",
        "waiting[0][0] <= watermark + 1",
        "a waiting produce request is answered one record too early",
    ),
)
_room(
    "broker/delete_records.py",
    (
        "G240",
        "DeleteRecordsHandler._delete",
        "response.low_watermark < offset",
        NEVER,
        "DeleteRecords does not wait for the low watermark",
    ),
    (
        "G241",
        "DelayedDeleteRecords._maybe_complete",
        "self._is_saved and not self._partitions",
        "not self._partitions",
        "DeleteRecords is answered before the log start is on the disk",
    ),
    (
        "G242",
        "DelayedDeleteRecords.on_saved",
        "len(offline) > 0",
        NEVER,
        "DeleteRecords succeeds although the log start could not be written",
    ),
    (
        "G243",
        "check_policy",
        "config.compacts and not config.deletes",
        NEVER,
        "the newest values of keys can be deleted from a compacted topic by offset",
    ),
)
_room(
    "broker/log_start_saver.py",
    (
        "G244",
        "LogStartSaver._on_written",
        "self._is_due and not self._is_writing",
        NEVER,
        "a log start that moves during a write of the checkpoint is not written",
    ),
)

# -- the follower's fetcher -------------------------------------------------------------------------------------------

_room(
    "broker/replication/fetcher.py",
    (
        "G57",
        "FetcherCore.on_response",
        "plan.generation != self.generation",
        NEVER,
        "the fetcher applies a response from a connection that it has abandoned",
    ),
    (
        "G58",
        "FetcherCore.on_response",
        "entry.sequence > plan.sequence",
        NEVER,
        "the fetcher applies an older response after it has sent a newer request for the partition",
    ),
    (
        "G59",
        "FetcherCore._on_error",
        "code == ErrorCode.FENCED_LEADER_EPOCH and sent.leader_epoch == entry.partition.fetch_position().leader_epoch",
        NEVER,
        "a fenced follower keeps fetching in the same leader epoch",
    ),
    (
        "G60",
        "FetcherCore.on_leader_range",
        "entry is None or entry.sent is not asked",
        "entry is None",
        "the follower applies the response to an earlier request for the leader's log range",
    ),
    (
        "G61",
        "FetcherCore.on_response",
        "len(response.partitions) != len(response.records)",
        NEVER,
        "the fetcher accepts a response with fewer record sets than partitions",
    ),
    (
        "G205",
        "FetcherCore.on_leader_range",
        "entry.lacks_below and clean_below >= entry.lacks_below",
        "entry.lacks_below",
        "a fresh copy begins although the leader's log is not compacted up to the tombstones that it may lack",
    ),
)

# -- broker: metadata, registration, replicas -------------------------------------------------------------------------

_room(
    "broker/process/quorum_observer.py",
    (
        "G62",
        "QuorumObserver.apply_committed",
        "waiting.header.last_offset >= self.high_watermark",
        NEVER,
        "a broker applies uncommitted metadata",
    ),
    (
        "G63",
        "QuorumObserver._take_batches",
        "header.base_offset != end_offset",
        NEVER,
        "a broker accepts metadata with a gap in its offsets",
    ),
    (
        "G64",
        "QuorumObserver._take_batches",
        "not check_crc(records, position, header.size)",
        NEVER,
        "a broker accepts metadata with a wrong checksum",
    ),
    (
        "G65",
        "QuorumObserver.truncate",
        "diverging.end_offset < applied",
        NEVER,
        "a broker keeps applied metadata that the quorum does not have",
    ),
    (
        "G66",
        "QuorumObserver._start_download",
        "snapshot_id.end_offset <= self.image.offset + 1",
        NEVER,
        "a broker loads a snapshot that is older than its metadata",
    ),
    (
        "G67",
        "QuorumObserver._on_error",
        "hint.leader_epoch >= self.epoch",
        ALWAYS,
        "a broker follows a controller of an older epoch",
    ),
)
_room(
    "broker/process/lifecycle_core.py",
    (
        "G68",
        "LifecycleCore.on_heartbeat",
        "sent.broker_epoch != self.broker_epoch",
        NEVER,
        "a broker applies the response to a heartbeat of its earlier registration",
    ),
    (
        "G69",
        "LifecycleCore.on_registration_lost",
        "stale_epoch == self.broker_epoch",
        ALWAYS,
        "a broker registers again because of an error about an older registration",
    ),
)
_room(
    "broker/partition/alter_partition.py",
    (
        "G70",
        "AlterPartitionQueue.on_response",
        "self._pending.get(item.key) is not item",
        NEVER,
        "the response to a withdrawn ISR proposal is passed to the partition",
    ),
    (
        "G71",
        "AlterPartitionQueue.submit",
        "item.key in self._pending",
        NEVER,
        "a second ISR proposal replaces one in flight",
    ),
)
_room(
    "broker/metadata_applier.py",
    (
        "G72",
        "MetadataApplier._open",
        "e.code != ErrorCode.INCONSISTENT_TOPIC_ID",
        ALWAYS,
        "a broker that finds a log of another topic id under the topic's name fails, instead of setting that log aside",
    ),
    (
        "G73",
        "MetadataApplier._apply",
        "directory.disk_error is None",
        ALWAYS,
        "a broker whose disk failed becomes leader or follower of partitions",
    ),
)
_room(
    "broker/process/pause_detector.py",
    (
        "G74",
        "PauseDetector._has_news",
        "self._heard_at() <= self._resumed_at",
        NEVER,
        "a broker that was paused accepts records before a controller has answered it",
    ),
)
_room(
    "broker/log_manager_tasks.py",
    (
        "G75",
        "LogManagerTasks._clear_strays",
        "registration is not None and broker_id in registration.replicas",
        NEVER,
        "a broker deletes its own logs at the start",
    ),
)

# -- the log ----------------------------------------------------------------------------------------------------------

_room(
    "storage/log/log.py",
    (
        "G246",
        "Log.append_as_follower",
        "not self.segments[0].size and len(self.segments) == 1",
        ALWAYS,
        "a follower appends a batch that overlaps its own records",
    ),
    (
        "G76",
        "Log.append_as_leader",
        "leader_epoch < self.epochs.latest_epoch",
        NEVER,
        "a leader of an older epoch appends after records of a newer one",
    ),
    (
        "G77",
        "Log._find_duplicates",
        "found and len(found) < len(headers)",
        NEVER,
        "a request with some duplicate batches is answered as a duplicate, and its new batches are dropped",
    ),
    (
        "G78",
        "Log._check_writable",
        "self.failure.error is not None",
        NEVER,
        "a log accepts writes after its disk returned an error",
    ),
    ("G79", "Log._check_writable", "self.corrupt_at is not None", NEVER, "a log appends after its damaged offset"),
    (
        "G80",
        "Log.update_high_watermark",
        "min(high_watermark, self.log_end_offset)",
        "high_watermark",
        "the high watermark may exceed the log end",
    ),
    ("G81", "Log.update_high_watermark", "high_watermark <= self.high_watermark", NEVER, "the high watermark may decrease"),
    (
        "G82",
        "Log.increment_log_start_offset",
        "min(offset, self.high_watermark)",
        "offset",
        "the log start may exceed the high watermark",
    ),
    (
        "G83",
        "Log.on_flushed",
        "work.truncations == self.truncations",
        ALWAYS,
        "a flush that started before a truncation advances the recovery point",
    ),
    ("G84", "Log.flush", "segment.file.fsync()", NOTHING, "a flush does not fsync the segments"),
    ("G85", "Log.flush", "self.sync_names()", NOTHING, "a flush does not make new file names durable"),
    (
        "G86",
        "Log._check_flushable",
        "self.failure.error is not None",
        NEVER,
        "a log is flushed again after a failed fsync, and its recovery point advances",
    ),
    (
        "G87",
        "Log.append_as_follower",
        "self.assign_epoch_start_offset(header.leader_epoch, first if first > start else start)",
        NOTHING,
        "a follower does not record the epochs of the batches that it appends",
    ),
    (
        "G88",
        "Log.assign_epoch_start_offset",
        "epoch < latest and epochs.latest_start >= offset",
        NEVER,
        "an epoch without records blocks records of an older epoch",
    ),
)
_room(
    "storage/log/truncation.py",
    ("G90", "_cut", "segment.file.fsync()", NOTHING, "a truncation is not durable before new records overwrite the range"),
    ("G91", "_lower", "lowered and log.on_lowered is not None", NEVER, "the checkpoints are not lowered before a truncation"),
    (
        "G92",
        "_after_cut",
        "not log.producers.all_end_before(end)",
        NEVER,
        "producer state keeps batches that were truncated",
    ),
    ("G93", "_after_cut", "log.epochs.truncate_from_end(end)", NOTHING, "the epoch cache keeps epochs that were truncated"),
    ("G94", "_after_cut", "log.tail.truncate_to(end)", NOTHING, "the recent tail keeps records that were truncated"),
    ("G95", "_after_cut", "log.cursors.clear()", NOTHING, "a reader continues at a file position that was truncated"),
)
_room(
    "storage/log/epoch_cache.py",
    (
        "G96",
        "LeaderEpochCache.assign",
        "self.epochs and epoch == self.epochs[-1] and start_offset >= self.starts[-1]",
        NEVER,
        "an epoch that is assigned again gets a later start offset",
    ),
    (
        "G97",
        "LeaderEpochCache.end_offset_for",
        "epoch > self.epochs[-1]",
        NEVER,
        "the log returns an end offset for an epoch that it does not have",
    ),
)
_room(
    "storage/log/producer_state.py",
    ("G98", "ProducerStates.check", "epoch < known_epoch", NEVER, "a producer of an older epoch may write"),
    (
        "G99",
        "ProducerStates.check",
        "entry is not None and entry.epoch == epoch and (duplicate := entry.find(first, last)) is not None",
        NEVER,
        "a duplicate of an appended batch is not recognised",
    ),
    (
        "G100",
        "ProducerStates._check_sequence",
        "last_sequence < 0 or first == last_sequence + 1 & MAX_SEQUENCE",
        ALWAYS,
        "a batch is appended although batches before its sequence are missing",
    ),
    (
        "G101",
        "ProducerStates.check",
        "known_epoch != _NO_EPOCH and first != 0",
        NEVER,
        "a new producer epoch may begin with any sequence",
    ),
    (
        "G102",
        "_check_next_row",
        "first <= known.last_sequence",
        NEVER,
        "rows that a named producer has already written get the error for missing rows",
    ),
)
_room(
    "storage/log/validation.py",
    (
        "G103",
        "check_batch",
        "not check_crc(records, position, header.size)",
        NEVER,
        "a produced batch with a wrong checksum is appended",
    ),
    (
        "G198",
        "check_batch",
        "check_records(records, position, header, data)",
        "RecordTimes(-1, -1)",
        "a produced batch with undecodable records is appended",
    ),
    (
        "G104",
        "check_fetched",
        "header.leader_epoch > max_epoch",
        NEVER,
        "a follower appends records of a newer epoch than the one in its request (KAFKA-18723)",
    ),
    ("G105", "check_fetched", "header.base_offset != next_offset", NEVER, "a follower appends after a gap in the offsets"),
    (
        "G106",
        "check_fetched",
        "header.leader_epoch < last_epoch or header.leader_epoch < 0",
        NEVER,
        "a follower appends batches whose epochs decrease",
    ),
    (
        "G107",
        "check_fetched",
        "not check_crc(records, position, header.size)",
        NEVER,
        "a follower appends a batch with a wrong checksum",
    ),
    (
        "G245",
        "check_fetched",
        "is_empty and not headers and header.base_offset < next_offset <= header.last_offset",
        NEVER,
        "a new follower cannot begin at a log start inside a batch (KAFKA-6975)",
    ),
)
_room(
    "storage/log/log_read.py",
    ("G108", "read", "offset >= corrupt_at", NEVER, "a log serves records after its damaged offset"),
    (
        "G109",
        "_read_segment",
        "not is_whole or epoch != epoch_of(max(base_offset, log_start))",
        NEVER,
        "a batch with a wrong checksum or epoch is served",
    ),
    (
        "G110",
        "_read_segment",
        "base_offset + last_delta >= end_offset",
        NEVER,
        "a batch that extends beyond the high watermark is served",
    ),
)
_room(
    "storage/log/retention.py",
    ("G111", "deletable", "end > log.high_watermark", NEVER, "retention deletes segments above the high watermark"),
    (
        "G112",
        "delete_segments",
        "log.save_named_producers(log.producers.before(start), start)",
        NOTHING,
        "the log drops the state of named producers whose batches retention deletes",
    ),
)

# -- recovery and checkpoints -----------------------------------------------------------------------------------------

_room(
    "storage/directory/log_dir.py",
    (
        "G252",
        "LogDir._check_boot_id",
        "self.lost_page_cache or self._is_checkpoint_damaged",
        "self.lost_page_cache",
        "the loss that a damaged checkpoint hides is no longer reported if the process dies before it has registered",
    ),
    (
        "G113",
        "LogDir.load",
        "self.files.remove(join(self.path, CLEAN_SHUTDOWN))",
        NOTHING,
        "the marker of a clean shutdown remains while the broker runs",
    ),
    (
        "G114",
        "LogDir.load",
        "self.files.fsync_dir(self.path)",
        NOTHING,
        "the marker of a clean shutdown may return after a power cut",
    ),
    ("G115", "CheckpointFiles.write", "moment > self.moment", NEVER, "an older checkpoint replaces a newer one"),
    (
        "G116",
        "LogDir.open_log",
        "known is not None and known != topic_id",
        NEVER,
        "a log of another topic id under the same name is opened",
    ),
    ("G89", "LogDir._flush_together", "self.files.fsync_paths(paths)", NOTHING, "a clean shutdown does not flush the logs"),
)
_room(
    "storage/log/recovery_scan.py",
    (
        "G117",
        "_Scan._problem",
        "not check_crc(data, inside, header.size)",
        NEVER,
        "recovery keeps a batch with a wrong checksum",
    ),
    ("G118", "_Scan._problem", "header.base_offset != self.expected", NEVER, "recovery keeps batches after a gap in the offsets"),
)
_room(
    "storage/log/recovery.py",
    (
        "G119",
        "load",
        "clean_shutdown and checkpoint is not None and _load_clean(log)",
        "checkpoint is not None and _load_clean(log)",
        "a log that was not closed cleanly is opened without a scan",
    ),
    (
        "G121",
        "load_epochs",
        "not entries or entries[0][1] > start",
        NEVER,
        "recovery uses an epoch checkpoint that begins after the log start",
    ),
)
_room(
    "storage/log/producer_recovery.py",
    (
        "G120",
        "load_producers",
        "offset == start or start < offset <= trusted_to",
        ALWAYS,
        "recovery uses a producer snapshot from beyond the log end",
    ),
)

# -- the quorum -------------------------------------------------------------------------------------------------------

_room(
    "controller/raft/election_handler.py",
    ("G122", "ElectionHandler.may_vote", "election.voted_id != NO_NODE", NEVER, "a voter votes twice in one epoch"),
    (
        "G123",
        "ElectionHandler.may_vote",
        "election.leader_id == NO_NODE",
        ALWAYS,
        "a voter votes in an epoch although it knows the leader of that epoch",
    ),
    (
        "G124",
        "ElectionHandler.may_vote",
        "self.is_up_to_date(request)",
        ALWAYS,
        "a voter votes for a candidate whose log is shorter than its own",
    ),
    (
        "G125",
        "ElectionHandler.may_vote",
        "self.state.recovery is not None",
        NEVER,
        "a voter that lost its disk votes before it has caught up",
    ),
    (
        "G126",
        "ElectionHandler.would_vote",
        "self.is_up_to_date(request)",
        ALWAYS,
        "a voter grants a pre-vote to a candidate whose log is shorter than its own",
    ),
    (
        "G127",
        "ElectionHandler.would_vote",
        "isinstance(role, Leader) or (isinstance(role, Follower) and role.leader_is_alive)",
        NEVER,
        "a voter grants a pre-vote although the leader is alive",
    ),
    (
        "G128",
        "ElectionHandler._vote_request_error",
        "request.replica_epoch < state.epoch",
        NEVER,
        "a vote request of an older epoch is treated as one of the current epoch",
    ),
    (
        "G129",
        "ElectionHandler.on_vote_response",
        "role is not state.role or not isinstance(role, (Prospective, Candidate))",
        "not isinstance(state.role, (Prospective, Candidate))",
        "a vote from an earlier election round counts",
    ),
    (
        "G130",
        "ElectionHandler.on_vote_request",
        "state.reply_after_sync(ticket, VoteResponse(ErrorCode.NONE, state.leader_id, state.epoch, granted))",
        "state.reply(ticket, VoteResponse(ErrorCode.NONE, state.leader_id, state.epoch, granted))",
        "a voter sends its vote before the vote is on disk",
    ),
)
_room(
    "controller/raft/epoch_announcements.py",
    (
        "G132",
        "EpochAnnouncements._request_error",
        "leader_epoch < state.epoch",
        NEVER,
        "a voter follows a leader of an older epoch",
    ),
)
_room(
    "controller/raft/leader_handler.py",
    (
        "G133",
        "LeaderHandler.append",
        "not state.is_leader or epoch != state.epoch",
        "not state.is_leader",
        "a controller appends for an earlier epoch in which it was the leader",
    ),
    (
        "G134",
        "LeaderHandler.maybe_advance_high_watermark",
        "majority_end > role.epoch_start_offset",
        ALWAYS,
        "the leader commits entries of older epochs by counting copies (Raft, figure 8)",
    ),
    (
        "G136",
        "LeaderHandler.tick",
        "now >= role.check_quorum_at and not self.hears_majority(role, now)",
        NEVER,
        "a quorum leader stays leader although it does not hear from a majority",
    ),
    (
        "G138",
        "LeaderHandler.maybe_advance_high_watermark",
        "role.flushed_offset",
        "state.log.end_offset",
        "the quorum's leader counts its own copy before the fsync",
    ),
)
_room(
    "controller/raft/leader_fetches.py",
    (
        "G135",
        "LeaderFetches._reply_divergent",
        "end.epoch != epoch or end.end_offset < offset",
        NEVER,
        "the quorum's leader does not report to a follower that their logs diverge",
    ),
    (
        "G137",
        "LeaderFetches.on_fetch_request",
        "session < progress.session and request.replica_id in role.voters",
        NEVER,
        "a fetch from a voter's older connection counts as progress",
    ),
)
_room(
    "controller/raft/follower_handler.py",
    ("G139", "FollowerHandler._truncate", "offset < state.high_watermark", NEVER, "a voter truncates committed metadata"),
    (
        "G140",
        "FollowerHandler._start_download",
        "snapshot_id.end_offset <= state.high_watermark",
        NEVER,
        "a voter replaces its log by an older snapshot",
    ),
    (
        "G141",
        "FollowerHandler.on_fetch_response",
        "followed or role is not self.state.role",
        "followed or not isinstance(self.state.role, Follower)",
        "a voter applies a fetch response of the previous leader",
    ),
    (
        "G142",
        "FollowerHandler._send_fetch",
        "state.send(role.leader_id, apis.FETCH, body, after_sync=True)",
        "state.send(role.leader_id, apis.FETCH, body, after_sync=False)",
        "a voter sends its next fetch before the records it has are on disk",
    ),
)
_room(
    "controller/raft/transitions.py",
    (
        "G131",
        "RoleTransitions.start",
        "election.leader_id == state.node_id",
        NEVER,
        "a leader that restarts becomes its own follower",
    ),
    (
        "G143",
        "RoleTransitions.become_follower",
        "before.leader_id not in (NO_NODE, leader_id)",
        NEVER,
        "a voter follows a second leader in one epoch",
    ),
    (
        "G144",
        "RoleTransitions.maybe_follow",
        "epoch < state.epoch or (epoch == state.epoch and not known)",
        "epoch == state.epoch and not known",
        "a voter returns to an older epoch",
    ),
    ("G145", "RoleTransitions._elect", "election.epoch < state.election.epoch", NEVER, "a voter's epoch may decrease"),
)
_room(
    "controller/raft/voter_recovery.py",
    (
        "G146",
        "VoterRecovery._has_recovered",
        "recovery.unanswered",
        NEVER,
        "a voter that lost its disk votes again before every other voter has answered",
    ),
    (
        "G147",
        "VoterRecovery._has_recovered",
        "log.flushed_offset >= role.leader_high_watermark",
        ALWAYS,
        "a voter that lost its disk votes again before it has all committed records",
    ),
    (
        "G148",
        "VoterRecovery._has_recovered",
        "self._covers_own_epoch(role.leader_high_watermark)",
        ALWAYS,
        "a voter that lost its disk votes again without a record of the current epoch",
    ),
    (
        "G149",
        "VoterRecovery.maybe_recover",
        "not state.election_dirty",
        ALWAYS,
        "a voter votes before the end of its recovery is on disk",
    ),
)
_room(
    "controller/raft/state_store.py",
    (
        "G150",
        "QuorumStateStore.check",
        "log_end_offset > 0",
        NEVER,
        "a voter that has a log but no file of votes starts as a new voter",
    ),
    (
        "G151",
        "QuorumStateStore.check",
        "state.applied_offset > log_end_offset",
        NEVER,
        "a voter votes although its log has lost committed records",
    ),
)
_room(
    "controller/raft/metadata_log.py",
    (
        "G152",
        "MetadataLog.truncate_to",
        "min(self.flushed_offset, self.log.log_end_offset)",
        "self.flushed_offset",
        "records that are fetched after a truncation count as flushed before their fsync",
    ),
    (
        "G153",
        "MetadataLog._recover",
        "self.log.corrupt_at is not None",
        NEVER,
        "a controller starts with a damaged metadata log",
    ),
    (
        "G199",
        "MetadataLog._undamaged",
        "self.log.corrupt_at is not None",
        NEVER,
        "a voter keeps running after it found damage in its metadata log",
    ),
)
_room(
    "controller/raft/snapshots.py",
    ("G154", "check_snapshot", "not check_crc(data, pos, header.size)", NEVER, "a snapshot with a wrong checksum is loaded"),
    ("G155", "check_snapshot", "not isinstance(last, SnapshotFooter)", NEVER, "an incomplete snapshot is loaded"),
)

# -- the controller ---------------------------------------------------------------------------------------------------

_room(
    "controller/cluster_control.py",
    ("G156", "check_registration", "request.cluster_id != cluster_id", NEVER, "a broker of another cluster may register"),
    (
        "G157",
        "check_registration",
        "sessions.is_live(existing.broker_id, existing.broker_epoch, now)",
        NEVER,
        "a second process registers with the id of a live broker",
    ),
    (
        "G158",
        "_next_of_fenced",
        "request.want_fence or disks_failed or not caught_up",
        "request.want_fence or disks_failed",
        "a broker is unfenced before it has applied the metadata",
    ),
    (
        "G247",
        "register_broker",
        "_lossy_of_start(image, request) if image.feature_level else None",
        "None",
        "a broker that may have lost records remains an eligible leader",
    ),
)
_room(
    "controller/liveness.py",
    (
        "G248",
        "BrokerLiveness.on_duplicate",
        "broker is not None and self._is_away(broker) and broker_id not in self._contested",
        NEVER,
        "a restarted broker waits for the end of a session that a new controller has granted to its dead process",
    ),
)
_room(
    "controller/reassignment.py",
    (
        "G249",
        "may_complete",
        "len(in_sync) >= max(1, min(min_isr, len(staying)))",
        "len(in_sync) >= 1",
        "a reassignment completes with fewer in-sync replicas than min.insync.replicas",
    ),
)
_room(
    "controller/replication_control.py",
    (
        "G250",
        "_ineligible",
        "joins and broker.is_cordoned",
        NEVER,
        "a replica that a reassignment adds joins the ISR on a broker whose log directories are all cordoned",
    ),
    (
        "G159",
        "check_broker_epoch",
        "broker.broker_epoch != broker_epoch",
        NEVER,
        "the controller accepts requests from a broker's earlier process",
    ),
    (
        "G160",
        "_stale",
        "item.leader_epoch < partition.leader_epoch",
        NEVER,
        "the controller accepts an ISR proposal of an older leader epoch",
    ),
    ("G161", "_stale", "broker_id != partition.leader", NEVER, "a broker that is not the leader may propose an ISR"),
    (
        "G162",
        "_stale",
        "item.partition_epoch < partition.partition_epoch",
        NEVER,
        "the controller accepts an ISR proposal based on an older partition epoch",
    ),
    ("G163", "_malformed", "partition.leader not in proposed", NEVER, "a leader may propose an ISR without itself"),
    (
        "G164",
        "_malformed",
        "not proposed or len(set(proposed)) != len(proposed) or not set(proposed) <= set(partition.replicas)",
        NEVER,
        "a leader may propose an ISR that is empty or names brokers without a replica",
    ),
    (
        "G165",
        "_ineligible",
        "broker is None or not broker.is_active or not broker.has_online(partition)",
        "broker is None or not broker.has_online(partition)",
        "a fenced broker may join the ISR (KIP-841)",
    ),
    (
        "G166",
        "_ineligible",
        "member.broker_epoch != broker.broker_epoch and not unseen_member",
        NEVER,
        "a broker's earlier process may join the ISR (KIP-903)",
    ),
    (
        "G167",
        "_ineligible",
        "member.broker_id in partition.isr",
        ALWAYS,
        "a broker may join the ISR although its current process has not fetched from the leader",
    ),
    (
        "G168",
        "_accept",
        "record.leader not in (NO_LEADER_CHANGE, broker_id)",
        NEVER,
        "a leader gets a success response for the ISR proposal that deposes it",
    ),
)
_room(
    "controller/partition_change.py",
    ("G169", "elect", "replica in isr and may_lead(replica)", "may_lead(replica)", "a replica outside the ISR is elected"),
    (
        "G170",
        "elect",
        "partition.leader in isr and may_lead(partition.leader)",
        "partition.leader in isr",
        "a leader that is not eligible remains the leader",
    ),
)
_room(
    "controller/controller.py",
    (
        "G171",
        "Controller.fence",
        "broker.broker_epoch != broker_epoch",
        NEVER,
        "a broker is fenced because its earlier process sent no heartbeats",
    ),
    (
        "G172",
        "Controller._write_batch",
        "appended != last_offset",
        NEVER,
        "a controller keeps running after its log gave its records an unexpected offset",
    ),
)
_room(
    "controller/producer_id_control.py",
    (
        "G173",
        "_check_not_over",
        "request.work_epoch < known.work_epoch",
        NEVER,
        "an old work epoch of a named producer may begin again",
    ),
)
_room(
    "controller/metadata/image.py",
    (
        "G200",
        "_Builder._check",
        "contradiction is not None",
        NEVER,
        "a partition may have a leader outside its ISR, or an ISR outside its replicas",
    ),
    (
        "G174",
        "_Builder._broker",
        "broker is None or broker.broker_epoch != broker_epoch",
        "broker is None",
        "a metadata record changes a different registration than the one it names",
    ),
    (
        "G175",
        "PartitionRegistration.merge",
        "self.leader_epoch + 1",
        "self.leader_epoch",
        "an election does not raise the leader epoch",
    ),
)

# -- the client -------------------------------------------------------------------------------------------------------

_room(
    "client/producer/partition_queue.py",
    (
        "G176",
        "PartitionQueue.take",
        "self.state is not _SENDING and not self.maybe_recover()",
        NEVER,
        "a producer sends new batches while an earlier batch must be resent",
    ),
    (
        "G177",
        "PartitionQueue.take",
        "IN_FLIGHT_MAX if self.first_batch_acknowledged else 1",
        "IN_FLIGHT_MAX",
        "a producer sends five batches before the broker has acknowledged its first one",
    ),
    (
        "G178",
        "PartitionQueue.take",
        "self.next_index >= end",
        NEVER,
        "a producer has more batches in flight than a broker remembers",
    ),
    (
        "G179",
        "PartitionQueue.maybe_recover",
        "self._expects_responses()",
        NEVER,
        "a producer renumbers its batches while one of them is in flight",
    ),
    (
        "G180",
        "PartitionQueue.needs_producer_id",
        "not self._expects_responses()",
        ALWAYS,
        "a producer replaces its id while a batch with the old id is in flight",
    ),
    (
        "G181",
        "PartitionQueue.on_failed",
        "self.in_flight[0] is batch",
        ALWAYS,
        "a producer treats a later batch as lost before the outcome of the earlier ones is known",
    ),
    (
        "G182",
        "PartitionQueue.may_split",
        "not batch.in_doubt",
        ALWAYS,
        "a producer splits a batch that may already be in the log",
    ),
    (
        "G183",
        "PartitionQueue.set_topic_id",
        "topic_id != self.topic_id",
        NEVER,
        "a producer treats a recreated topic as the old one",
    ),
)
_room(
    "client/producer/sender.py",
    (
        "G184",
        "Sender._on_answer",
        "batch.attempts == number and not batch.done",
        ALWAYS,
        "a late response to an earlier attempt counts",
    ),
    (
        "G185",
        "Sender._on_failed",
        "not batch.expects(number)",
        "batch.done",
        "a late failure of an earlier attempt counts",
    ),
    (
        "G186",
        "Sender._collect",
        "self._cluster.cache.leader(queue.topic, queue.partition) != broker.broker_id or queue.needs_producer_id",
        "queue.needs_producer_id",
        "a batch is sent to a broker that is no longer the leader",
    ),
    (
        "G187",
        "Sender._on_change",
        "self._options.idempotent",
        NEVER,
        "a producer keeps waiting for the response of a deposed leader",
    ),
)
_room(
    "client/consumer/fetcher.py",
    (
        "G188",
        "Fetcher._on_partition",
        "state is None or wanted is None or wanted.fetch_offset != state.fetch_offset",
        "state is None or wanted is None",
        "a consumer accepts a response for an earlier position",
    ),
    (
        "G189",
        "Fetcher._on_partition",
        "wanted.current_leader_epoch != state.leader_epoch",
        NEVER,
        "a consumer accepts a response of an older leader epoch",
    ),
)
_room(
    "client/consumer/offset_fetcher.py",
    (
        "G190",
        "OffsetFetcher.on_end_offset",
        "0 <= state.fetch_offset <= answer.end_offset",
        ALWAYS,
        "a consumer continues at a position that the new leader's log does not have",
    ),
    (
        "G191",
        "OffsetFetcher._look_up",
        "state.fetch_state != reset",
        NEVER,
        "a response to an earlier reset moves the position",
    ),
)
_room(
    "client/consumer/partition_state.py",
    (
        "G192",
        "PartitionState.on_leader",
        "self.leader_epoch >= 0 and self.fetch_epoch >= 0",
        NEVER,
        "a consumer does not validate its position when the leader changes (KIP-320)",
    ),
)
_room(
    "client/consumer/fetch_buffer.py",
    (
        "G193",
        "FetchBuffer.add",
        "header.next_offset <= self.end_offset",
        NEVER,
        "a consumer returns batches from before its position",
    ),
)
_room(
    "client/cluster/metadata.py",
    (
        "G194",
        "MetadataCache._update_partitions",
        "known is not None and new.leader_epoch < known.leader_epoch",
        NEVER,
        "a client returns to the leader of an older epoch",
    ),
    (
        "G195",
        "MetadataCache.update_leader",
        "leader_epoch <= known.leader_epoch",
        NEVER,
        "a client follows a leader hint of an older epoch",
    ),
)
_room(
    "client/consumer/fetch_session.py",
    ("G196", "FetchSession.on_response", "error_code", NEVER, "a consumer continues a fetch session that the broker rejected"),
)

# -- consumer groups: the coordinator ---------------------------------------------------------------------------------

_room(
    "broker/coordination/coordinator.py",
    (
        "G254",
        "ActiveShard.is_current",
        "self.partition.leader_state is self.leader_state",
        ALWAYS,
        "a coordinator whose leadership has ended continues",
    ),
    (
        "G255",
        "Coordinator._append_by",
        "leader_state.is_under_min_isr",
        NEVER,
        "a coordinator with too few in-sync replicas appends",
    ),
    (
        "G256",
        "Coordinator.shard_at",
        "active.loader is not None",
        NEVER,
        "a coordinator answers before it has loaded its groups",
    ),
    (
        "G257",
        "Coordinator.shard_at",
        "active.failure is not None",
        NEVER,
        "a coordinator answers although it could not load its groups",
    ),
    (
        "G258",
        "Coordinator._when_reached",
        "partition.log.high_watermark >= required",
        ALWAYS,
        "a coordinator answers before its records are committed",
    ),
    (
        "G259",
        "Coordinator.read_committed",
        "active.loaded_end",
        "0",
        "a new coordinator returns offsets before its high watermark shows which are committed",
    ),
    (
        "G260",
        "Coordinator._on_load_end",
        "not active.is_current",
        NEVER,
        "a load counts although the leadership has ended during it",
    ),
)
_room(
    "broker/coordination/loader.py",
    ("G261", "ShardLoader._step", "not self._is_current()", NEVER, "a load continues after the leadership has ended"),
)
_room(
    "broker/groups/loader.py",
    (
        "G262",
        "GroupLoader.read_batch",
        "header.next_offset <= high_watermark",
        ALWAYS,
        "a load treats commits above the high watermark as committed",
    ),
)
_room(
    "broker/groups/offset_table.py",
    (
        "G263",
        "OffsetTable._change",
        "log_offset >= self._high_watermark",
        NEVER,
        "the previous value is dropped before the next one is committed",
    ),
    (
        "G264",
        "OffsetTable.committed",
        "earlier is not None and (topic, partition) in earlier",
        NEVER,
        "an offset is served before it is committed",
    ),
)
_room(
    "broker/groups/offsets.py",
    (
        "G265",
        "OffsetStore._check_membership",
        "epoch < 0 and (group is None or group.is_empty)",
        "epoch < 0",
        "a program without a membership commits for a group that has members",
    ),
    (
        "G266",
        "OffsetStore._expired",
        "group is None or group.may_expire_offset(topic)",
        ALWAYS,
        "offsets of subscribed topics expire",
    ),
    (
        "G267",
        "_fetched",
        "value is None or not _belongs_to(value, topic)",
        "value is None",
        "a recreated topic begins with the offsets of the one before it",
    ),
)
_room(
    "broker/groups/member_connections.py",
    (
        "G268",
        "MemberConnections.check",
        "connection.id < newest",
        NEVER,
        "a late request is accepted on a connection that the member has abandoned",
    ),
)
_room(
    "broker/groups/consumer/membership.py",
    ("G269", "check_epoch", "epoch in (current.member_epoch, JOIN)", ALWAYS, "a member with any epoch is accepted"),
    (
        "G270",
        "check_epoch",
        "epoch == current.previous_member_epoch < current.member_epoch and _owns_at_most(body, current)",
        "epoch == current.previous_member_epoch < current.member_epoch",
        "a member in its previous epoch is accepted although it claims partitions that it has lost",
    ),
    (
        "G271",
        "_find_static",
        "holder.epoch != LEAVE_FOR_A_MOMENT and not holder.is_classic",
        NEVER,
        "a second process takes over the partitions of a static member that is alive",
    ),
    (
        "G272",
        "static_member",
        "member.member_id != member_id",
        NEVER,
        "a static member that was replaced is still accepted",
    ),
)
_room(
    "broker/groups/consumer/reconciliation.py",
    (
        "G273",
        "reconcile",
        "current.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(owned, current.pending_revocation)",
        NEVER,
        "a member advances before it has revoked its partitions",
    ),
    (
        "G274",
        "_advance",
        "revoked and _owns_any(owned, revoked)",
        NEVER,
        "partitions are free before their owner has revoked them",
    ),
    (
        "G275",
        "_add_free",
        "target.is_free(topic_id, number)",
        ALWAYS,
        "a member gets a partition that another one still owns",
    ),
)
_room(
    "broker/groups/consumer/group.py",
    (
        "G276",
        "ConsumerGroup.check_offset_commit",
        "epoch > member.epoch",
        NEVER,
        "a member commits in a later epoch than the coordinator has given it",
    ),
    (
        "G277",
        "ConsumerGroup.check_offset_commit",
        "assigned is None or epoch < assigned",
        NEVER,
        "a member commits in an older epoch for a partition that another member may have owned since",
    ),
    (
        "G278",
        "ConsumerGroup.check_offset_fetch",
        "epoch != member.epoch",
        NEVER,
        "a member in an older epoch gets committed offsets",
    ),
    (
        "G279",
        "ConsumerGroup._release",
        "owners.get(number) == member_id",
        ALWAYS,
        "a member frees a partition that another one owns by now (KAFKA-16147)",
    ),
)
_room(
    "broker/groups/consumer/member_timers.py",
    (
        "G280",
        "MemberTimers._on_rebalance_end",
        "not self._is_revoking(group_id, member_id, epoch)",
        NEVER,
        "a member is removed at the end of its rebalance timeout although it has revoked its partitions",
    ),
)
_room(
    "broker/groups/classic/group.py",
    (
        "G281",
        "ClassicGroup.check_generation",
        "generation != self.generation",
        NEVER,
        "a classic member of an older generation is accepted",
    ),
    (
        "G282",
        "ClassicGroup._check_committer",
        "self.state is State.COMPLETING",
        NEVER,
        "a classic member commits in a generation before it has partitions",
    ),
    (
        "G283",
        "ClassicGroup.check_member",
        "current is not None and current != member_id",
        NEVER,
        "a static classic member that was replaced is still accepted",
    ),
)

# -- consumer groups: members -----------------------------------------------------------------------------------------

_room(
    "client/consumer/group/membership.py",
    (
        "G284",
        "Membership.valid_until",
        "self._connection_lost_at is None or not self._grace_s",
        ALWAYS,
        "a member that has lost its connection relies on its partitions for a whole session",
    ),
    (
        "G285",
        "Membership.on_response",
        "sent.tenure == self.tenure and self.state is not _S.LEAVING",
        ALWAYS,
        "the response to a heartbeat of an earlier membership counts",
    ),
    (
        "G286",
        "Membership._maybe_join",
        "not self._is_released or self._farewell_until is not None or self.topics is None",
        "self._farewell_until is not None or self.topics is None",
        "a member that was removed joins again while the program still holds its partitions",
    ),
)
_room(
    "client/consumer/group/committer.py",
    (
        "G287",
        "Committer._sender",
        "view.tenure != self._assignment.tenure or view.epoch <= 0",
        "view.epoch <= 0",
        "a consumer commits in its next membership what it has read in the previous one",
    ),
    (
        "G288",
        "Committer._owns",
        "self._assignment.states.get(state.key) is state and self._view().tenure == self._assignment.tenure",
        ALWAYS,
        "a consumer commits offsets of a partition that it has lost",
    ),
)
_room(
    "client/consumer/group/rebalancer.py",
    (
        "G289",
        "Rebalancer._give_up",
        "self._standing.view().tenure != tenure",
        NEVER,
        "a consumer reports partitions as revoked in order that it has lost meanwhile",
    ),
    (
        "G290",
        "Rebalancer._wait_until_finished",
        "self._handed.has_unfinished(states) and self._is_member_in(self._assignment.tenure)",
        NEVER,
        "a partition moves to its next owner while the program works on its records",
    ),
)
_room(
    "client/consumer/group/member.py",
    (
        "G291",
        "GroupMember._maybe_suspend",
        "self._assignment and not self._is_suspended and self._loop.time() >= self.view.valid_until",
        NEVER,
        "a consumer returns records after a pause in which it may have lost its partitions",
    ),
)
_room(
    "broker/partition/leader_state.py",
    (
        "G292",
        "LeaderState.maybe_expand_isr",
        "self.knows_history_of(replica)",
        ALWAYS,
        "a follower joins the ISR with records that may be a fork",
    ),
)
