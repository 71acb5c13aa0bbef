"""The guards of the product that are removed one at a time, to see which instrument notices.

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
    """Such as "G01"."""
    module: str
    """The file, from the root of the repository: "broker/partition/partition.py"."""
    function: str
    """Qualified: "Partition.make_leader"."""
    guard: str
    """The expression, as it stands in the source."""
    removed: str
    """The expression that replaces it."""
    meaning: str
    """What the code does without the guard."""
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
        "a broker becomes the leader by a registration that is older than the one it knows",
    ),
    (
        "G02",
        "Partition.make_follower",
        "self._is_stale(registration)",
        NEVER,
        "a broker becomes a follower by a registration that is older than the one it knows",
    ),
    (
        "G03",
        "Partition.make_leader",
        "self.log.assign_epoch_start_offset(registration.leader_epoch, start)",
        NOTHING,
        "a new leader serves before it has recorded where its epoch begins",
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
        "a request of an older leader epoch gets the error for a newer one",
    ),
    (
        "G06",
        "Partition.leading",
        "epoch != self.leader_epoch",
        NEVER,
        "the leader answers a request whatever leader epoch it names",
    ),
    ("G07", "Partition.leading_follower", "epoch < 0", NEVER, "a follower may fetch without naming a leader epoch"),
    (
        "G08",
        "Partition.divergence",
        "fetch_offset < log_.log_start_offset",
        NEVER,
        "a fetch below the log start is compared with the history instead of refused",
    ),
    (
        "G09",
        "Partition.divergence",
        "known < last_fetched_epoch or end < fetch_offset",
        NEVER,
        "the leader does not tell a follower that their histories part",
    ),
    ("G10", "Partition.divergence", "end < fetch_offset", NEVER, "the leader compares epochs only, not where an epoch ends"),
    (
        "G11",
        "Partition._is_at",
        "self.role is Role.FOLLOWER",
        ALWAYS,
        "a replica that leads takes a fetch response of the time when it followed",
    ),
    (
        "G12",
        "Partition._is_at",
        "self.leader_epoch == position.leader_epoch",
        ALWAYS,
        "a follower takes a fetch response of an older leader epoch",
    ),
    ("G13", "Partition.append_fetched", "not self._is_at(position)", NEVER, "a follower takes any late fetch response"),
    (
        "G14",
        "Partition.append_fetched",
        "info is None or info.size < len(records)",
        NEVER,
        "a follower takes the high watermark of a response that reaches into a newer epoch (KAFKA-18723)",
    ),
    (
        "G15",
        "Partition._check_own_epoch",
        "0 <= epoch < log_.latest_epoch",
        NEVER,
        "a follower appends an older epoch behind its own newer one",
    ),
    ("G16", "Partition._check_may_drop_damage", "self.is_in_isr", NEVER, "a member of the ISR drops what lies behind its damage"),
    (
        "G17",
        "Partition.on_diverging",
        "not self._is_at(position)",
        NEVER,
        "a follower starts its log over because of a late answer about divergence",
    ),
    (
        "G18",
        "Partition.truncate_to_divergence",
        "not self._is_at(position)",
        NEVER,
        "a follower truncates because of a late answer about divergence",
    ),
    (
        "G19",
        "Partition.truncate_to_divergence",
        "min(end, diverging.end_offset)",
        "end",
        "a follower cuts to its own end of the common epoch, not to the leader's (KIP-279)",
    ),
    (
        "G20",
        "Partition.truncate_to_leader_end",
        "self._is_at(position)",
        ALWAYS,
        "a follower truncates to a log end that the leader told long ago",
    ),
    (
        "G21",
        "Partition.truncate_fully_and_start_at",
        "self._is_at(position)",
        ALWAYS,
        "a follower drops its log because of an answer about the log start that came late",
    ),
)

# -- the leader: ISR and high watermark -------------------------------------------------------------------------------

_room(
    "broker/partition/leader_state.py",
    (
        "G22",
        "LeaderState.maybe_increment_high_watermark",
        "self.is_under_min_isr",
        NEVER,
        "the high watermark moves while the ISR is smaller than min.insync.replicas",
    ),
    (
        "G23",
        "LeaderState._smallest_log_end",
        "self._is_eligible(replica)",
        NEVER,
        "the high watermark does not wait for a follower that is about to join the ISR (KAFKA-14139)",
    ),
    (
        "G24",
        "LeaderState.on_follower_fetch",
        "broker_epoch < context.registered_epoch(replica.broker_id)",
        NEVER,
        "a fetch of an earlier process of a broker counts as progress (KIP-903)",
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
        "the leader proposes a broker whose process it has not seen fetch (KIP-903)",
    ),
    (
        "G27",
        "LeaderState._is_in_sync",
        "self.epoch_start_offset",
        "0",
        "a replica joins the ISR below the start of the leader's epoch (KAFKA-7128)",
    ),
    (
        "G28",
        "LeaderState._is_in_sync",
        "self.log.high_watermark",
        "0",
        "a replica joins the ISR below the high watermark",
    ),
    (
        "G29",
        "LeaderState.maybe_expand_isr",
        "not isinstance(isr, CommittedIsr)",
        NEVER,
        "a second ISR proposal is made while one is in flight",
    ),
    ("G30", "LeaderState._on_result", "self.isr is not pending", NEVER, "a late answer to an older ISR proposal counts"),
    (
        "G31",
        "LeaderState._on_result",
        "answer.leader_epoch != self.epoch",
        NEVER,
        "an accepted ISR counts whatever leader epoch the answer names",
    ),
    (
        "G32",
        "LeaderState._on_result",
        "answer.partition_epoch < self.partition_epoch",
        NEVER,
        "an accepted ISR counts although a newer partition epoch is known",
    ),
    (
        "G33",
        "LeaderState._on_refusal",
        "code in _WAIT_FOR_METADATA",
        NEVER,
        "a leader repeats its proposal when the controller knows a newer epoch",
    ),
    (
        "G34",
        "LeaderState._on_refusal",
        "isinstance(pending, PendingExpandIsr) and is_doubtful and not is_withdrawn",
        NEVER,
        "an expansion in doubt is given up as if it could not have been committed",
    ),
    (
        "G35",
        "LeaderState._install",
        "self.replicas[member].forget_progress(self.context.now())",
        NOTHING,
        "a member that leaves the ISR keeps its progress",
    ),
    (
        "G36",
        "LeaderState.on_brokers_changed",
        "replica.forget_progress(self.context.now())",
        NOTHING,
        "a broker that is fenced keeps its progress",
    ),
    (
        "G37",
        "LeaderState.on_brokers_changed",
        "replica.is_heard",
        ALWAYS,
        "a broker is proposed as soon as it is unfenced, before it has fetched",
    ),
    (
        "G38",
        "LeaderState.on_follower_fetch",
        "fetch_offset < self.log.high_watermark",
        NEVER,
        "a member of the ISR that lost records stays in it",
    ),
    ("G39", "LeaderState.resign", "self._drop_proposal()", NOTHING, "a leadership that ends leaves its ISR proposal under way"),
    (
        "G54",
        "LeaderState.forget_session",
        "replica is not None and replica.session is session",
        NEVER,
        "a session that ended goes on vouching for its follower",
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
        "a fetch from before the progress became void counts as caught up",
    ),
    (
        "G42",
        "Replica.on_fetch",
        "fetch_offset >= leader_end_offset",
        ALWAYS,
        "a follower that lags counts as caught up with every fetch",
    ),
)
_room(
    "broker/partition/partition_state.py",
    ("G43", "PendingExpandIsr.proposed", "self.is_withdrawn", NEVER, "a withdrawn expansion is proposed once more"),
)

# -- produce and fetch ------------------------------------------------------------------------------------------------

_room(
    "broker/produce/produce_handler.py",
    (
        "G44",
        "ProduceHandler._append",
        "acks == ACKS_ALL and leader_state.is_under_min_isr",
        NEVER,
        "a batch with acks=all is appended although the ISR is too small",
    ),
    (
        "G45",
        "ProduceHandler.handle",
        "acks == ACKS_ALL and partition is not None and partition.log.high_watermark < required_offset",
        NEVER,
        "a batch with acks=all is acknowledged before it is committed",
    ),
    (
        "G46",
        "ProduceHandler._check_named",
        "is_over and is_whole(records[position:])",
        NEVER,
        "a named producer of an epoch that is over may write",
    ),
    (
        "G47",
        "ProduceHandler.handle",
        "body.records and self._connections.is_late(body.records[0], request.connection)",
        NEVER,
        "a late copy of a batch on a connection that its producer gave up is appended",
    ),
    (
        "G48",
        "DelayedProduce.on_reached",
        "not self._partitions",
        ALWAYS,
        "a produce of several partitions is answered when the first one is committed",
    ),
)
_room(
    "broker/produce/producer_connections.py",
    (
        "G197",
        "ProducerConnections.is_late",
        "connection.id == newest or not is_whole(records)",
        "connection.id == newest",
        "a batch that is not whole closes the connection of the producer that it names",
    ),
)
_room(
    "broker/fetch/fetch_handler.py",
    (
        "G49",
        "Fetch._visit_for_follower",
        "leader_state is None or leader_state.epoch != epoch",
        "leader_state is None",
        "the leader serves a follower of another leader epoch",
    ),
    (
        "G50",
        "Fetch._visit_for_follower",
        "arrival and diverging is None",
        "arrival",
        "a fetch from a diverging position counts as progress",
    ),
    (
        "G51",
        "Fetch._visit_for_follower",
        "cached.last_fetched_epoch != epoch or not log_.log_start_offset <= offset <= log_.log_end_offset",
        NEVER,
        "a follower's position is never compared with the leader's history",
    ),
)
_room(
    "broker/fetch/fetch_session.py",
    (
        "G52",
        "FetchSessionCache._continue",
        "session is None or (session.replica_id, session.replica_epoch) != (request.replica_id, request.replica_epoch)",
        "session is None",
        "a fetch session may be continued by another process",
    ),
    (
        "G53",
        "FetchSessionCache._continue",
        "request.session_epoch != session.epoch",
        NEVER,
        "a fetch session takes requests out of order",
    ),
)
_room(
    "broker/purgatory.py",
    ("G55", "DelayedOperation.complete", "self.is_completed", NEVER, "a waiting request is completed twice"),
    (
        "G56",
        "HighWatermarkWatchers.reach",
        "waiting[0][0] <= high_watermark",
        "waiting[0][0] <= high_watermark + 1",
        "a waiting produce is answered one record too early",
    ),
)

# -- the follower's fetcher -------------------------------------------------------------------------------------------

_room(
    "broker/replication/fetcher.py",
    (
        "G57",
        "FetcherCore.on_response",
        "plan.generation != self._generation",
        NEVER,
        "the fetcher takes a response of a connection that was given up",
    ),
    (
        "G58",
        "FetcherCore.on_response",
        "entry.sequence > plan.sequence",
        NEVER,
        "the fetcher takes an older response after the partition was asked for again",
    ),
    (
        "G59",
        "FetcherCore._on_error",
        "code == ErrorCode.FENCED_LEADER_EPOCH and sent.leader_epoch == entry.partition.fetch_position().leader_epoch",
        NEVER,
        "a fenced follower goes on asking in the same leader epoch",
    ),
    (
        "G60",
        "FetcherCore.on_leader_range",
        "entry is None or entry.sent is not asked",
        "entry is None",
        "the follower takes an answer about the leader's log that it asked for earlier",
    ),
    (
        "G61",
        "FetcherCore.on_response",
        "len(response.partitions) != len(response.records)",
        NEVER,
        "a fetch response with fewer record sets than partitions is taken",
    ),
)

# -- broker: metadata, registration, replicas -------------------------------------------------------------------------

_room(
    "broker/process/quorum_observer.py",
    (
        "G62",
        "QuorumObserver._apply_committed",
        "waiting.header.last_offset >= self.high_watermark",
        NEVER,
        "a broker applies metadata that is not committed",
    ),
    (
        "G63",
        "QuorumObserver._take_batches",
        "header.base_offset != self._fetch_offset",
        NEVER,
        "a broker takes metadata with a hole in it",
    ),
    (
        "G64",
        "QuorumObserver._take_batches",
        "not check_crc(records, position, header.size)",
        NEVER,
        "a broker takes metadata whose checksum is wrong",
    ),
    (
        "G65",
        "QuorumObserver._truncate",
        "diverging.end_offset < applied",
        NEVER,
        "a broker goes on with applied metadata that the quorum does not have",
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
        "a broker takes the answer to a heartbeat of its earlier registration",
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
        "an answer to a withdrawn ISR proposal is handed to the partition",
    ),
    (
        "G71",
        "AlterPartitionQueue.submit",
        "item.key in self._pending",
        NEVER,
        "a second ISR proposal takes the place of one in flight",
    ),
)
_room(
    "broker/metadata_applier.py",
    (
        "G72",
        "MetadataApplier._open",
        "e.code != ErrorCode.INCONSISTENT_TOPIC_ID",
        ALWAYS,
        "a broker that finds a log of another topic id under the name gives up instead of setting it aside",
    ),
    ("G73", "MetadataApplier.apply_delta", "directory.disk_error is None", ALWAYS, "a broker whose disk failed takes up roles"),
)
_room(
    "broker/process/standstill.py",
    (
        "G74",
        "Standstill._has_news",
        "self._heard_at() <= self._woke_at",
        NEVER,
        "a broker that stood still takes records before it has heard of a controller",
    ),
)
_room(
    "broker/log_manager_tasks.py",
    (
        "G75",
        "LogManagerTasks.clear_strays",
        "registration is not None and broker_id in registration.replicas",
        NEVER,
        "a broker removes logs that belong to it at the start",
    ),
)

# -- the log ----------------------------------------------------------------------------------------------------------

_room(
    "storage/log/log.py",
    (
        "G76",
        "Log.append_as_leader",
        "leader_epoch < self.epochs.latest_epoch",
        NEVER,
        "a leader of an older epoch appends behind a newer one",
    ),
    (
        "G77",
        "Log._find_duplicates",
        "found and len(found) < len(headers)",
        NEVER,
        "a request of which some batches are known is answered as known, and the rest is dropped",
    ),
    ("G78", "Log._check_writable", "self.failure.error is not None", NEVER, "a log is written to after an error of its disk"),
    ("G79", "Log._check_writable", "self.corrupt_at is not None", NEVER, "a log is appended to behind its damage"),
    (
        "G80",
        "Log.update_high_watermark",
        "min(high_watermark, self.log_end_offset)",
        "high_watermark",
        "the high watermark may lie above the log end",
    ),
    ("G81", "Log.update_high_watermark", "high_watermark <= self.high_watermark", NEVER, "the high watermark may go back"),
    (
        "G82",
        "Log.increment_log_start_offset",
        "min(offset, self.high_watermark)",
        "offset",
        "the log start may lie above the high watermark",
    ),
    (
        "G83",
        "Log.on_flushed",
        "work.truncations == self.truncations",
        ALWAYS,
        "a flush that a truncation has overtaken moves the recovery point",
    ),
    ("G84", "Log.flush", "segment.file.fsync()", NOTHING, "a flush does not fsync the segments"),
    ("G85", "Log.flush", "self.sync_names()", NOTHING, "a flush does not make the names of files durable"),
    (
        "G86",
        "Log._check_flushable",
        "self.failure.error is not None",
        NEVER,
        "a log is flushed after an fsync that failed, and its recovery point moves",
    ),
    (
        "G87",
        "Log.append_as_follower",
        "self.assign_epoch_start_offset(header.leader_epoch, header.base_offset)",
        NOTHING,
        "a follower does not record the epochs of what it appends",
    ),
    (
        "G88",
        "Log.assign_epoch_start_offset",
        "epoch < epochs.latest_epoch and epochs.latest_start >= offset",
        NEVER,
        "an epoch that wrote nothing stands in the way of an older one's records",
    ),
    (
        "G89",
        "Log._close_orderly",
        "self.recovery_point < self.log_end_offset or self.unsynced",
        NEVER,
        "a clean shutdown does not flush the logs",
    ),
)
_room(
    "storage/log/truncation.py",
    ("G90", "_cut", "segment.file.fsync()", NOTHING, "a truncation is not durable before new records are written over it"),
    ("G91", "_lower", "lowered and log.on_lowered is not None", NEVER, "the checkpoints are not lowered before a truncation"),
    (
        "G92",
        "_after_cut",
        "not log.producers.all_end_before(end)",
        NEVER,
        "producer state keeps batches that a truncation has cut",
    ),
    ("G93", "_after_cut", "log.epochs.truncate_from_end(end)", NOTHING, "the epoch cache keeps epochs that a truncation has cut"),
    ("G94", "_after_cut", "log.tail.truncate_to(end)", NOTHING, "the recent tail keeps records that a truncation has cut"),
    ("G95", "_after_cut", "log.cursors.clear()", NOTHING, "a reader goes on at a position that a truncation has cut"),
)
_room(
    "storage/log/epoch_cache.py",
    (
        "G96",
        "LeaderEpochCache.assign",
        "self._epochs and epoch == self._epochs[-1] and start_offset >= self._starts[-1]",
        NEVER,
        "an epoch that is assigned again begins later",
    ),
    (
        "G97",
        "LeaderEpochCache.end_offset_for",
        "epoch > self._epochs[-1]",
        NEVER,
        "the end of an epoch that the log does not know is answered",
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
        "a batch that was appended before is not recognised",
    ),
    (
        "G100",
        "ProducerStates._check_sequence",
        "last_sequence < 0 or first == last_sequence + 1 & MAX_SEQUENCE",
        ALWAYS,
        "a batch with a gap before its sequence is appended",
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
        "rows of a named producer that are there are answered as a gap",
    ),
)
_room(
    "storage/log/validation.py",
    (
        "G103",
        "check_batch",
        "not check_crc(records, position, header.size)",
        NEVER,
        "a produced batch whose checksum is wrong is appended",
    ),
    (
        "G198",
        "check_batch",
        "check_records(records, position, header)",
        "RecordTimes(-1, -1)",
        "a produced batch whose records are noise is appended",
    ),
    (
        "G104",
        "check_fetched",
        "header.leader_epoch > max_epoch",
        NEVER,
        "a follower appends records of a newer epoch than the one it asked in (KAFKA-18723)",
    ),
    ("G105", "check_fetched", "header.base_offset != next_offset", NEVER, "a follower appends behind a hole"),
    (
        "G106",
        "check_fetched",
        "header.leader_epoch < last_epoch or header.leader_epoch < 0",
        NEVER,
        "a follower appends epochs that go back",
    ),
    (
        "G107",
        "check_fetched",
        "not check_crc(records, position, header.size)",
        NEVER,
        "a follower appends a batch whose checksum is wrong",
    ),
)
_room(
    "storage/log/log_read.py",
    ("G108", "read", "offset >= corrupt_at", NEVER, "a log serves what lies behind its damage"),
    (
        "G109",
        "_read_segment",
        "not is_whole or epoch != epoch_of(base_offset)",
        NEVER,
        "a batch is served whose checksum or epoch is wrong",
    ),
    (
        "G110",
        "_read_segment",
        "base_offset + last_delta >= end_offset",
        NEVER,
        "a batch that reaches over the high watermark is served",
    ),
)
_room(
    "storage/log/retention.py",
    ("G111", "_deletable", "end > log.high_watermark", NEVER, "retention deletes segments above the high watermark"),
    (
        "G112",
        "delete_old_segments",
        "log.save_named_producers(log.producers.before(start), start)",
        NOTHING,
        "retention forgets named producers whose batches it deletes",
    ),
)

# -- recovery and checkpoints -----------------------------------------------------------------------------------------

_room(
    "storage/directory/log_dir.py",
    (
        "G113",
        "LogDir._load",
        "self.files.remove(join(self.path, CLEAN_SHUTDOWN))",
        NOTHING,
        "the marker of a clean shutdown stays while the broker runs",
    ),
    (
        "G114",
        "LogDir._load",
        "self.files.fsync_dir(self.path)",
        NOTHING,
        "the marker of a clean shutdown may come back after a power cut",
    ),
    ("G115", "CheckpointFiles.write", "moment > self.moment", NEVER, "an older checkpoint replaces a newer one"),
    (
        "G116",
        "LogDir.open_log",
        "known is not None and known != topic_id",
        NEVER,
        "a log of another topic id under the same name is opened",
    ),
)
_room(
    "storage/log/recovery_scan.py",
    (
        "G117",
        "_Scan._problem",
        "not check_crc(data, inside, header.size)",
        NEVER,
        "recovery takes a batch whose checksum is wrong",
    ),
    ("G118", "_Scan._problem", "header.base_offset != self.expected", NEVER, "recovery takes a log with a hole"),
)
_room(
    "storage/log/recovery.py",
    (
        "G119",
        "load",
        "clean_shutdown and checkpoint is not None and _load_clean(log)",
        "checkpoint is not None and _load_clean(log)",
        "a log that was not closed in order is opened without a scan",
    ),
    (
        "G121",
        "_load_epochs",
        "not entries or entries[0][1] > start",
        NEVER,
        "recovery takes an epoch checkpoint that begins behind the log start",
    ),
)
_room(
    "storage/log/producer_recovery.py",
    (
        "G120",
        "load_producers",
        "offset == start or start < offset <= trusted_to",
        ALWAYS,
        "recovery takes a producer snapshot from behind the log end",
    ),
)

# -- the quorum -------------------------------------------------------------------------------------------------------

_room(
    "controller/raft/election_handler.py",
    ("G122", "ElectionHandler._may_vote", "election.voted_id != NO_NODE", NEVER, "a voter votes twice in one epoch"),
    (
        "G123",
        "ElectionHandler._may_vote",
        "election.leader_id == NO_NODE",
        ALWAYS,
        "a voter votes in an epoch whose leader it knows",
    ),
    (
        "G124",
        "ElectionHandler._may_vote",
        "self._is_up_to_date(request)",
        ALWAYS,
        "a voter votes for a candidate whose log is shorter than its own",
    ),
    (
        "G125",
        "ElectionHandler._may_vote",
        "self.state.recovery is not None",
        NEVER,
        "a voter that lost its disk votes before it has caught up",
    ),
    (
        "G126",
        "ElectionHandler._would_vote",
        "self._is_up_to_date(request)",
        ALWAYS,
        "a pre-vote is granted to a candidate whose log is shorter",
    ),
    (
        "G127",
        "ElectionHandler._would_vote",
        "isinstance(role, Leader) or (isinstance(role, Follower) and role.leader_is_alive)",
        NEVER,
        "a pre-vote is granted while the leader is heard",
    ),
    (
        "G128",
        "ElectionHandler._vote_request_error",
        "request.replica_epoch < state.epoch",
        NEVER,
        "a vote request of an older epoch is answered as of this one",
    ),
    (
        "G129",
        "ElectionHandler.on_vote_response",
        "role is not state.role or not isinstance(role, (Prospective, Candidate))",
        "not isinstance(state.role, (Prospective, Candidate))",
        "a vote that was given in an earlier round counts",
    ),
    (
        "G130",
        "ElectionHandler.on_vote_request",
        "state.reply_after_sync(ticket, VoteResponse(ErrorCode.NONE, state.leader_id, state.epoch, granted))",
        "state.reply(ticket, VoteResponse(ErrorCode.NONE, state.leader_id, state.epoch, granted))",
        "a vote is answered before it is on the disk",
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
        "a controller appends for an epoch in which it led before",
    ),
    (
        "G134",
        "LeaderHandler.maybe_advance_high_watermark",
        "majority_end > role.epoch_start_offset",
        ALWAYS,
        "entries of older epochs are committed by counting copies (Raft, figure 8)",
    ),
    (
        "G136",
        "LeaderHandler.tick",
        "now >= role.check_quorum_at and not self._hears_majority(role, now)",
        NEVER,
        "a leader of the quorum that hears no majority goes on leading",
    ),
    (
        "G138",
        "LeaderHandler.maybe_advance_high_watermark",
        "role.flushed_offset",
        "state.log.end_offset",
        "the quorum's leader counts itself before its fsync",
    ),
)
_room(
    "controller/raft/leader_fetches.py",
    (
        "G135",
        "LeaderFetches._reply_divergent",
        "end.epoch != epoch or end.end_offset < offset",
        NEVER,
        "the quorum's leader does not tell a follower that their logs part",
    ),
    (
        "G137",
        "LeaderFetches.on_fetch_request",
        "session < progress.session and request.replica_id in role.voters",
        NEVER,
        "a voter's fetch of an older connection counts",
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
        "a voter replaces its log by a snapshot that is older",
    ),
    (
        "G141",
        "FollowerHandler.on_fetch_response",
        "followed or role is not self.state.role",
        "followed or not isinstance(self.state.role, Follower)",
        "a voter takes a fetch response of the leader before",
    ),
    (
        "G142",
        "FollowerHandler._send_fetch",
        "state.send(role.leader_id, apis.FETCH, body, after_sync=True)",
        "state.send(role.leader_id, apis.FETCH, body, after_sync=False)",
        "a voter asks for more before what it has is on the disk",
    ),
)
_room(
    "controller/raft/transitions.py",
    ("G131", "RoleTransitions.start", "election.leader_id == state.node_id", NEVER, "a leader that restarts follows itself"),
    (
        "G143",
        "RoleTransitions.become_follower",
        "before.leader_id not in (NO_NODE, leader_id)",
        NEVER,
        "a voter follows a second leader of one epoch",
    ),
    (
        "G144",
        "RoleTransitions.maybe_follow",
        "epoch < state.epoch or (epoch == state.epoch and not known)",
        "epoch == state.epoch and not known",
        "a voter goes back to an older epoch",
    ),
    ("G145", "RoleTransitions._elect", "election.epoch < state.election.epoch", NEVER, "the epoch of a voter may go back"),
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
        "a voter that lost its disk votes again before it has what was committed",
    ),
    (
        "G148",
        "VoterRecovery._has_recovered",
        "self._covers_own_epoch(role.leader_high_watermark)",
        ALWAYS,
        "a voter that lost its disk votes again without a record of the present epoch",
    ),
    (
        "G149",
        "VoterRecovery.maybe_recover",
        "not state.election_dirty",
        ALWAYS,
        "a voter votes before its disk has the end of its recovery",
    ),
)
_room(
    "controller/raft/state_store.py",
    (
        "G150",
        "QuorumStateStore.check",
        "log_end_offset > 0",
        NEVER,
        "a voter whose file of votes is missing beside its log starts as a new one",
    ),
    (
        "G151",
        "QuorumStateStore.check",
        "state.applied_offset > log_end_offset",
        NEVER,
        "a voter whose log lost committed records votes",
    ),
)
_room(
    "controller/raft/metadata_log.py",
    (
        "G152",
        "MetadataLog.truncate_to",
        "min(self.flushed_offset, self._log.log_end_offset)",
        "self.flushed_offset",
        "records that are fetched after a truncation count as flushed",
    ),
    (
        "G153",
        "MetadataLog._recover",
        "self._log.corrupt_at is not None",
        NEVER,
        "a controller starts with a damaged metadata log",
    ),
    (
        "G199",
        "MetadataLog._undamaged",
        "self._log.corrupt_at is not None",
        NEVER,
        "a voter goes on after its metadata log met damage",
    ),
)
_room(
    "controller/raft/snapshots.py",
    ("G154", "check_snapshot", "not check_crc(data, pos, header.size)", NEVER, "a snapshot whose checksum is wrong is loaded"),
    ("G155", "check_snapshot", "not isinstance(last, SnapshotFooter)", NEVER, "half a snapshot is loaded"),
)

# -- the controller ---------------------------------------------------------------------------------------------------

_room(
    "controller/cluster_control.py",
    ("G156", "_check_registration", "request.cluster_id != cluster_id", NEVER, "a broker of another cluster may register"),
    (
        "G157",
        "_check_registration",
        "sessions.is_live(existing.broker_id, existing.broker_epoch, now)",
        NEVER,
        "a second process registers under the id of a broker that lives",
    ),
    (
        "G158",
        "_next_of_fenced",
        "request.want_fence or disks_failed or not caught_up",
        "request.want_fence or disks_failed",
        "a broker is unfenced before it has read the metadata",
    ),
)
_room(
    "controller/replication_control.py",
    (
        "G159",
        "check_broker_epoch",
        "broker.broker_epoch != broker_epoch",
        NEVER,
        "requests of an earlier process of a broker are taken",
    ),
    (
        "G160",
        "_stale",
        "item.leader_epoch < partition.leader_epoch",
        NEVER,
        "an ISR proposal of an older leader epoch is accepted",
    ),
    ("G161", "_stale", "broker_id != partition.leader", NEVER, "any broker may propose an ISR"),
    (
        "G162",
        "_stale",
        "item.partition_epoch < partition.partition_epoch",
        NEVER,
        "an ISR proposal on top of an older partition epoch is accepted",
    ),
    ("G163", "_malformed", "partition.leader not in proposed", NEVER, "a leader may propose an ISR without itself"),
    (
        "G164",
        "_malformed",
        "not proposed or len(set(proposed)) != len(proposed) or not set(proposed) <= set(partition.replicas)",
        NEVER,
        "an ISR may be empty, or name brokers that hold no replica",
    ),
    (
        "G165",
        "_ineligible",
        "broker is None or not broker.is_active",
        "broker is None",
        "a fenced broker may join the ISR (KIP-841)",
    ),
    (
        "G166",
        "_ineligible",
        "member.broker_epoch != broker.broker_epoch and not unseen_member",
        NEVER,
        "an earlier process of a broker may join the ISR (KIP-903)",
    ),
    (
        "G167",
        "_ineligible",
        "member.broker_id in partition.isr",
        ALWAYS,
        "a broker whose process the leader never saw may join the ISR",
    ),
    (
        "G168",
        "_accept",
        "record.leader not in (NO_LEADER_CHANGE, broker_id)",
        NEVER,
        "a leader that its own proposal deposes is told that it was accepted",
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
        "a leader that may not lead stays",
    ),
)
_room(
    "controller/controller.py",
    (
        "G171",
        "Controller.fence",
        "broker.broker_epoch != broker_epoch",
        NEVER,
        "a broker is fenced for the silence of its earlier process",
    ),
    (
        "G172",
        "Controller._write_batch",
        "appended != last_offset",
        NEVER,
        "a controller goes on after its log gave its records another offset",
    ),
)
_room(
    "controller/producer_id_control.py",
    (
        "G173",
        "_check_not_over",
        "request.work_epoch < known.work_epoch",
        NEVER,
        "a work epoch of a named producer that is over may begin again",
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
        "a metadata record changes another registration than it names",
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
        "self.state is not _SENDING and not self._recovered()",
        NEVER,
        "a producer sends new batches while one before them has to be sent again",
    ),
    (
        "G177",
        "PartitionQueue.take",
        "self.in_flight_max if self.first_batch_acknowledged else 1",
        "self.in_flight_max",
        "a producer sends five batches before the broker knows it",
    ),
    (
        "G178",
        "PartitionQueue.take",
        "self.next_index >= end",
        NEVER,
        "a producer has more batches under way than a broker remembers",
    ),
    (
        "G179",
        "PartitionQueue._recovered",
        "self._expects_responses()",
        NEVER,
        "a producer numbers its batches again while one of them is under way",
    ),
    (
        "G180",
        "PartitionQueue.needs_producer_id",
        "not self._expects_responses()",
        ALWAYS,
        "a producer takes a new id while a batch of the old one is under way",
    ),
    (
        "G181",
        "PartitionQueue.on_failed",
        "self.in_flight[0] is batch",
        ALWAYS,
        "a producer takes a later batch for lost before the earlier ones are known",
    ),
    ("G182", "PartitionQueue.may_split", "not batch.in_doubt", ALWAYS, "a batch that may be in the log is split"),
    (
        "G183",
        "PartitionQueue.set_topic_id",
        "topic_id != self.topic_id",
        NEVER,
        "a producer takes a recreated topic for the old one",
    ),
)
_room(
    "client/producer/sender.py",
    (
        "G184",
        "Sender._on_answer",
        "batch.attempts == number and not batch.done",
        ALWAYS,
        "a late answer to an earlier attempt counts",
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
        "a batch is sent to a broker that does not lead any more",
    ),
    (
        "G187",
        "Sender._on_cluster",
        "self._options.idempotent",
        NEVER,
        "a producer waits for the answer of a leader that was deposed",
    ),
)
_room(
    "client/consumer/fetcher.py",
    (
        "G188",
        "Fetcher._on_partition",
        "state is None or wanted is None or wanted.fetch_offset != state.fetch_offset",
        "state is None or wanted is None",
        "a consumer takes an answer to an earlier position",
    ),
    (
        "G189",
        "Fetcher._on_partition",
        "wanted.current_leader_epoch != state.leader_epoch",
        NEVER,
        "a consumer takes an answer of an older leader epoch",
    ),
)
_room(
    "client/consumer/offset_fetcher.py",
    (
        "G190",
        "OffsetFetcher._on_end_offset",
        "0 <= state.fetch_offset <= answer.end_offset",
        ALWAYS,
        "a consumer goes on at a position that the new leader's log does not have",
    ),
    (
        "G191",
        "OffsetFetcher._look_up",
        "state.reset != timestamp or answer is None",
        "answer is None",
        "an answer to an earlier reset moves the position",
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
    (
        "G193",
        "PartitionState.on_fetched",
        "header.next_offset <= self.fetch_offset",
        NEVER,
        "a consumer hands out batches from before its position",
    ),
)
_room(
    "client/cluster/metadata.py",
    (
        "G194",
        "MetadataCache._update_partitions",
        "known is not None and new.leader_epoch < known.leader_epoch",
        NEVER,
        "a client goes back to the leader of an older epoch",
    ),
    (
        "G195",
        "MetadataCache.update_leader",
        "leader_epoch <= known.leader_epoch",
        NEVER,
        "a client takes a leader hint of an older epoch",
    ),
)
_room(
    "client/consumer/fetch_session.py",
    ("G196", "FetchSession.on_response", "error_code", NEVER, "a consumer goes on with a fetch session that the broker refused"),
)
