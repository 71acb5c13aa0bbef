"""Places new replicas: striped over racks and brokers, like Kafka's StripedReplicaPlacer.

Three brokers in each of the racks A, B, C, and the start at A0, give:

    partition 0: A0 B0 C0        each partition starts one rack further, and takes each rack's next broker: leaders and
    partition 1: B1 C1 A1        replicas spread evenly, and two replicas share a rack only if there are more replicas
    partition 2: C2 A2 B2        than racks

Unfenced brokers are used first; the first replica, which becomes the leader, is always unfenced. The caller leaves out brokers
that get no replicas (`cluster_control.usable_brokers`). Without racks, all brokers are in one rack.

Known weakness, in Kafka as well: if each rack has as many brokers as there are racks, rack and broker advance in step, and until
the shuffle some brokers lead more partitions than others. Replicas are spread evenly all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

from strandline.controller.metadata.records import BrokerIds
from strandline.protocol.errors import BrokerError, ErrorCode


class UsableBroker(NamedTuple):
    """A broker that may get replicas. A fenced one gets them only after the others of its rack."""

    broker_id: int
    rack: str | None
    fenced: bool


class _BrokerList:
    """Returns each broker once per round; each round starts one broker further."""

    def __init__(self, brokers: Sequence[int], start: int) -> None:
        self.brokers = list(brokers)
        self.offset = start
        self.index = 0
        self.round = 0

    def next(self, round_: int) -> int | None:
        if not self.brokers:
            return None
        if self.round != round_:
            self.round = round_
            self.index = 0
            self.offset = (self.offset + 1) % len(self.brokers)
        if self.index >= len(self.brokers):
            return None
        broker = self.brokers[(self.index + self.offset) % len(self.brokers)]
        self.index += 1
        return broker


class _Rack:
    def __init__(self, unfenced: _BrokerList, fenced: _BrokerList) -> None:
        self.unfenced = unfenced
        self.fenced = fenced

    def next(self, round_: int) -> int | None:
        broker = self.unfenced.next(round_)
        return self.fenced.next(round_) if broker is None else broker


class ReplicaPlacer:
    """Places the partitions of one topic. Create a new placer for each topic."""

    def __init__(self, brokers: Iterable[UsableBroker], random: Random, existing: Sequence[BrokerIds] = ()) -> None:
        """`existing` are the replicas of the topic's partitions so far, in order; the stripes continue after them."""
        by_rack: dict[str, list[UsableBroker]] = {}
        self.broker_count = self.unfenced_count = 0
        for broker in sorted(brokers):
            by_rack.setdefault(broker.rack or "", []).append(broker)
            self.broker_count += 1
            self.unfenced_count += not broker.fenced
        self._random = random
        self._racks = [self._make_rack(by_rack[name], existing) for name in sorted(by_rack)]
        self._offset = self._first_rack([{b.broker_id for b in by_rack[name]} for name in sorted(by_rack)], existing)
        self._round = 0

    def _make_rack(self, brokers: list[UsableBroker], existing: Sequence[BrokerIds]) -> _Rack:
        unfenced = [b.broker_id for b in brokers if not b.fenced]
        fenced = [b.broker_id for b in brokers if b.fenced]
        ours = {b.broker_id for b in brokers}
        last = next((r for replicas in reversed(existing) for r in replicas if r in ours), None)
        start = (unfenced.index(last) + 1) % len(unfenced) if last in unfenced else self._start(unfenced)
        return _Rack(_BrokerList(unfenced, start), _BrokerList(fenced, self._start(fenced)))

    def _start(self, items: Sequence[object]) -> int:
        return self._random.randrange(len(items)) if items else 0

    def _first_rack(self, racks: list[set[int]], existing: Sequence[BrokerIds]) -> int:
        if existing:
            for index, members in enumerate(racks):
                if existing[-1][0] in members:
                    return (index + 1) % len(racks)
        return self._start(racks)

    def place(self, partitions: int, replication_factor: int) -> list[BrokerIds]:
        """The replicas of each new partition. Raises BrokerError INVALID_REPLICATION_FACTOR if there are too few brokers, or all
        are fenced."""
        self._check(replication_factor)
        return [self._place_one(replication_factor) for _ in range(partitions)]

    def _check(self, replication_factor: int) -> None:
        if replication_factor > self.broker_count:
            raise BrokerError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {replication_factor} needs more brokers: {self.broker_count} brokers are registered "
                "and neither shutting down nor drained nor cordoned",
            )
        if not self.unfenced_count:
            raise BrokerError(ErrorCode.INVALID_REPLICATION_FACTOR, "all brokers are fenced")

    def _place_one(self, replication_factor: int) -> BrokerIds:
        # The stripes repeat after as many partitions as there are unfenced brokers, so continue in another order.
        if self._round and self.unfenced_count > 1 and self._round % self.unfenced_count == 0:
            self._shuffle()
        count = len(self._racks)
        first = self._offset % count
        leader = self._racks[first].unfenced.next(self._round)
        while leader is None:
            first = (first + 1) % count
            leader = self._racks[first].unfenced.next(self._round)
        replicas = [leader]
        rack, skip = self._offset % count, first
        while len(replicas) < replication_factor:
            if rack == skip:
                skip = -1
            else:
                replica = self._racks[rack].next(self._round)
                if replica is not None:
                    replicas.append(replica)
            rack = (rack + 1) % count
        self._round += 1
        self._offset += 1
        return tuple(replicas)

    def _shuffle(self) -> None:
        self._random.shuffle(self._racks)
        for rack in self._racks:
            self._random.shuffle(rack.unfenced.brokers)
            self._random.shuffle(rack.fenced.brokers)
