"""The metrics of a broker, at any moment of its life. Values that do not exist yet (before its start) are omitted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandline.broker.fetch.fetch_handler import Fetch
from strandline.broker.metrics import BrokerMetrics, TopicMetrics
from strandline.broker.produce.produce_handler import DelayedProduce
from strandline.observe import reading
from strandline.observe.authorization import authorization
from strandline.observe.groups import group_lag, groups
from strandline.observe.quotas import broker_quotas
from strandline.observe.reading import Reading
from strandline.observe.transactions import transactions

if TYPE_CHECKING:
    from strandline.broker.process.server import BrokerServer

NOT_RUNNING, STARTING, RECOVERY, RUNNING, PENDING_CONTROLLED_SHUTDOWN, SHUTTING_DOWN = 0, 1, 2, 3, 6, 7
"""Kafka's numbers for the states of a broker, in the metric `BrokerState`."""
LATE_TRANSACTION_MS = 5 * 60_000
"""How much longer than the longest timeout a transaction may be open before it counts as late."""
_CLIENT = ("Replica",)
_TRAFFIC = (
    ("bytesin", "bytes_in"),
    ("messagesin", "messages_in"),
    ("bytesout", "bytes_out"),
    ("replicationbytesin", "replication_bytes_in"),
    ("replicationbytesout", "replication_bytes_out"),
    ("totalproducerequests", "produces"),
    ("failedproducerequests", "failed_produces"),
    ("totalfetchrequests", "fetches"),
    ("failedfetchrequests", "failed_fetches"),
)


def node(server: BrokerServer) -> Iterator[Reading]:
    yield Reading("strandline_uptime_seconds", server.stopwatch() - server.created_at)
    yield Reading("kafka_server_kafkaserver_brokerstate", broker_state(server))
    yield Reading("strandline_broker_fenced", not server.lifecycle.ready.is_set())
    yield from reading.requests(server.request_metrics)
    yield from reading.connections(server.servers)


def broker_state(server: BrokerServer) -> int:
    if server.is_stopping:
        return PENDING_CONTROLLED_SHUTDOWN if server.lifecycle.core.wants_shutdown else SHUTTING_DOWN
    if not server.has_logs:
        return STARTING
    if not server.log_manager_tasks.recovered:
        return RECOVERY
    return RUNNING if server.lifecycle.registered.is_set() else STARTING


def metadata(server: BrokerServer) -> Iterator[Reading]:
    follower = server.metadata
    prefix = "kafka_server_broker_metadata_metrics_"
    yield Reading(prefix + "last_applied_record_offset", follower.image.offset)
    yield Reading(prefix + "metadata_apply_error_count", follower.listener_errors)
    yield Reading("strandline_metadata_lag", follower.lag)
    yield Reading("strandline_metadata_level", follower.image.feature_level)
    yield Reading("strandline_raft_leader_changes_total", follower.controller_changes)
    prefix = "kafka_server_raft_metrics_"
    yield Reading(prefix + "current_epoch", follower.epoch)
    yield Reading(prefix + "current_leader", -1 if follower.controller is None else follower.controller[0].id)
    yield Reading(prefix + "current_state", 1, ("observer",))
    yield Reading(prefix + "high_watermark", follower.high_watermark)
    yield Reading(prefix + "number_of_voters", len(server.config.voters))


def replication(server: BrokerServer) -> Iterator[Reading]:
    if not server.has_logs:
        return
    replicas, metrics = server.replicas, server.replicas.metrics
    prefix = "kafka_server_replicamanager_"
    yield Reading(prefix + "partitioncount", len(replicas.partitions))
    yield Reading(prefix + "offlinereplicacount", replicas.offline_replicas)
    yield Reading(prefix + "isrshrinks_total", metrics.isr_shrinks)
    yield Reading(prefix + "isrexpands_total", metrics.isr_expands)
    yield Reading(prefix + "failedisrupdates_total", metrics.refused_isr_proposals)
    yield Reading("strandline_became_leader_total", metrics.became_leader)
    yield Reading("strandline_became_follower_total", metrics.became_follower)
    restarts = {
        "out_of_range": metrics.restarted_out_of_range,
        "removed_tombstones": metrics.restarted_for_tombstones,
        "removed_values": metrics.restarted_for_values,
    }
    for cause, count in restarts.items():
        yield Reading("strandline_log_restarts_total", count, (cause,))
    yield Reading("strandline_metadata_apply_seconds", metrics.metadata_apply)
    yield Reading("strandline_leader_takeover_seconds", metrics.leader_takeover)
    yield from _fetchers(server)


