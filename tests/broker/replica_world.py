"""The data side of some brokers in a test: real partitions on real logs (on a disk in memory), virtual time, held messages.

Nothing happens by itself. A test builds the metadata with real records, calls handlers with requests, ends event-loop iterations,
lets time pass, and decides when an AlterPartition answer arrives.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from handled_request import HandledRequest

from strandline.broker.partition.alter_partition import AlterPartitionItem
from strandline.broker.partition.partition import Partition
from strandline.broker.process.handlers import data_handlers
from strandline.broker.replica_manager import ReplicaConfig, ReplicaManager
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import (
    AnyRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from strandline.protocol.apis import FETCH, LIST_OFFSETS, PRODUCE
from strandline.protocol.doors import Doors
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.admin import RESOURCE_TOPIC
from strandline.protocol.messages.cluster import AlterPartitionPartitionResponse
from strandline.protocol.messages.data import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    ForgottenPartition,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
)
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.reader import iter_records
from strandline.storage.directory.claims import Claims
from strandline.storage.memory.memory_files import MemoryFiles

TOPIC = b"topic-id-number1"
P: TopicIdPartition = (TOPIC, 0)
NOW_MS = 1_700_000_000_000
LAG_S = 10.0


class _Timer:
    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due, self.callback, self.cancelled = due, callback, False

    def cancel(self) -> None:
        self.cancelled = True


class VirtualLoop:
    """An event loop in virtual time: the test ends its iterations and advances its timers."""

    def __init__(self) -> None:
        self.time = 1000.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._ready: list[Callable[[], None]] = []
        self._count = 0

    def now(self) -> float:
        return self.time

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._ready.append(callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(self.time + delay, callback)
        self._count += 1
        heapq.heappush(self._timers, (timer.due, self._count, timer))
        return timer

    def end_turn(self) -> None:
        """Run the callbacks of the end of this event-loop iteration, and those that they schedule."""
        while self._ready:
            ready, self._ready = self._ready, []
            for callback in ready:
                callback()

    def advance(self, seconds: float) -> None:
        self.end_turn()
        until = self.time + seconds
        while self._timers and self._timers[0][0] <= until:
            due, _, timer = heapq.heappop(self._timers)
            self.time = max(self.time, due)
            if not timer.cancelled:
                timer.callback()
                self.end_turn()
        self.time = until

    @property
    def armed(self) -> list[float]:
        return sorted(timer.due for _, _, timer in self._timers if not timer.cancelled)


class HeldSubmitter:
    """AlterPartition proposals, held until the test answers them."""

    def __init__(self) -> None:
        self.pending: dict[TopicIdPartition, AlterPartitionItem] = {}
        self.submitted: list[AlterPartitionItem] = []
        self.cancelled: list[AlterPartitionItem] = []
        self.is_busy = False
        """Whether an earlier proposal of the partition is still under way. If so, `submit` takes nothing."""

    def submit(self, item: AlterPartitionItem) -> bool:
        if self.is_busy or item.key in self.pending:
            return False
        self.pending[item.key] = item
        self.submitted.append(item)
        return True

    def cancel(self, key: TopicIdPartition) -> None:
        item = self.pending.pop(key, None)
        if item is not None:
            self.cancelled.append(item)

    def take(self, key: TopicIdPartition = P) -> AlterPartitionItem:
        """Take the proposal from the queue, as if it had been sent."""
        return self.pending.pop(key)


def commit(item: AlterPartitionItem, *, partition_epoch: int | None = None) -> None:
    """Deliver the controller's answer that the proposal is committed."""
    isr = [broker_id for broker_id, _ in item.isr]
    epoch = item.partition_epoch + 1 if partition_epoch is None else partition_epoch
    item.on_result(AlterPartitionPartitionResponse(item.topic_id, item.partition, 0, 1, item.leader_epoch, isr, 0, epoch), False)


def refuse(item: AlterPartitionItem, code: ErrorCode, *, is_doubtful: bool = False) -> None:
    item.on_result(AlterPartitionPartitionResponse(item.topic_id, item.partition, code), is_doubtful)


