"""Selects the replica that a consumer should read from (KIP-392): one in its rack, so that the records do not leave the rack.

Only the leader selects, for consumers that name a rack. Its candidates are the members of the ISR whose logs hold the position of
the fetch, as far as the leader knows; so a consumer is never sent to a replica that lags behind without a bound. The broker's key
`replica.selector.class` names the selector; without it, all consumers read from leaders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from strandline.broker.partition.leader_state import LeaderState
from strandline.broker.partition.replica import Replica

RackOf = Callable[[int], str | None]
"""Broker id -> its rack; None if it has none or is not registered."""

ReplicaSelector = Callable[[LeaderState, int, str, RackOf], int | None]
"""(The leader's state, the position of the fetch, the consumer's rack, the racks of the brokers) -> the id of the broker to read
from; None: the leader."""


def rack_aware(leader_state: LeaderState, fetch_offset: int, rack_id: str, rack_of: RackOf) -> int | None:
    """Select the most caught-up candidate in the consumer's rack; None if the leader is in that rack, or no candidate is."""
    if rack_of(leader_state.context.broker_id) == rack_id:
        return None
    near = (replica for replica in leader_state.readable_replicas(fetch_offset) if rack_of(replica.broker_id) == rack_id)
    return _most_caught_up(near)


def _most_caught_up(replicas: Iterable[Replica]) -> int | None:
    best = max(replicas, key=_progress, default=None)
    return None if best is None else best.broker_id


def _progress(replica: Replica) -> tuple[int, float, int]:
    """The longest log first, then the most recently caught up; then the lowest id, so that all consumers find the same one."""
    return replica.log_end_offset, replica.last_caught_up_time, -replica.broker_id


RACK_AWARE = "rack-aware"
KAFKA_RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
SELECTORS: dict[str | None, ReplicaSelector | None] = {None: None, RACK_AWARE: rack_aware, KAFKA_RACK_AWARE: rack_aware}
"""Selectors, by the value of `replica.selector.class`."""