def _fetchers(server: BrokerServer) -> Iterator[Reading]:
    fetchers, largest = server.fetchers, 0
    for name, partition, lag in fetchers.lags():
        largest = max(largest, lag)
        yield Reading("kafka_server_fetcherlagmetrics_consumerlag", lag, (name, partition.topic, str(partition.key[1])))
    yield Reading("kafka_server_replicafetchermanager_maxlag", largest, _CLIENT)
    yield Reading("kafka_server_replicafetchermanager_failedpartitionscount", fetchers.given_up, _CLIENT)
    yield Reading("strandline_fetchers", fetchers.connected, ("connected",))
    yield Reading("strandline_fetchers", len(fetchers) - fetchers.connected, ("disconnected",))


class _Throttled:
    """The partitions of this broker that reassignments throttle in one direction, and the largest of their rates."""

    def __init__(self) -> None:
        self.partitions = self.rate = 0

    def count(self, rate: int) -> None:
        self.partitions += rate > 0
        self.rate = max(self.rate, rate)


def partitions(server: BrokerServer) -> Iterator[Reading]:
    """One pass over the replicas of this broker: a few series per partition, and the totals."""
    if not server.has_logs:
        return
    leaders = reassigning = under_replicated = under_min_isr = at_min_isr = producers = kept_by_future = late = 0
    late_since_ms = server.wall_clock_ms() - server.config.transactions.transaction_max_timeout_ms - LATE_TRANSACTION_MS
    out, into = _Throttled(), _Throttled()
    prefix = "kafka_cluster_partition_"
    for partition in server.replicas.partitions.values():
        log, labels = partition.log, (partition.topic, str(partition.key[1]))
        producers += len(log.producers)
        kept_by_future += log.future_timestamp_ms >= 0
        yield from reading.log_offsets(*labels, log.log_start_offset, log.log_end_offset, log.size_bytes)
        leader_state = partition.leader_state
        if leader_state is None:
            into.count(partition.throttle_rate)
            continue
        out.count(leader_state.throttle_rate if any(map(leader_state.is_throttled, leader_state.throttled)) else 0)
        in_sync = len(leader_state.isr.isr)
        is_under_replicated = in_sync < leader_state.replication_factor
        reassigning += leader_state.is_reassigning
        leaders += 1
        late += log.producers.has_transaction_since(late_since_ms)
        under_replicated += is_under_replicated
        under_min_isr += in_sync < leader_state.min_isr
        at_min_isr += in_sync == leader_state.min_isr
        yield Reading(prefix + "insyncreplicascount", in_sync, labels)
        yield Reading(prefix + "replicascount", leader_state.replication_factor, labels)
        yield Reading(prefix + "laststableoffsetlag", log.high_watermark - log.last_stable_offset, labels)
        yield Reading(prefix + "underreplicated", is_under_replicated, labels)
        yield Reading(prefix + "underminisr", in_sync < leader_state.min_isr, labels)
        yield Reading(prefix + "atminisr", in_sync == leader_state.min_isr, labels)
    prefix = "kafka_server_replicamanager_"
    yield Reading(prefix + "leadercount", leaders)
    yield Reading(prefix + "reassigningpartitions", reassigning)
    yield Reading(prefix + "underreplicatedpartitions", under_replicated)
    yield Reading(prefix + "underminisrpartitioncount", under_min_isr)
    yield Reading(prefix + "atminisrpartitioncount", at_min_isr)
    yield Reading(prefix + "produceridcount", producers)
    yield Reading(prefix + "partitionswithlatetransactionscount", late)
    for direction, throttled in (("out", out), ("in", into)):
        yield Reading("strandline_throttled_partitions", throttled.partitions, (direction,))
        yield Reading("strandline_replication_throttle_rate_bytes", throttled.rate, (direction,))
    yield Reading("strandline_logs_kept_by_future_timestamp", kept_by_future)


