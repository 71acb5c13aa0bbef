"""The metrics of a controller, at any moment of its life. Values that do not exist yet (before its start) are omitted.

The counts over all partitions are recomputed only if the metadata changed since the last scrape: images are immutable, so
an idle cluster of any size costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandline.controller.cluster_control import BrokerControlState, current_state
from strandline.controller.metadata.image import NO_LEADER, MetadataImage
from strandline.controller.metadata.records import METADATA_TOPIC
from strandline.controller.raft.quorum import Quorum
from strandline.controller.raft.roles import Leader, ReplicaProgress
from strandline.observe import reading
from strandline.observe.authorization import authorization
from strandline.observe.quotas import mutation_quota
from strandline.observe.reading import Reading

if TYPE_CHECKING:
    from strandline.controller.server import ControllerServer

_PREFIX = "kafka_controller_kafkacontroller_"
_REGISTRATION_STATES = {
    BrokerControlState.FENCED: 10,
    BrokerControlState.CONTROLLED_SHUTDOWN: 20,
    BrokerControlState.UNFENCED: 30,
}
"""Kafka's numbers for the registration states of a broker."""


class PartitionCounts:
    """Counts over all partitions in the metadata."""

    def __init__(self) -> None:
        self._counted: object = None
        """The topics image that was counted last, compared by identity."""
        self._offline = self._imbalanced = self._electable = self._stuck = 0

    def __call__(self, server: ControllerServer) -> Iterator[Reading]:
        if not server.has_quorum:
            return
        image = server.controller.image
        if self._counted is not image.topics_by_id:
            self._count(image)
        yield Reading(_PREFIX + "globaltopiccount", len(image.topics_by_id))
        yield Reading(_PREFIX + "globalpartitioncount", image.partition_count)
        yield Reading(_PREFIX + "offlinepartitionscount", self._offline)
        yield Reading(_PREFIX + "preferredreplicaimbalancecount", self._imbalanced)
        yield Reading("strandline_electable_replicas", self._electable)
        yield Reading("strandline_partitions_without_electable_replica", self._stuck)

    def _count(self, image: MetadataImage) -> None:
        self._offline = self._imbalanced = self._electable = self._stuck = 0
        for topic in image.topics_by_id.values():
            for partition in topic.partitions.values():
                self._offline += partition.leader == NO_LEADER
                self._imbalanced += partition.leader != partition.replicas[0]
                electable = len(partition.isr) + len(partition.elr)
                self._electable += electable
                self._stuck += not electable
        self._counted = image.topics_by_id


def node(server: ControllerServer) -> Iterator[Reading]:
    yield Reading("strandline_uptime_seconds", server.stopwatch() - server.created_at)
    yield from reading.requests(server.request_metrics)
    yield from reading.connections(server.servers)


def brokers(server: ControllerServer) -> Iterator[Reading]:
    if not server.has_quorum:
        return
    states = {broker.broker_id: current_state(broker) for broker in server.controller.image.brokers.values()}
    for broker_id, state in states.items():
        yield Reading(_PREFIX + "brokerregistrationstate", _REGISTRATION_STATES[state], (str(broker_id),))
    found = list(states.values())
    fenced = found.count(BrokerControlState.FENCED)
    yield Reading(_PREFIX + "fencedbrokercount", fenced)
    yield Reading(_PREFIX + "activebrokercount", len(found) - fenced)
    yield Reading(_PREFIX + "controlledshutdownbrokercount", found.count(BrokerControlState.CONTROLLED_SHUTDOWN))
    active = server.controller.active
    if active is not None:
        now, timeout_s = server.controller.now(), active.sessions.timeout_s
        for session in active.sessions.all():
            silent_s = max(0.0, now - (session.deadline - timeout_s))
            yield Reading(_PREFIX + "timesincelastheartbeatreceivedms", silent_s * 1000, (str(session.broker_id),))