class RecordedFetchers:
    """The fetcher port: records which leader each partition is fetched from."""

    def __init__(self) -> None:
        self.following: dict[TopicIdPartition, int] = {}
        self.read: list[TopicIdPartition] = []
        self.starts: list[tuple[TopicIdPartition, int]] = []

    def add(self, partition: Partition, leader_id: int) -> None:
        self.following[partition.key] = leader_id
        self.starts.append((partition.key, leader_id))

    def remove(self, key: TopicIdPartition) -> None:
        self.following.pop(key, None)

    def on_reader(self, key: TopicIdPartition) -> None:
        self.read.append(key)


class Node:
    """The data side of one broker."""

    def __init__(
        self,
        broker_id: int,
        loop: VirtualLoop,
        config: ReplicaConfig,
        files: MemoryFiles | None = None,
        *,
        paths: tuple[str, ...] = ("/data",),
        adder: Any = None,
        offset_transactions: Any = None,
        **options: Any,
    ):
        self.id = broker_id
        self.loop = loop
        self.files = files or MemoryFiles()
        self.alter = HeldSubmitter()
        self.fetchers = RecordedFetchers()
        claims = Claims.take(self.files, paths, node_id=broker_id)
        self.log_dirs = claims.open(cluster_id="cluster", random=Random(broker_id))
        self.log_dirs.on_registered()
        self.log_dir = self.log_dirs.dirs[0]
        self.manager = ReplicaManager(
            broker_id=broker_id,
            log_dirs=self.log_dirs,
            config=config,
            doors=Doors(wall_clock_ms=lambda: NOW_MS, random=Random(broker_id)),
            now=loop.now,
            call_later=loop.call_later,
            call_soon=loop.call_soon,
            alter_partition=self.alter,
            fetchers=self.fetchers,
            **options,
        )
        self.handlers = data_handlers(
            self.manager,
            now=loop.now,
            wall_clock_ms=lambda: NOW_MS,
            log_dirs=self.log_dirs,
            run_blocking=options.get("run_blocking"),
            run_preparation=options.get("run_blocking"),
            adder=adder,
            offset_transactions=offset_transactions,
        )

    def __getitem__(self, key: TopicIdPartition) -> Partition:
        return self.manager.partitions[key]

    @property
    def p(self) -> Partition:
        return self.manager.partitions[P]

    @property
    def isr(self) -> list[int]:
        leader_state = self.p.leader_state
        assert leader_state is not None
        return list(leader_state.isr.isr)

    @property
    def hw(self) -> int:
        return self.p.log.high_watermark

    @property
    def leo(self) -> int:
        return self.p.log.log_end_offset

    # -- requests -----------------------------------------------------------------------------------------------------

    def produce(
        self,
        *values: bytes | str | bytearray,
        acks: int = -1,
        key: TopicIdPartition = P,
        timeout_ms: int = 1000,
        end_turn: bool = True,
        expected_offset: int = -1,
        fencing_token: int = -1,
    ) -> HandledRequest:
        """One request with one batch (or with ready batches) for one partition."""
        ready = [v for v in values if isinstance(v, bytearray)]
        records = memoryview(ready[0] if ready else batch(*values))
        return self.produce_many(
            [(key, records)],
            acks=acks,
            timeout_ms=timeout_ms,
            end_turn=end_turn,
            expected_offset=expected_offset,
            fencing_token=fencing_token,
        )

    def produce_many(
        self,
        items: Sequence[tuple[TopicIdPartition, Any]],
        *,
        acks: int = -1,
        timeout_ms: int = 1000,
        end_turn: bool = True,
        expected_offset: int = -1,
        fencing_token: int = -1,
    ) -> HandledRequest:
        partitions = [ProducePartition(*key, expected_offset, fencing_token) for key, _ in items]
        request = HandledRequest(
            ProduceRequest(None, acks, timeout_ms, partitions, [memoryview(records) for _, records in items])
        )
        self.handlers[PRODUCE](request)  # type: ignore[arg-type]
        if end_turn:
            self.loop.end_turn()
        return request

    def fetch(self, *wanted: FetchPartition, end_turn: bool = True, **fields: Any) -> HandledRequest:
        """A fetch, by default of a consumer, without session and without waiting."""
        values: dict[str, Any] = {
            "replica_id": -1,
            "replica_epoch": -1,
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "partitions": list(wanted),
            "forgotten": [],
        }
        request = HandledRequest(FetchRequest(**{**values, **fields}))
        self.handlers[FETCH](request)  # type: ignore[arg-type]
        if end_turn:
            self.loop.end_turn()
        return request

    def fetch_from(
        self, follower: Node, *, key: TopicIdPartition = P, end_turn: bool = True, epoch: int | None = None, **fields: Any
    ) -> HandledRequest:
        """The fetch of one partition that the follower's fetcher would send to this node, as a full fetch without a session."""
        position = follower[key].fetch_position()
        item = want(
            position.fetch_offset,
            key=key,
            epoch=position.leader_epoch if epoch is None else epoch,
            last_epoch=position.last_fetched_epoch,
            start=position.log_start_offset,
        )
        options = {"replica_id": follower.id, "replica_epoch": follower.manager.directory.broker_epoch, **fields}
        return self.fetch(item, end_turn=end_turn, **options)

    def said_by(
        self,
        broker_id: int,
        offset: int,
        *,
        key: TopicIdPartition = P,
        epoch: int | None = None,
        broker_epoch: int | None = None,
        end_turn: bool = True,
    ) -> HandledRequest:
        """A fetch of a follower without a `Node`: its log agrees with ours and ends at `offset`."""
        partition = self[key]
        last = partition.log.latest_epoch if offset else -1
        return self.fetch(
            want(offset, key=key, epoch=partition.leader_epoch if epoch is None else epoch, last_epoch=last),
            replica_id=broker_id,
            replica_epoch=self.manager.image.brokers[broker_id].broker_epoch if broker_epoch is None else broker_epoch,
            end_turn=end_turn,
        )

    def list_offsets(
        self, timestamp: int, *, epoch: int = -1, key: TopicIdPartition = P, replica_id: int = -1
    ) -> ListOffsetsPartitionResponse:
        request = HandledRequest(ListOffsetsRequest(replica_id, 0, [ListOffsetsPartition(*key, epoch, timestamp)]))
        self.handlers[LIST_OFFSETS](request)  # type: ignore[arg-type]
        answer = request.answer.partitions[0]
        assert isinstance(answer, ListOffsetsPartitionResponse)
        return answer