def compaction(server: BrokerServer) -> Iterator[Reading]:
    log_dirs = server.log_dirs
    if log_dirs is None:
        return
    cleaner, metrics = server.log_cleaner, server.log_cleaner.metrics
    uncleanable = cleaner.uncleanable_now()
    prefix = "kafka_log_logcleanermanager_"
    yield Reading(prefix + "max_dirty_percent", metrics.max_dirty_percent)
    yield Reading(prefix + "time_since_last_run_ms", cleaner.since_last_look_ms)
    for log_dir in log_dirs.online:
        here = [each for each in uncleanable if each.log_dir == log_dir.path]
        yield Reading(prefix + "uncleanable_partitions_count", len(here), (log_dir.path,))
        yield Reading(prefix + "uncleanable_bytes", sum(each.cleanable_bytes for each in here), (log_dir.path,))
    prefix = "kafka_log_logcleaner_"
    yield Reading(prefix + "max_clean_time_secs", metrics.max_clean_time_s)
    yield Reading(prefix + "max_buffer_utilization_percent", metrics.max_buffer_utilization_percent)
    yield Reading(prefix + "cleaner_recopy_percent", metrics.recopy_percent)
    yield Reading(prefix + "max_compaction_delay_secs", metrics.max_compaction_delay_ms // 1000)
    yield Reading(prefix + "deadthreadcount", cleaner.dead_threads)
    yield Reading("strandline_log_cleaner_rounds_total", metrics.cleanings)
    yield Reading("strandline_log_cleaner_removed_bytes_total", metrics.bytes_removed)


def traffic(server: BrokerServer) -> Iterator[Reading]:
    if server.has_logs:
        metrics = server.replicas.metrics
        total = metrics.total()
        yield from _of_topic(total, ())
        prefix = "kafka_server_brokertopicmetrics_"
        yield Reading(prefix + "reassignmentbytesin_total", metrics.reassignment_bytes_in)
        yield Reading(prefix + "reassignmentbytesout_total", metrics.reassignment_bytes_out)
        yield Reading("strandline_preferred_replica_nominations_total", total.nominations)
        yield Reading("strandline_bytesout_as_follower_total", total.follower_bytes_out)
        for topic, of_topic in metrics.topics.items():
            yield from _of_topic(of_topic, (topic,))


def _of_topic(metrics: TopicMetrics, labels: tuple[str, ...]) -> Iterator[Reading]:
    for name, attribute in _TRAFFIC:
        yield Reading(f"kafka_server_brokertopicmetrics_{name}_total", getattr(metrics, attribute), labels)


def waiting(server: BrokerServer) -> Iterator[Reading]:
    """The purgatory and the fetch sessions."""
    if not server.has_logs:
        return
    replicas, metrics = server.replicas, server.replicas.metrics
    parked = {"Produce": 0, "Fetch": 0}
    for operation in replicas.purgatory.take_all():
        parked["Produce"] += isinstance(operation, DelayedProduce)
        parked["Fetch"] += isinstance(operation, Fetch)
    for kind, number in parked.items():
        yield Reading("kafka_server_delayedoperationpurgatory_purgatorysize", number, (kind,))
    yield from _expired(metrics)
    prefix = "kafka_server_fetchsessioncache_"
    yield Reading(prefix + "numincrementalfetchsessions", len(replicas.sessions))
    yield Reading(prefix + "numincrementalfetchpartitionscached", replicas.sessions.partition_count)
    yield Reading(prefix + "incrementalfetchsessionevictions_total", replicas.sessions.evictions)


def _expired(metrics: BrokerMetrics) -> Iterator[Reading]:
    yield Reading("kafka_server_delayedproducemetrics_expires_total", metrics.expired_produces)
    yield Reading("kafka_server_delayedfetchmetrics_expires_total", metrics.expired_consumer_fetches, ("consumer",))
    yield Reading("kafka_server_delayedfetchmetrics_expires_total", metrics.expired_follower_fetches, ("follower",))


def disk(server: BrokerServer) -> Iterator[Reading]:
    log_dirs = server.log_dirs
    if log_dirs is None:
        return
    offline = log_dirs.offline
    yield Reading("kafka_log_logmanager_offlinelogdirectorycount", len(offline))
    for path in server.config.data_dirs:
        yield Reading("kafka_log_logmanager_logdirectoryoffline", path in offline, (path,))
    moves = server.replicas.moves
    for log_dir in log_dirs.dirs:
        yield from reading.disk(log_dir.path, sum(log.size_bytes for log in list(log_dir.logs.values())))
        count, left_bytes = moves.to(log_dir)
        yield Reading("strandline_log_dir_moves", count, (log_dir.path,))
        yield Reading("strandline_log_dir_moves_left_bytes", left_bytes, (log_dir.path,))
    yield Reading("strandline_log_dir_moves_completed_total", moves.moved)
    yield Reading("strandline_log_dir_moved_bytes_total", moves.copied_bytes)
    yield from reading.logs(log_dirs.metrics)
    yield from reading.losses(
        corrupt_range=log_dirs.metrics.corrupt_ranges,
        offline_log_dir=len(offline),
        truncated_below_hw=server.replicas.metrics.truncated_below_hw,
        elected_with_missing_records=server.replicas.metrics.elected_with_missing_records,
    )


def broker_readings() -> tuple[reading.Readings, ...]:
    return (
        node,
        metadata,
        replication,
        partitions,
        compaction,
        traffic,
        groups,
        group_lag,
        transactions,
        waiting,
        authorization,
        broker_quotas,
        disk,
    )
