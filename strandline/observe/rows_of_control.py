"""The catalogue: metrics of the controllers and the metadata quorum."""

from __future__ import annotations

from strandline.observe.row import BOTH, CONTROLLER, Kind, Row, Section


def _controller(name: str, kind: Kind, help: str, bean: str, *, labels: tuple[str, ...] = ()) -> Row:
    mbean = f"kafka.controller:type=KafkaController,name={bean}" + "".join(f",{label}=*" for label in labels)
    return Row(f"kafka_controller_kafkacontroller_{name}", kind, help, CONTROLLER, labels, mbean)


CONTROL = Section(
    "The controllers",
    "Each controller prints the state of the cluster in its copy of the metadata; the active one's is the newest. Sum only "
    "`activecontrollercount` over the controllers; use the maximum of the others.",
    (
        _controller("activecontrollercount", "gauge", "1 on the active controller, 0 on the others.", "ActiveControllerCount"),
        _controller(
            "newactivecontrollerscount",
            "gauge",
            "Number of times that this controller learned of a new active controller, itself included.",
            "NewActiveControllersCount",
        ),
        _controller("activebrokercount", "gauge", "Registered brokers that are not fenced.", "ActiveBrokerCount"),
        _controller("fencedbrokercount", "gauge", "Registered brokers that are fenced.", "FencedBrokerCount"),
        _controller("controlledshutdownbrokercount", "gauge", "Brokers in controlled shutdown.", "ControlledShutdownBrokerCount"),
        _controller("globaltopiccount", "gauge", "Topics.", "GlobalTopicCount"),
        _controller("globalpartitioncount", "gauge", "Partitions.", "GlobalPartitionCount"),
        _controller("offlinepartitionscount", "gauge", "Partitions without a leader.", "OfflinePartitionsCount"),
        _controller(
            "preferredreplicaimbalancecount",
            "gauge",
            "Partitions whose leader is not the preferred replica.",
            "PreferredReplicaImbalanceCount",
        ),
        _controller(
            "lastappliedrecordoffset", "gauge", "The last offset of the metadata log in the image.", "LastAppliedRecordOffset"
        ),
        _controller(
            "lastcommittedrecordoffset", "gauge", "The last offset that is known to be committed.", "LastCommittedRecordOffset"
        ),
        _controller(
            "timedoutbrokerheartbeatcount",
            "gauge",
            "Broker sessions that timed out while this controller was active.",
            "TimedOutBrokerHeartbeatCount",
        ),
        _controller(
            "timesincelastheartbeatreceivedms",
            "gauge",
            "Time since the last heartbeat of a live broker; only on the active controller.",
            "TimeSinceLastHeartbeatReceivedMs",
            labels=("broker",),
        ),
        _controller(
            "brokerregistrationstate",
            "gauge",
            "10: fenced, 20: in controlled shutdown, 30: active.",
            "BrokerRegistrationState",
            labels=("broker",),
        ),
        Row(
            "kafka_controller_controllerstats_uncleanleaderelections_total",
            "counter",
            "Leaders elected from outside the ISR and the ELR: acknowledged records can be lost. `topic describe` has a report.",
            CONTROLLER,
            (),
            "kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec",
        ),
        Row(
            "strandline_unclean_elections_with_loss_total",
            "counter",
            "Unclean elections whose report names a range of records that may be lost.",
            CONTROLLER,
        ),
        Row(
            "kafka_controller_controllerstats_electionfromeligibleleaderreplicas_total",
            "counter",
            "Leaders elected from the eligible leader replicas, because no replica was in sync: nothing is lost (KIP-966).",
            CONTROLLER,
            (),
            "kafka.controller:type=ControllerStats,name=ElectionFromEligibleLeaderReplicasPerSec",
        ),
        Row(
            "strandline_struck_replicas_total",
            "counter",
            "Replicas that may not lead until they have caught up, because their broker may have lost records.",
            CONTROLLER,
        ),
        Row(
            "strandline_electable_replicas",
            "gauge",
            "Replicas that may be elected without a loss: the in-sync and the eligible leader replicas of all partitions.",
            CONTROLLER,
        ),
        Row(
            "strandline_partitions_without_electable_replica",
            "gauge",
            "Partitions that have no leader and no replica that may be elected without a loss: each waits for an operator.",
            CONTROLLER,
        ),
        Row("strandline_elections_total", "counter", "Changes of a partition's leader that this controller decided.", CONTROLLER),
        Row(
            "strandline_elections_by_cause_total",
            "counter",
            "Changes of a partition's leader that this controller decided, by the `cause` that it logs (logs.md); "
            "`leaders_balanced`: it moved the leader back to the preferred replica without a request.",
            CONTROLLER,
            ("cause",),
        ),
        Row(
            "strandline_fenced_brokers_total",
            "counter",
            "Brokers that this controller fenced because their process was gone or their session timed out.",
            CONTROLLER,
        ),
        Row(
            "strandline_failover_seconds",
            "histogram",
            "Time from a broker's broken connection (or the end of its session) on the active controller to the commit of "
            "new leaders for all partitions that it led.",
            CONTROLLER,
        ),
    ),
)


def _raft(name: str, help: str, attribute: str, roles: tuple[str, ...] = BOTH, labels: tuple[str, ...] = ()) -> Row:
    mbean = f"kafka.server:type=raft-metrics {attribute}"
    return Row(f"kafka_server_raft_metrics_{name}", "gauge", help, roles, labels, mbean)


QUORUM = Section(
    "The metadata quorum",
    "Brokers follow the quorum's log as observers.",
    (
        _raft("current_epoch", "The quorum's epoch.", "current-epoch"),
        _raft("current_leader", "The leader's node id; -1 if unknown.", "current-leader"),
        _raft("current_vote", "The candidate that this voter voted for in the epoch; -1 if none.", "current-vote", CONTROLLER),
        _raft("current_state", "1 for the node's present state.", "current-state", BOTH, ("state",)),
        _raft("high_watermark", "The offset below which all records are committed.", "high-watermark"),
        _raft("log_end_offset", "The end offset of the node's copy of the log.", "log-end-offset", CONTROLLER),
        _raft("log_end_epoch", "The epoch of the last entry of the node's copy.", "log-end-epoch", CONTROLLER),
        _raft("number_of_voters", "Voters.", "number-of-voters"),
        _raft("number_of_observers", "Observers of the quorum; only on the leader.", "number-of-observers", CONTROLLER),
        Row(
            "strandline_metadata_level",
            "gauge",
            "The level of the metadata (metadata.version) as the node knows it; all nodes have the same one after an upgrade.",
            BOTH,
        ),
        Row("strandline_raft_commit_lag", "gauge", "Records of the node's copy that are not known to be committed.", CONTROLLER),
        Row(
            "strandline_raft_replica_lag",
            "gauge",
            "Records that another voter or a registered broker lacks; only on the leader.",
            CONTROLLER,
            ("replica",),
        ),
        Row("strandline_raft_leader_changes_total", "counter", "Number of times that this node learned of a new leader.", BOTH),
        Row("strandline_raft_candidacies_total", "counter", "Elections in which this node was a candidate.", CONTROLLER),
        Row("strandline_raft_commit_seconds", "histogram", "Time from an append on the leader to its commit.", CONTROLLER),
        Row("strandline_raft_leaderless_seconds", "histogram", "Time without a known leader, per occurrence.", CONTROLLER),
    ),
)
