"""The shell of the group coordinator. It adds to `Coordinator`: deadlines, changes of the topics that groups read, and replies
that wait for other members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random

from strandline.broker.coordination.coordinator import ActiveShard, Coordinator, Host
from strandline.broker.coordination.loader import ShardLoader
from strandline.broker.coordination.replies import Asker, as_coordinator, send
from strandline.broker.groups.census import GroupCensus
from strandline.broker.groups.change_log_lines import ChangeLogLines
from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.group_config_manager import GroupConfigManager
from strandline.broker.groups.loader import GroupLoader
from strandline.broker.groups.metrics import GroupMetrics
from strandline.broker.groups.records.codec import encode_record
from strandline.broker.groups.records.types import GroupRecord
from strandline.broker.groups.result import InTransaction, RequestContext, Result
from strandline.broker.groups.shard import GroupShard
from strandline.broker.partition.partition import Partition
from strandline.controller.metadata.image import MetadataDelta, TopicImage
from strandline.controller.metadata.internal_topics import OFFSETS_TOPIC
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.log_limits import LineLimits
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.transactions import WritableTxnMarker
from strandline.protocol.records.batch import HEADER_SIZE, NO_PRODUCER_ID
from strandline.protocol.records.builder import OVERHEAD_MAX, BatchBuilder
from strandline.protocol.records.marker import EndTransactionMarker
from strandline.storage.log.log import Log

logger = get_logger(__name__)

ActiveGroups = ActiveShard[GroupShard]


class GroupCoordinator(Coordinator[GroupShard]):
    """The groups of one broker."""

    topic_name = OFFSETS_TOPIC
    loader_class = GroupLoader
    subject = "groups"

    def __init__(self, config: GroupConfig, host: Host, random: Random) -> None:
        super().__init__(host, config.offsets_commit_timeout_ms)
        self.config = config
        self.settings = GroupConfigManager(config)
        self.metrics = GroupMetrics()
        self.on_offsets: Callable[[], None] = lambda: None
        """Called when offsets were loaded or committed."""
        self._random = random
        self.census = GroupCensus(lambda: (active.shard for active in self.loaded_shards()), host.call_later)
        self._limits = LineLimits()
        self._lines = ChangeLogLines()

    # -- leadership ---------------------------------------------------------------------------------------------------

    def apply_delta(self, delta: MetadataDelta) -> None:
        """Apply changed metadata, also to the groups' own configuration, and notify all shards of changed topics."""
        self.settings.apply_delta(delta, self.host.now())
        super().apply_delta(delta)
        if self.is_stopped:
            return
        changed = {delta.image.topics_by_id[topic_id].name for topic_id in delta.changed_topics}
        changed.update(removed.name for removed in delta.removed_topics)
        changed.discard(OFFSETS_TOPIC)
        if changed:
            for active in list(self.shards.values()):
                self._on_image(active, changed, delta.removed_topics)

    def _new_shard(self) -> GroupShard:
        return GroupShard(self.config, self._random, self.host.directory.image, self.settings)

    def _on_loaded(self, active: ActiveGroups, loader: ShardLoader[GroupShard], took_s: float) -> None:
        shard, now = active.shard, self.host.now()
        self.metrics.on_load(took_s, now)
        if loader.records or loader.skipped:
            logger.info(
                "groups.loaded",
                **active.partition.fields,
                records=loader.records,
                skipped=loader.skipped,
                groups=len(shard.groups),
                took_ms=round(took_s * 1000),
            )
        # The metadata may have changed during the load.
        shard.use_image(self.host.directory.image)
        self._apply_all(active, shard.on_loaded(now, self.host.wall_clock_ms()))
        if len(shard.offsets):
            self.on_offsets()

    def _on_load_failed(self, active: ActiveGroups, error: Exception) -> None:
        logger.error("groups.load_failed", **active.partition.fields, reason=str(error))

    def _on_unloaded(self, active: ActiveGroups) -> None:
        if len(active.shard.groups):
            logger.info("groups.unloaded", **active.partition.fields, groups=len(active.shard.groups))
        error = BrokerError(ErrorCode.NOT_COORDINATOR, "the leadership of the group's partition has ended")
        send([(asker, error) for asker in active.shard.take_waiting()])

    def recent_loads_s(self) -> list[float]:
        """The seconds that each load took which ended in about the last half minute."""
        return self.metrics.recent_loads_s(self.host.now())

    # -- requests -----------------------------------------------------------------------------------------------------

    def context(self, asker: Asker, client_id: str, client_host: str) -> RequestContext:
        return RequestContext(asker, client_id, client_host, self.host.now(), self.host.wall_clock_ms())

    def decide(self, group_id: str, decide: Callable[[GroupShard], Result]) -> None:
        """Let the shard of a group decide a request, and apply the decision. Raises the `BrokerError` of the request."""
        active = self.shard_of(group_id)
        result = decide(active.shard)
        error = self._apply(active, result)
        if error is not None and result.on_append is None and not result.replies:
            raise error

    def decide_deletion(self, group_id: str, asker: Asker, decide: Callable[[GroupShard], Result]) -> None:
        """Let the shard of a group decide a request to delete something. Raises a `BrokerError` if there is no such shard; its
        own error is sent like any reply, when all that the shard knows is committed.

        The shard knows an earlier deletion before it is committed. A client whose first request has timed out takes
        GROUP_ID_NOT_FOUND for its success, but a later coordinator may not have that deletion."""
        active = self.shard_of(group_id)
        try:
            result = decide(active.shard)
        except BrokerError as e:
            result = Result(replies=[(asker, e)])
        self._apply(active, result)

    def end_transaction(self, number: int, marker: WritableTxnMarker, now_ms: int) -> tuple[Partition, int]:
        """Append a transaction marker to a partition of `__consumer_offsets`, and commit the producer's pending offsets there, or
        drop them. Returns the partition, and the high watermark at which the marker is committed. Raises the errors of a
        partition's leader, because the transaction coordinator handles those."""
        try:
            active = self.shard_at(number)
        except BrokerError as e:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, e.message or e.code.name) from None
        leader_state, ended = active.leader_state, EndTransactionMarker(marker.committed, marker.coordinator_epoch)
        producer, version = (marker.producer_id, marker.producer_epoch), marker.transaction_version
        info = self._append_by(active, lambda leader: leader.append_marker(ended, *producer, now_ms, version))
        active.shard.offsets.on_high_watermark(leader_state.log.high_watermark)
        if active.shard.replay_marker(marker.producer_id, marker.committed, info.last_offset):
            self.on_offsets()
        return active.partition, active.known_end

    def static_member(self, group_id: str, instance_id: str) -> str | None:
        """The id of the group's member with this instance id; None if there is none, or if this broker does not coordinate the
        group."""
        with suppress(BrokerError):
            group = self.shard_of(group_id).shard.groups.get(group_id)
            return None if group is None else group.static_members.get(instance_id)
        return None

    def on_member_connection_lost(self, group_id: str, member_id: str) -> None:
        """Shorten the session of a member whose peer closed the connection of its last heartbeat."""
        with suppress(BrokerError):
            active = self.shard_of(group_id)
            active.shard.consumer.on_connection_lost(group_id, member_id, self.host.now())
            self._arm(active)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def _apply_all(self, active: ActiveGroups, results: Iterable[Result]) -> None:
        for result in results:
            if not active.is_current:
                return
            self._apply(active, result)
        self._arm(active)

    def _apply(self, active: ActiveGroups, result: Result) -> BrokerError | None:
        """Apply a decision: append its records, and send its replies. Returns the error of the append."""
        error = self._append(active, result) if result.records else None
        if error is not None:
            send([(asker, error) for asker, _ in result.replies])
            if result.on_append is not None:
                send(result.on_append(error))
        else:
            if result.records or result.removed:
                self._lines.log(result, active.shard.groups, self.host.now())
            replies = result.replies if result.on_append is None else [*result.replies, *result.on_append(None)]
            if result.records:
                replies = [*replies, *active.shard.take_woken()]
            if replies:
                self.when_committed(active, replies)
        self._arm(active)
        return error

    def _append(self, active: ActiveGroups, result: Result) -> BrokerError | None:
        """Append the records, and let the shard replay them. Returns the error of the append, after which nothing has changed."""
        log_, records, began = active.leader_state.log, result.records, self.host.stopwatch()
        now_ms, transaction = self.host.wall_clock_ms(), result.transaction
        try:
            builder = BatchBuilder() if transaction is None else _builder_in(transaction, log_)
            batches = encode_batches(records, now_ms, log_.config.max_message_bytes, builder)
            info = self._append_batches(active, batches, now_ms, is_transactional=transaction is not None)
        except BrokerError as e:
            self._on_append_failed(active, e)
            return as_coordinator(e)
        has_commits = self.metrics.on_append(records, result.removal, active.shard.groups)
        active.shard.offsets.on_high_watermark(log_.high_watermark)
        producer_id = NO_PRODUCER_ID if transaction is None else transaction.producer_id
        for index, record in enumerate(records):
            active.shard.replay(record, info.first_offset + index, producer_id)
        self.metrics.append.observe(self.host.stopwatch() - began)
        if has_commits:
            self.on_offsets()
        return None

    def _on_append_failed(self, active: ActiveGroups, error: BrokerError) -> None:
        if error.code == ErrorCode.INVALID_PRODUCER_EPOCH:
            return  # The producer is fenced and gets this error; the append itself has no problem to log.
        suppressed = self._limits.admit("append", self.host.now())
        if suppressed is not None:
            logger.warning("groups.append_failed", **active.partition.fields, reason=str(error), **suppressed.fields)

    def _on_image(self, active: ActiveGroups, changed: set[str], removed: list[TopicImage]) -> None:
        if active.loader is None and active.failure is None:
            image = self.host.directory.image
            self._apply_all(active, active.shard.on_image(image, changed, removed, self.host.now(), self.host.wall_clock_ms()))

    # -- deadlines ----------------------------------------------------------------------------------------------------

    def _arm(self, active: ActiveGroups) -> None:
        due = active.shard.deadlines.next_due()
        if due is not None:
            self._set_timer(active, due, lambda: self._on_due(active))

    def _on_due(self, active: ActiveGroups) -> None:
        self._apply_all(active, active.shard.expire(self.host.now(), self.host.wall_clock_ms()))


def _builder_in(transaction: InTransaction, log_: Log) -> BatchBuilder:
    """A builder whose sequences continue those of the log, because the producer does not number its offset commits."""
    return BatchBuilder(*transaction, log_.producers.next_sequence(*transaction), is_transactional=True)


def encode_batches(records: list[GroupRecord], now_ms: int, bytes_max: int, builder: BatchBuilder) -> bytearray:
    """The records as one batch, or as several if one would be larger than the topic allows. `builder`: an empty one."""
    batches, size = bytearray(), HEADER_SIZE
    for record in records:
        key, value = encode_record(record)
        needed = OVERHEAD_MAX + len(key) + (0 if value is None else len(value))
        if len(builder) and size + needed > bytes_max:
            batches += builder.build()
            builder, size = builder.next_builder(), HEADER_SIZE
        builder.append(key, value, (), now_ms)
        size += needed
    batches += builder.build()
    return batches