class ReplicaWorld:
    """Brokers 1..n that see the same metadata, each when the test says so."""

    def __init__(self, brokers: int = 3, *, config: ReplicaConfig | None = None, **options: Any) -> None:
        self.loop = VirtualLoop()
        self.image = MetadataImage.EMPTY
        self.nodes: dict[int, Node] = {}
        self._config = config or ReplicaConfig(replica_lag_time_max_ms=int(LAG_S * 1000))
        self._options = options
        for broker_id in range(1, brokers + 1):
            self.add_node(broker_id)
        self.change(*(register(broker_id) for broker_id in self.nodes))

    def add_node(self, broker_id: int, files: MemoryFiles | None = None) -> Node:
        self.nodes[broker_id] = Node(broker_id, self.loop, self._config, files, **self._options)
        return self.nodes[broker_id]

    def __getitem__(self, broker_id: int) -> Node:
        return self.nodes[broker_id]

    def change(self, *records: AnyRecord, at: Sequence[int] | None = None) -> None:
        """Commit metadata. `at`: the brokers that apply it now (default: all); the others apply it with `catch_up`."""
        self.image = self.image.apply(records, self.image.offset + len(records), 1).image
        self.catch_up(*(self.nodes if at is None else at))

    def catch_up(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            manager = self.nodes[broker_id].manager
            registration = self.image.brokers.get(broker_id)
            manager.apply_delta(manager.image.delta_to(self.image), registration.broker_epoch if registration else -1)
        if broker_ids:
            self.loop.end_turn()

    def topic(
        self,
        *,
        replicas: Sequence[int] = (1, 2, 3),
        isr: Sequence[int] | None = None,
        leader: int = 1,
        min_isr: int = 1,
        topic_id: bytes = TOPIC,
        name: str = "orders",
        partitions: int = 1,
        epoch: int = 1,
        at: Sequence[int] | None = None,
        **configs: str,
    ) -> None:
        members = tuple(replicas if isr is None else isr)
        records: list[AnyRecord] = [TopicRecord(name, topic_id), config(name, "min.insync.replicas", str(min_isr))]
        records += [config(name, key.replace("_", "."), value) for key, value in configs.items()]
        for index in range(partitions):
            records.append(PartitionRecord(topic_id, index, tuple(replicas), members, leader, epoch, epoch))
        self.change(*records, at=at)

    def elect(
        self, leader: int, isr: Sequence[int] | None = None, *, key: TopicIdPartition = P, at: Sequence[int] | None = None
    ) -> None:
        self.change(PartitionChangeRecord(*key, isr=None if isr is None else tuple(isr), leader=leader), at=at)

    def set_isr(self, *isr: int, key: TopicIdPartition = P, at: Sequence[int] | None = None) -> None:
        self.change(PartitionChangeRecord(*key, isr=tuple(isr)), at=at)

    def replicate(self, follower: int, leader: int, *, key: TopicIdPartition = P) -> FetchPartitionResponse:
        """One round trip of the follower's fetcher."""
        source, target = self[leader], self[follower]
        position = target[key].fetch_position()
        request = source.fetch_from(target, key=key)
        deliver(target[key], position, request)
        self.loop.end_turn()
        response: FetchPartitionResponse = request.answer.partitions[0]
        return response


def deliver(partition: Partition, position: Any, request: HandledRequest) -> bool:
    """Apply a fetch response to the follower's partition. Returns whether the partition has changed."""
    answer = request.answer.partitions[0]
    assert answer.error_code == 0, ErrorCode(answer.error_code)
    if answer.diverging_epoch.epoch >= 0:
        partition.truncate_to_divergence(position, answer.diverging_epoch)
        return True
    return partition.append_fetched(position, answer, memoryview(bytearray(b"".join(request.records[0]))))


# -- small makers -----------------------------------------------------------------------------------------------------


def register(broker_id: int, *, epoch: int | None = None, fenced: bool = False, rack: str | None = None) -> RegisterBrokerRecord:
    epoch = 10 + broker_id if epoch is None else epoch
    return RegisterBrokerRecord(broker_id, epoch, bytes(16), rack=rack, fenced=fenced)


def fence(broker_id: int, *, fenced: int = 1, epoch: int | None = None) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(broker_id, 10 + broker_id if epoch is None else epoch, fenced=fenced)


def begin_shutdown(broker_id: int) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(broker_id, 10 + broker_id, in_controlled_shutdown=1)


def config(topic: str, key: str, value: str) -> ConfigRecord:
    return ConfigRecord(RESOURCE_TOPIC, topic, key, value)


def remove_topic(topic_id: bytes = TOPIC) -> RemoveTopicRecord:
    return RemoveTopicRecord(topic_id)


def batch(*values: bytes | str, producer_id: int = -1, producer_epoch: int = -1, sequence: int = -1) -> bytearray:
    encoded = [v.encode() if isinstance(v, str) else v for v in values]
    records = [(None, value, [], NOW_MS) for value in encoded]
    return bytearray(encode_batch(records, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence))


def want(
    offset: int, *, key: TopicIdPartition = P, epoch: int = -1, last_epoch: int = -1, start: int = 0, max_bytes: int = 1 << 20
) -> FetchPartition:
    return FetchPartition(key[0], key[1], epoch, offset, last_epoch, start, max_bytes)


def forget(key: TopicIdPartition) -> ForgottenPartition:
    return ForgottenPartition(*key)


def produced(request: HandledRequest, index: int = 0) -> ProducePartitionResponse:
    response: ProducePartitionResponse = request.answer.partitions[index]
    return response


def code(request: HandledRequest, index: int = 0) -> ErrorCode:
    """The error of one partition of an answer."""
    return ErrorCode(request.answer.partitions[index].error_code)


def fetched(request: HandledRequest) -> dict[TopicIdPartition, FetchPartitionResponse]:
    answer: FetchResponse = request.answer
    return {(p.topic_id, p.partition): p for p in answer.partitions}


def values(request: HandledRequest, index: int = 0) -> list[bytes]:
    """The values of the records that an answer holds for one partition."""
    return [bytes(r.value or b"") for buffer in request.records[index] for r in iter_records(buffer)]


def log_values(partition: Partition) -> list[tuple[int, bytes]]:
    """(offset, value) of everything in a log."""
    log = partition.log
    read = log.read(log.log_start_offset, 1 << 30, log.log_end_offset)
    return [(r.offset, bytes(r.value or b"")) for buffer in read.buffers for r in iter_records(buffer)]