def decisions(server: ControllerServer) -> Iterator[Reading]:
    if not server.has_quorum:
        return
    controller, metrics = server.controller, server.controller.metrics
    yield Reading(_PREFIX + "activecontrollercount", controller.active is not None)
    yield Reading(_PREFIX + "newactivecontrollerscount", metrics.new_active_controllers)
    yield Reading(_PREFIX + "lastappliedrecordoffset", controller.image.offset)
    yield Reading(_PREFIX + "lastcommittedrecordoffset", controller.committed_offset)
    yield Reading(_PREFIX + "timedoutbrokerheartbeatcount", metrics.expired_sessions)
    yield Reading("kafka_controller_controllerstats_uncleanleaderelections_total", metrics.unclean_elections)
    yield Reading("strandline_unclean_elections_with_loss_total", metrics.reported_losses)
    from_elr = "kafka_controller_controllerstats_electionfromeligibleleaderreplicas_total"
    yield Reading(from_elr, metrics.elections_from_elr)
    yield Reading("strandline_struck_replicas_total", metrics.struck_replicas)
    yield Reading("strandline_elections_total", metrics.elections)
    for cause, elections in metrics.elections_by_cause.items():
        yield Reading("strandline_elections_by_cause_total", elections, (cause,))
    yield Reading("strandline_fenced_brokers_total", metrics.fenced_brokers)
    yield Reading("strandline_failover_seconds", metrics.failover)


def quorum(server: ControllerServer) -> Iterator[Reading]:
    if not server.has_quorum:
        return
    found = server.quorum
    state, metrics, prefix = found.node.state, found.metrics, "kafka_server_raft_metrics_"
    yield Reading(prefix + "current_epoch", state.epoch)
    yield Reading(prefix + "current_leader", state.leader_id)
    yield Reading(prefix + "current_vote", state.election.voted_id)
    yield Reading(prefix + "current_state", 1, (type(state.role).__name__.lower(),))
    yield Reading(prefix + "high_watermark", state.high_watermark)
    yield Reading(prefix + "log_end_offset", state.log.end_offset)
    yield Reading(prefix + "log_end_epoch", state.log.last_epoch)
    yield Reading(prefix + "number_of_voters", len(state.voter_ids))
    yield from _replicas(found, server.controller.image)
    yield Reading("strandline_metadata_level", server.controller.committed.feature_level)
    yield Reading("strandline_raft_commit_lag", state.log.end_offset - state.high_watermark)
    yield Reading("strandline_raft_leader_changes_total", metrics.leader_changes)
    yield Reading("strandline_raft_candidacies_total", state.candidacies)
    yield Reading("strandline_raft_commit_seconds", metrics.commit)
    yield Reading("strandline_raft_leaderless_seconds", metrics.leaderless)


def _replicas(quorum: Quorum, image: MetadataImage) -> Iterator[Reading]:
    """The lag of the other voters and of the observers, which only the leader knows. Any process that fetches counts as an
    observer, so only registered brokers get a series."""
    role = quorum.node.state.role
    if isinstance(role, Leader):
        yield Reading("kafka_server_raft_metrics_number_of_observers", len(role.observers))
        brokers = {broker_id: known for broker_id, known in role.observers.items() if broker_id in image.brokers}
        progress: dict[int, ReplicaProgress] = {**role.voters, **brokers}
        for replica_id, replica in progress.items():
            lag = quorum.node.state.log.end_offset - max(0, replica.end_offset)
            yield Reading("strandline_raft_replica_lag", lag, (str(replica_id),))


def disk(server: ControllerServer) -> Iterator[Reading]:
    if not server.has_quorum:
        return
    log = server.quorum.log
    yield from reading.log_offsets(METADATA_TOPIC, "0", log.start_offset, log.end_offset, log.size_bytes)
    yield from reading.disk(server.config.data_dir, log.size_bytes)
    yield from reading.logs(log.metrics)
    yield from reading.losses(
        unclean_election=server.controller.metrics.unclean_elections, corrupt_range=log.metrics.corrupt_ranges
    )


def controller_readings() -> tuple[reading.Readings, ...]:
    return node, brokers, PartitionCounts(), decisions, quorum, authorization, mutation_quota, disk
