"""The catalogue: metrics of the group coordinator, and of the lag of groups."""

from __future__ import annotations

from strandline.observe.row import BROKER, Kind, Row, Section

_BEAN = "kafka.server:type=group-coordinator-metrics"


def _coordinator(attribute: str, help: str, **labels: str) -> Row:
    """A metric of Kafka's bean. `labels`: label -> the pattern of its values in the bean's name."""
    name = f"kafka_server_group_coordinator_metrics_{attribute.replace('-', '_')}"
    properties = "".join(f",{label}={values}" for label, values in labels.items())
    return Row(name, "gauge", help, BROKER, tuple(labels), f"{_BEAN}{properties} {attribute}")


def _manager(bean: str, help: str) -> Row:
    name = f"kafka_coordinator_group_groupmetadatamanager_{bean.lower()}"
    return Row(name, "gauge", help, BROKER, (), f"kafka.coordinator.group:type=GroupMetadataManager,name={bean}")


def _own(name: str, kind: Kind, help: str, *labels: str) -> Row:
    return Row(f"strandline_group_{name}", kind, help, BROKER, labels)


_SERIES = ("group", "topic", "partition")

GROUPS = Section(
    "Groups",
    "A broker counts the groups that it coordinates; sum over the brokers for the cluster. Kafka prints its counters "
    "(`..._count`) as gauges without `_total`, and so they have that name here; they only increase, and `rate()` works. The "
    "exporter's example rules put the labels of these metrics into their names (`..._state_active_num_partitions`); the names "
    "here are those of the exporter without rules.",
    (
        _coordinator(
            "num-partitions",
            "Partitions of __consumer_offsets led here, by state: loading, active, or failed to load (their groups are not "
            "served).",
            state="*",
        ),
        _coordinator("partition-load-time-max", "The longest load of the last 30 seconds, in ms; NaN without one."),
        _coordinator("partition-load-time-avg", "The mean load of the last 30 seconds, in ms; NaN without one."),
        _own(
            "load_seconds",
            "histogram",
            "Time from the leadership of a partition of __consumer_offsets until its groups are served.",
        ),
        _coordinator("group-count", "Groups by the protocol of their members.", protocol="*"),
        _coordinator("consumer-group-count", "Groups of the newer protocol by their state.", state="*"),
        _manager("NumGroups", "Groups of the classic protocol, and ids that have committed offsets only."),
        _manager("NumGroupsPreparingRebalance", "Groups of the classic protocol that wait for their members to join."),
        _manager("NumGroupsCompletingRebalance", "Groups of the classic protocol that wait for the assignment of their leader."),
        _manager("NumGroupsStable", "Groups of the classic protocol with an assignment."),
        _manager(
            "NumGroupsDead",
            "Groups of the classic protocol that are being removed: always 0, because a removal is one step here.",
        ),
        _manager("NumGroupsEmpty", "Groups of the classic protocol without members."),
        _manager("NumOffsets", "Committed offsets: one for each group and partition."),
        _coordinator("offset-commit-count", "Offsets that were committed; one request may commit many."),
        _coordinator("offset-expiration-count", "Offsets that have expired."),
        _coordinator("offset-deletion-count", "Offsets that an operator has deleted, alone or with their group."),
        _coordinator("group-completed-rebalance-count", "Rebalances of classic groups that ended with an assignment."),
        _coordinator("consumer-group-rebalance-count", "Group epochs of groups of the newer protocol that began."),
        _own(
            "append_seconds", "histogram", "Time of one append to __consumer_offsets, and of applying its records to the groups."
        ),
        _own(
            "commit_wait_seconds",
            "histogram",
            "Time that a response waited until the records of __consumer_offsets that it depends on were committed.",
        ),
    ),
)

LAG = Section(
    "Lag of groups",
    "A broker measures the groups that it coordinates, each `group.lag.interval.ms`, and prints the largest lags, at most "
    "`group.lag.max.series` of them. If the leader of a partition does not answer, its last value stays for a minute, and is "
    "omitted then. Groups without committed offsets have no lag.",
    (
        _own(
            "lag_records",
            "gauge",
            "High watermark of the partition minus the offset that the group has committed; 0 if that is higher.",
            *_SERIES,
        ),
        _own(
            "lag_seconds",
            "gauge",
            "Age of the first batch that the group has not read, by its first timestamp; 0 without one. Omitted if the batch has "
            "no timestamp.",
            *_SERIES,
        ),
        _own(
            "lag_omitted",
            "gauge",
            "Lags that the last measurement has left out, because larger ones fill `group.lag.max.series`.",
        ),
        _own(
            "lag_unknown",
            "gauge",
            "Committed offsets that the last measurement could not compare, because the leader of the partition did not answer.",
        ),
        _own(
            "lag_age_seconds",
            "gauge",
            "Time since the last measurement ended; omitted while nothing is measured.",
        ),
    ),
)
