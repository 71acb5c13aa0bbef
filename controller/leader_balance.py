"""Decides when leaders return to their preferred replicas, which are the first of each assignment.

When a broker fails or stops, its leaders move to other brokers, and stay there when it returns. The active controller moves them
back, so that the load is spread as the placement of the replicas intends:

    the broker is unfenced, and is in the ISR of every partition that it hosts    -> it has *returned*
    it has stayed so for leader.imbalance.check.interval.seconds                  -> its leaders move back, all together

So each return of a broker causes one series of elections, and none while the broker still catches up. If some of its partitions
do not get it back into their ISR, its other leaders move after `PATIENCE` intervals. While any broker is in controlled shutdown,
no leader moves back: the two would work against each other.

Only partitions whose preferred replica does not lead are looked at (`PartitionIndex`), not all partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from strandline.controller.cluster_control import BrokerControlState, current_state
from strandline.controller.decision import Decision
from strandline.controller.metadata.image import BrokerRegistration, MetadataImage
from strandline.controller.metadata.records import AnyRecord
from strandline.controller.partition_change import change_partition
from strandline.controller.partition_index import PartitionIndex
from strandline.controller.replication_control import change_rules

ELECTIONS_MAX = 1000
"""The most elections of one decision, as in Kafka. Other decisions come in between."""
LATE_S = 300.0
"""A broker that has waited for its leaders for this time, and for three intervals, is reported to the operator."""
PATIENCE = 30
"""After this many intervals, an unfenced broker gets the leaders that it may have, although it is not in all its ISRs yet."""


@dataclass(slots=True)
class _Return:
    """The return of a broker that does not lead all partitions whose preferred replica it is."""

    broker_epoch: int
    since: float
    """When this process of the broker was first seen unfenced and out of balance."""
    active_since: float
    """When leaders last moved back to it; `since` before the first time."""
    returned_at: float | None = None
    """Since when it is in the ISR of every partition that it hosts; None if it is not."""


class LateReturn(NamedTuple):
    """A broker that has waited for its leaders for a long time, and why they do not move."""

    broker_id: int
    partitions: int
    """How many partitions prefer it as their leader and are not led by it."""
    waits_s: float
    reason: str


class LeaderBalance:
    """The brokers that wait for their leaders, and since when. It is state of the active controller alone: a new active
    controller waits for a whole interval again."""

    def __init__(self, *, interval_s: float, percentage: int) -> None:
        self._interval_s = interval_s
        self._percentage = percentage
        self._returns: dict[int, _Return] = {}

    def due(self, image: MetadataImage, index: PartitionIndex, now: float) -> list[int]:
        """Look at the brokers that are out of balance, and return those whose leaders move back now."""
        out_of_balance = index.brokers_out_of_balance()
        for broker_id in [known for known in self._returns if known not in out_of_balance]:
            del self._returns[broker_id]
        ready = [broker_id for broker_id in out_of_balance if self._is_ready(image, index, broker_id, now)]
        return [] if leaving_brokers(image) else ready

    def on_moved(self, broker_id: int, now: float) -> None:
        """The leaders of this broker that could move have moved."""
        waiting = self._returns.get(broker_id)
        if waiting is not None:
            waiting.active_since = now

    def late(self, image: MetadataImage, index: PartitionIndex, now: float) -> list[LateReturn]:
        """The brokers that have waited for their leaders for `LATE_S`."""
        late_s = max(LATE_S, 3 * self._interval_s)
        return [
            LateReturn(broker_id, len(index.imbalanced(broker_id)), now - each.since, _why_late(image, index, broker_id))
            for broker_id, each in self._returns.items()
            if now - each.since >= late_s and index.imbalance_percentage(broker_id) > self._percentage
        ]

    def _is_ready(self, image: MetadataImage, index: PartitionIndex, broker_id: int, now: float) -> bool:
        broker = image.brokers.get(broker_id)
        if broker is None or not broker.is_active:
            self._returns.pop(broker_id, None)
            return False
        waiting = self._return_of(broker, now)
        if not index.is_in_all_isrs(broker_id):
            waiting.returned_at = None
            is_over = now - waiting.active_since >= PATIENCE * self._interval_s
        else:
            waiting.returned_at = now if waiting.returned_at is None else waiting.returned_at
            is_over = now - waiting.returned_at >= self._interval_s
        return is_over and index.imbalance_percentage(broker_id) > self._percentage

    def _return_of(self, broker: BrokerRegistration, now: float) -> _Return:
        known = self._returns.get(broker.broker_id)
        if known is None or known.broker_epoch != broker.broker_epoch:
            known = self._returns[broker.broker_id] = _Return(broker.broker_epoch, now, now)
        return known


def _why_late(image: MetadataImage, index: PartitionIndex, broker_id: int) -> str:
    leaving = leaving_brokers(image)
    if leaving:
        return f"broker {leaving[0]} is in controlled shutdown"
    missing = index.out_of_isr(broker_id)
    if missing:
        return f"it is not in the ISR of {missing} of its {index.hosted_by(broker_id)} partitions"
    return "it has left an ISR, or was restarted, again and again"


def leaving_brokers(image: MetadataImage) -> list[int]:
    """The brokers in controlled shutdown. While there is one, no leader moves back."""
    return [b.broker_id for b in image.brokers.values() if current_state(b) is BrokerControlState.CONTROLLED_SHUTDOWN]


def move_leaders_back(image: MetadataImage, index: PartitionIndex, broker_id: int) -> Decision[int]:
    """Elect the broker for partitions whose preferred replica it is, at most `ELECTIONS_MAX`. The reply is the number of
    elections. A partition whose ISR lacks the broker is left out, and so is every one if the broker may not lead."""
    rules = change_rules(image)
    records: list[AnyRecord] = []
    for key in index.imbalanced(broker_id):
        partition = image.partition(key)
        assert partition is not None, "the index holds only partitions of the image"
        record = change_partition(key, partition, partition.isr, rules, preferred=True)
        if record is not None and record.leader == broker_id:
            records.append(record)
            if len(records) == ELECTIONS_MAX:
                break
    return Decision(len(records), records, may_split=True, cause="leaders_balanced")
