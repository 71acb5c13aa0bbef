"""A follower's fetcher core and the leader that it asks: a test holds requests and responses as long as it likes."""

from __future__ import annotations

from handled_request import HandledRequest
from replica_world import P, ReplicaWorld

from strandline.broker.partition.partition import FetchPosition
from strandline.broker.replication.fetcher import FetcherCore, FetcherSettings, Plan
from strandline.broker.replication.leader_range import LeaderRange
from strandline.protocol.apis import FETCH
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.data import EARLIEST_TIMESTAMP, FIRST_DIRTY_TIMESTAMP, LATEST_TIMESTAMP, FetchResponse
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.disk import DiskError


class Link:
    """A follower's fetcher and the leader it asks."""

    def __init__(
        self,
        world: ReplicaWorld,
        follower: int,
        leader: int,
        *keys: TopicIdPartition,
        partition_bytes_max: int = 1 << 20,
        response_bytes_max: int = 10 << 20,
    ) -> None:
        self.world = world
        self.follower, self.leader = world[follower], world[leader]
        self.disk_errors: list[DiskError] = []
        self.core = FetcherCore(
            broker_id=follower,
            broker_epoch=lambda: self.follower.manager.directory.broker_epoch,
            settings=FetcherSettings(partition_bytes_max=partition_bytes_max, response_bytes_max=response_bytes_max),
            on_disk_error=self.disk_errors.append,
        )
        for key in keys or (P,):
            self.core.add(self.follower[key])

    @property
    def now(self) -> float:
        return self.world.loop.now()

    def ask(self) -> tuple[Plan, HandledRequest] | None:
        """Send the next fetch; the leader's answer may be held."""
        plan = self.core.plan(self.now)
        return None if plan is None else (plan, self.put(plan))

    def put(self, plan: Plan) -> HandledRequest:
        request = HandledRequest(plan.request)
        self.leader.handlers[FETCH](request)  # type: ignore[arg-type]
        self.world.loop.end_turn()
        return request

    def deliver(self, plan: Plan, request: HandledRequest) -> list[TopicIdPartition]:
        answer = request.answer
        if isinstance(answer, ErrorCode):
            self.core.on_failure(plan, answer, self.now)
            return []
        records = [memoryview(bytearray(b"".join(parts))) for parts in request.records] or [memoryview(b"")] * len(
            answer.partitions
        )
        response = FetchResponse(answer.throttle_time_ms, answer.error_code, answer.session_id, answer.partitions, records)
        touched = self.core.on_response(plan, response, self.now)
        for key, position in self.core.take_out_of_range().items():
            self.core.on_leader_range(key, position, self.range_of(key, position), self.now)
        self.world.loop.end_turn()
        return touched

    def range_of(self, key: TopicIdPartition, position: FetchPosition) -> LeaderRange:
        answers = [
            self.leader.list_offsets(at, epoch=position.leader_epoch, key=key, replica_id=self.follower.id)
            for at in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, FIRST_DIRTY_TIMESTAMP)
        ]
        assert [answer.error_code for answer in answers] == [0, 0, 0]
        start, end, clean_below = (answer.offset for answer in answers)
        return LeaderRange(start, end, list(self.leader[key].log.producers.describe()), clean_below)

    def round(self) -> HandledRequest:
        """One round trip of a fetch. A fetch that the leader parks waits for its full `max_wait_ms`."""
        asked = self.ask()
        assert asked is not None, "nothing to fetch"
        plan, request = asked
        if not request.is_answered:
            self.world.loop.advance(plan.request.max_wait_ms / 1000 + 0.001)
        self.deliver(plan, request)
        return request

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.round()

    def settle(self) -> None:
        """Fetch until both logs and high watermarks stand still. Fails after 40 round trips."""
        for _ in range(20):
            before = (self.follower.leo, self.follower.hw, self.leader.hw)
            self.rounds(2)
            if (self.follower.leo, self.follower.hw, self.leader.hw) == before and self.follower.leo == self.leader.leo:
                return
        raise AssertionError("the follower does not get in step with the leader")
