"""The catalogue, of what the controllers decide and agree on."""

from __future__ import annotations

from strandline.observe.row import BOTH, CONTROLLER, Kind, Row, Section


def _controller(name: str, kind: Kind, help: str, bean: str, *, labels: tuple[str, ...] = ()) -> Row:
    mbean = f"kafka.controller:type=KafkaController,name={bean}" + "".join(f",{label}=*" for label in labels)
    return Row(f"kafka_controller_kafkacontroller_{name}", kind, help, CONTROLLER, labels, mbean)


CONTROL = Section(
    "The controllers",
    "What the cluster is like, as each controller's copy of the metadata has it; the active one's is the newest. Sums over "
    "controllers make sense for `activecontrollercount` alone, take the maximum of the others.",
    (
        _controller("activecontrollercount", "gauge", "1 on the active controller, 0 on the others.", "ActiveControllerCount"),
        _controller(
            "newactivecontrollerscount", "gauge", "How often another controller became active.", "NewActiveControllersCount"
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
            "Partitions that another than the preferred replica leads.",
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
            "Broker sessions that this controller, being active, saw time out.",
            "TimedOutBrokerHeartbeatCount",
        ),
        _controller(
            "timesincelastheartbeatreceivedms",
            "gauge",
            "Since a live broker's last heartbeat; the active controller alone knows.",
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
            "Leaders elected from outside the ISR: acknowledged records may be lost.",
            CONTROLLER,
            (),
            "kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec",
        ),
        Row("strandline_elections_total", "counter", "Partitions that this controller gave another leader.", CONTROLLER),
        Row("strandline_fenced_brokers_total", "counter", "Brokers that this controller fenced for their silence.", CONTROLLER),
        Row(
            "strandline_failover_seconds",
            "histogram",
            "From the moment at which the active controller saw a broker's connection break (or its session end) to the "
            "commit of new leaders for all that it led.",
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
        _raft("current_leader", "The leader's node id; -1 when none is known.", "current-leader"),
        _raft("current_vote", "Whom this voter voted for in the epoch; -1 for nobody.", "current-vote", CONTROLLER),
        _raft("current_state", "1 for the state that the node is in.", "current-state", BOTH, ("state",)),
        _raft("high_watermark", "Everything below is committed.", "high-watermark"),
        _raft("log_end_offset", "Where the node's copy of the log ends.", "log-end-offset", CONTROLLER),
        _raft("log_end_epoch", "The epoch of the last entry of the node's copy.", "log-end-epoch", CONTROLLER),
        _raft("number_of_voters", "Voters.", "number-of-voters"),
        _raft(
            "number_of_observers", "Observers that the leader knows; the leader alone does.", "number-of-observers", CONTROLLER
        ),
        Row("strandline_raft_commit_lag", "gauge", "Entries of the node's copy that are not known to be committed.", CONTROLLER),
        Row(
            "strandline_raft_replica_lag",
            "gauge",
            "Entries that another voter or a registered broker lacks, as the leader knows it; the leader alone does.",
            CONTROLLER,
            ("replica",),
        ),
        Row("strandline_raft_leader_changes_total", "counter", "How often this node heard of a new leader.", BOTH),
        Row("strandline_raft_candidacies_total", "counter", "Elections that this node stood for.", CONTROLLER),
        Row("strandline_raft_commit_seconds", "histogram", "From an append on the leader to its commit.", CONTROLLER),
        Row("strandline_raft_leaderless_seconds", "histogram", "How long this voter knew no leader, each time.", CONTROLLER),
    ),
)
