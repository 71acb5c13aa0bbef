"""Decides which records may be handled now, and in which order. Pure: times are passed in, on the loop's clock.

A *lane* is a queue of records of one partition. `concurrency` determines which records share a lane:

    "partition"   one lane per partition: its records are handled one after the other
    "key"         one lane per key of a partition: those of one key, one after the other. Records without a key share a lane
    a number      one lane per partition, without order: its records may be handled at the same time

A lane with order has one call at a time. If its record fails and is to be handled again, the lane *rests* until then, and other
lanes go on. In a lane without order only that record waits.

A record of a retry topic has a time before which it must not be handled. Until then it is in no lane, so a record whose time is
earlier does not wait for it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from strandline.client.consumer.partition_state import PartitionState
from strandline.client.consumer.records import AnyRecord
from strandline.client.consumer.run.taken import TakenRecords

LaneKey = bytes | None
LaneOf = Callable[[AnyRecord], LaneKey]


class Delivery:
    """One record that was taken, until it is finished."""

    __slots__ = ("attempt", "is_alone", "offset", "record")

    def __init__(self, record: AnyRecord, offset: int, attempt: int = 1) -> None:
        """`record`: as the handler gets it, with key and value in bytes. `offset`: where it was read. It differs from the
        record's own offset if it was read from a retry topic."""
        self.record = record
        self.offset = offset
        self.attempt = attempt
        """The number of the attempt that is running or is to come; from 1."""
        self.is_alone = False
        """The batch with the record has failed, so the record is handled in a batch of its own."""


class Work:
    """The records that were taken from one partition. If the partition is assigned again, its records are in a new Work."""

    __slots__ = ("blocked", "handling", "is_blocked", "is_closed", "is_full", "lanes", "state", "taken")

    def __init__(self, state: PartitionState, epoch: int) -> None:
        self.state = state
        self.taken = TakenRecords(epoch)
        self.lanes: dict[LaneKey, Lane] = {}
        """The lanes that have something waiting, resting or running."""
        self.handling = 0
        """The number of records in running calls."""
        self.is_closed = False
        """No further call begins: the partition is being revoked, or was lost or sought, or `run` ends. The waiting records were
        dropped."""
        self.is_blocked = False
        """No call begins for now: the partition is held, or a call from an earlier assignment still runs."""
        self.is_full = False
        """The poller has passed over the partition, because too many of its records are unfinished or wait."""
        self.blocked: list[Lane] = []
        """Lanes that would be ready if the work were not blocked."""

    @property
    def waiting(self) -> int:
        """The number of records that were taken and are not being handled."""
        return len(self.taken) - self.handling


class Lane:
    """Records of one partition that are handled in order, or of which any number may be handled at the same time."""

    __slots__ = ("calls", "is_ready", "is_resting", "key", "waiting", "work")

    def __init__(self, work: Work, key: LaneKey) -> None:
        self.work = work
        self.key = key
        self.waiting: deque[Delivery] = deque()
        self.calls = 0
        """The number of calls that handle its records; at most one in a lane with order."""
        self.is_ready = False
        """The lane is in the queue of ready lanes, or among the blocked lanes of its work."""
        self.is_resting = False
        """The first record has failed and is to be handled again later; until then, no call of this lane begins."""


class Call:
    """One call of the handler, with the records that it gets: one, or a batch of one lane in order."""

    __slots__ = ("deliveries", "is_abandoned", "lane", "started_at")

    def __init__(self, lane: Lane, deliveries: list[Delivery]) -> None:
        self.lane = lane
        self.deliveries = deliveries
        self.started_at = 0.0
        """When the handler was called, on the loop's clock."""
        self.is_abandoned = False
        """The result of the call is ignored."""

    @property
    def state(self) -> PartitionState:
        return self.lane.work.state


