"""The metrics of a broker's group coordinator; none before its logs are open."""

from __future__ import annotations

from collections.abc import Iterator
from math import nan
from typing import TYPE_CHECKING

from strandline.broker.groups.coordinator import GroupCoordinator
from strandline.broker.groups.result import Removal
from strandline.broker.groups.state import CLASSIC, CONSUMER
from strandline.observe.reading import Reading

if TYPE_CHECKING:
    from strandline.broker.process.server import BrokerServer

_COORDINATOR = "kafka_server_group_coordinator_metrics_"
_MANAGER = "kafka_coordinator_group_groupmetadatamanager_"
_CLASSIC_STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")
_CONSUMER_STATES = ("Empty", "Assigning", "Reconciling", "Stable", "Dead")


def groups(server: BrokerServer) -> Iterator[Reading]:
    opened = server.opened
    if opened is not None:
        coordinator = opened.groups
        yield from _partitions(coordinator)
        yield from _groups(coordinator)
        yield from _changes(coordinator)


def _partitions(coordinator: GroupCoordinator) -> Iterator[Reading]:
    for state, number in coordinator.partitions_by_state().items():
        yield Reading(_COORDINATOR + "num_partitions", number, (state,))
    loads_ms = [1000 * seconds for seconds in coordinator.recent_loads_s()]
    yield Reading(_COORDINATOR + "partition_load_time_max", max(loads_ms, default=nan))
    yield Reading(_COORDINATOR + "partition_load_time_avg", sum(loads_ms) / len(loads_ms) if loads_ms else nan)
    yield Reading("strandline_group_load_seconds", coordinator.metrics.load)


def _groups(coordinator: GroupCoordinator) -> Iterator[Reading]:
    counts = coordinator.census.counts()
    for protocol in (CLASSIC, CONSUMER):
        number = sum(count for (group_type, _), count in counts.items() if group_type == protocol)
        yield Reading(_COORDINATOR + "group_count", number, (protocol,))
        if protocol == CLASSIC:
            yield Reading(_MANAGER + "numgroups", number)
    for state in _CLASSIC_STATES:
        yield Reading(f"{_MANAGER}numgroups{state.lower()}", counts[CLASSIC, state])
    for state in _CONSUMER_STATES:
        yield Reading(_COORDINATOR + "consumer_group_count", counts[CONSUMER, state], (state,))
    yield Reading(_MANAGER + "numoffsets", sum(len(active.shard.offsets) for active in coordinator.loaded_shards()))


def _changes(coordinator: GroupCoordinator) -> Iterator[Reading]:
    metrics = coordinator.metrics
    yield Reading(_COORDINATOR + "offset_commit_count", metrics.offset_commits)
    yield Reading(_COORDINATOR + "offset_expiration_count", metrics.offset_removals[Removal.EXPIRATION])
    yield Reading(_COORDINATOR + "offset_deletion_count", metrics.offset_removals[Removal.DELETION])
    yield Reading(_COORDINATOR + "group_completed_rebalance_count", metrics.rebalances[CLASSIC])
    yield Reading(_COORDINATOR + "consumer_group_rebalance_count", metrics.rebalances[CONSUMER])
    yield Reading("strandline_group_append_seconds", metrics.append)
    yield Reading("strandline_group_commit_wait_seconds", coordinator.commit_wait)


def group_lag(server: BrokerServer) -> Iterator[Reading]:
    opened = server.opened
    if opened is None:
        return
    monitor = opened.group_lag
    for lag in monitor.current():
        position = lag.position
        labels = (position.group_id, position.topic, str(position.partition))
        yield Reading("strandline_group_lag_records", lag.records, labels)
        if lag.seconds is not None:
            yield Reading("strandline_group_lag_seconds", lag.seconds, labels)
    yield Reading("strandline_group_lag_omitted", monitor.table.omitted)
    yield Reading("strandline_group_lag_unknown", monitor.table.unknown)
    age_s = monitor.age_s
    if age_s is not None:
        yield Reading("strandline_group_lag_age_seconds", age_s)