class Schedule:
    """The lanes of all partitions. It returns the next call (`next_call`), and takes its result (`finish`, `retry_at`, ...)."""

    def __init__(self, lane_of: LaneOf, *, is_ordered: bool, batch_size: int = 1) -> None:
        """`batch_size`: the most records that one call gets."""
        self._lane_of = lane_of
        self._is_ordered = is_ordered
        self._batch_size = batch_size
        self._ready: deque[Lane] = deque()
        """Lanes from which a call can be made, in the order in which they became ready."""
        self._timers: list[tuple[float, int, Work, Lane | Delivery]] = []
        """A heap of times at which a lane has rested, or a record enters its lane. The numbers keep the order of equal times."""
        self._timer_count = 0

    def __bool__(self) -> bool:
        """Whether a lane may be ready."""
        return bool(self._ready)

    @property
    def ready_lanes(self) -> int:
        """An upper bound for the number of ready lanes: some may turn out to be closed or blocked."""
        return len(self._ready)

    @property
    def delayed(self) -> int:
        """The number of records that wait for their time, or are the first of a lane that rests."""
        return sum(not work.is_closed for _, _, work, _ in self._timers)

    # -- records come -------------------------------------------------------------------------------------------------

    def add(self, work: Work, deliveries: Iterable[Delivery]) -> None:
        """These records may be handled, in this order."""
        lanes, lane_of = work.lanes, self._lane_of
        for delivery in deliveries:
            key = lane_of(delivery.record)
            lane = lanes.get(key)
            if lane is None:
                lane = lanes[key] = Lane(work, key)
            lane.waiting.append(delivery)
            self._offer(lane)

    def add_at(self, work: Work, delivery: Delivery, at: float) -> None:
        """This record may be handled at that time."""
        self._push(at, work, delivery)

    def _push(self, at: float, work: Work, what: Lane | Delivery) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (at, self._timer_count, work, what))

    # -- calls --------------------------------------------------------------------------------------------------------

    def _offer(self, lane: Lane) -> None:
        """Put the lane into the queue of ready lanes, if a call can be made from it."""
        is_free = not lane.is_resting and not (self._is_ordered and lane.calls)
        if lane.waiting and is_free and not lane.is_ready:
            lane.is_ready = True
            self._ready.append(lane)

    def next_call(self) -> Call | None:
        """The next call; None if there is none now."""
        while self._ready:
            lane = self._ready.popleft()
            if lane.work.is_closed:
                continue
            if lane.work.is_blocked:
                lane.work.blocked.append(lane)
                continue
            lane.is_ready = False
            call = Call(lane, self._batch(lane.waiting))
            lane.calls += 1
            lane.work.handling += len(call.deliveries)
            self._offer(lane)
            return call
        return None

    def _batch(self, waiting: deque[Delivery]) -> list[Delivery]:
        first = waiting.popleft()
        batch = [first]
        while waiting and len(batch) < self._batch_size and not first.is_alone and not waiting[0].is_alone:
            batch.append(waiting.popleft())
        return batch

    def finish(self, call: Call) -> None:
        """The records of the call are finished."""
        for delivery in call.deliveries:
            call.lane.work.taken.finish(delivery.offset)
        self._end(call)

    def put_back(self, call: Call) -> None:
        """The records of the call are to be handled again now, before those behind them. If its work is closed, they are
        dropped."""
        if not call.lane.work.is_closed:
            call.lane.waiting.extendleft(reversed(call.deliveries))
        self._end(call)

    def divide(self, call: Call) -> None:
        """The batch has failed: its records are to be handled again now, one by one, to find the one that fails."""
        for delivery in call.deliveries:
            delivery.is_alone = True
        self.put_back(call)

    def retry_at(self, call: Call, at: float) -> None:
        """The only record of the call is to be handled again at this time, with the next attempt."""
        (delivery,), lane = call.deliveries, call.lane
        delivery.attempt += 1
        if self._is_ordered:
            lane.is_resting = True
            self._push(at, lane.work, lane)
            self.put_back(call)
        else:
            self._push(at, lane.work, delivery)
            self._end(call)

    def _end(self, call: Call) -> None:
        lane = call.lane
        lane.calls -= 1
        lane.work.handling -= len(call.deliveries)
        if lane.work.is_closed:
            return
        self._offer(lane)
        if not (lane.waiting or lane.calls or lane.is_resting):
            del lane.work.lanes[lane.key]  # A later record with this key gets a new lane.

    # -- times --------------------------------------------------------------------------------------------------------

    def next_time(self) -> float | None:
        """When `on_time` must be called next; None if no lane rests and no record is delayed."""
        return self._timers[0][0] if self._timers else None

    def on_time(self, now: float) -> None:
        """End the rest of lanes whose time has come, and put records whose time has come into their lanes."""
        while self._timers and self._timers[0][0] <= now:
            _, _, work, what = heapq.heappop(self._timers)
            if work.is_closed:
                continue
            if isinstance(what, Delivery):
                self.add(work, [what])
            else:
                what.is_resting = False
                self._offer(what)

    # -- partitions ---------------------------------------------------------------------------------------------------

    @staticmethod
    def block(work: Work) -> None:
        """Begin no call of this work until `unblock`."""
        work.is_blocked = True

    def unblock(self, work: Work) -> None:
        """Let calls of this work begin again."""
        work.is_blocked = False
        self._ready.extend(work.blocked)
        work.blocked = []

    @staticmethod
    def close(work: Work) -> int:
        """Begin no further call of this work, and drop the records that wait. Returns the number of these records."""
        if work.is_closed:
            return 0
        work.is_closed = True
        work.blocked = []
        dropped, work.lanes = work.waiting, {}
        return dropped


def lane_of_partition(record: AnyRecord) -> LaneKey:
    """All records of a partition share a lane."""
    return None


def lane_of_key(record: AnyRecord) -> LaneKey:
    """All records of a key share a lane."""
    key: LaneKey = record.key
    return key


def records_of(deliveries: Sequence[Delivery]) -> list[AnyRecord]:
    """The records of these deliveries, in order."""
    return [delivery.record for delivery in deliveries]
