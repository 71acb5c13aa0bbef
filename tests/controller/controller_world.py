"""A controller on a quorum that is a list: it commits on request, so that a test decides which records are committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from handled_request import HandledRequest

from strandline.controller.controller import Controller
from strandline.controller.handlers import ControllerApis
from strandline.controller.metadata.features import SUPPORTED, Levels
from strandline.controller.metadata.image import MetadataImage, PartitionRegistration
from strandline.controller.metadata.records import decode_record
from strandline.controller.security.decisions import security_decisions
from strandline.controller.topic_control import TopicControl, TopicDefaults
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from strandline.protocol.messages.cluster import (
    AlterPartitionPartition,
    AlterPartitionPartitionResponse,
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerState,
)
from strandline.protocol.messages.common import Listener

CLUSTER = "cluster"


class ListQuorum:
    """Appends to a list; `commit` hands the records to the controller like the quorum."""

    def __init__(self) -> None:
        self.log: list[tuple[int, bytes]] = [(0, b"")]
        """(epoch, record) by offset; an empty record is one of the quorum itself."""
        self.batches: list[tuple[int, int]] = []
        """The first and last offset of each append."""
        self.committed = -1
        self.epoch = 1
        self.leading = False

    @property
    def log_end_offset(self) -> int:
        return len(self.log)

    def append(self, records: Sequence[bytes], epoch: int) -> int:
        if not self.leading or epoch != self.epoch:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, "the quorum leads no more")
        base = len(self.log)
        self.log += [(epoch, record) for record in records]
        self.batches.append((base, len(self.log) - 1))
        return len(self.log) - 1

    def commit(self, controller: Controller, up_to: int | None = None) -> None:
        for base, last in self.batches:
            if base > self.committed and (up_to is None or last <= up_to):
                controller.on_committed(base, last, self.log[base][0], [r for _, r in self.log[base : last + 1]])
                self.committed = last


class ControllerWorld:
    """One active controller, in virtual time. Brokers exist only as the requests that the test sends in their names."""

    def __init__(
        self,
        *,
        brokers: int = 0,
        auto_commit: bool = True,
        seed: int = 7,
        session_timeout_ms: int = 3000,
        levels: Levels = SUPPORTED,
        has_authorizer: bool = True,
    ) -> None:
        """`levels`: with LEVEL_0_ONLY the metadata has level 0, as that of an older version."""
        self.now = 1000.0
        self.quorum = ListQuorum()
        self.auto_commit = auto_commit
        self.controller = Controller(node_id=101, session_timeout_ms=session_timeout_ms, now=lambda: self.now, levels=levels)
        topics = TopicControl(Random(seed), TopicDefaults(num_partitions=2, replication_factor=3))
        self.call_soon: Callable[[Callable[[], None]], object] = lambda callback: callback()
        self.handlers = ControllerApis(
            self.controller,
            topics,
            CLUSTER,
            self.wall_clock_ms,
            lambda callback: self.call_soon(callback),
            security_decisions(self.controller, Random(seed), has_authorizer=has_authorizer),
        ).handlers()
        self.become_active()
        for broker_id in range(1, brokers + 1):
            self.start_broker(broker_id)

    def wall_clock_ms(self) -> int:
        return round(self.now * 1000)

    def become_active(self, epoch: int = 1) -> None:
        self.quorum.epoch, self.quorum.leading = epoch, True
        self.controller.on_leader(epoch, self.quorum)

    def send(self, api_key: int, body: Any) -> HandledRequest:
        """Send a request without a commit."""
        request = HandledRequest(body)
        self.handlers[api_key](request)
        return request

    def call(self, api_key: int, body: Any) -> Any:
        """Send a request and commit; returns the response, or raises its error."""
        request = self.send(api_key, body)
        if self.auto_commit:
            self.commit()
        (answer,) = request.answers
        if isinstance(answer, BrokerError):
            raise answer
        return answer

    def commit(self, up_to: int | None = None) -> None:
        self.quorum.commit(self.controller, up_to)

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    # -- brokers --

    def register(self, broker_id: int, incarnation: int = 1, **more: Any) -> int:
        """Register a broker; returns the broker epoch."""
        return int(self.call(apis.BROKER_REGISTRATION, registration(broker_id, incarnation, **more)).broker_epoch)

    def heartbeat(
        self, broker_id: int, *, epoch: int | None = None, offset: int | None = None, **wishes: Any
    ) -> BrokerHeartbeatResponse:
        request = self.heartbeat_request(broker_id, epoch=epoch, offset=offset, **wishes)
        answer: BrokerHeartbeatResponse = self.call(apis.BROKER_HEARTBEAT, request)
        return answer

    def heartbeat_request(
        self,
        broker_id: int,
        *,
        epoch: int | None = None,
        offset: int | None = None,
        want_fence: bool = False,
        want_shut_down: bool = False,
        offline_log_dirs: Sequence[bytes] = (),
        cordoned_log_dirs: Sequence[bytes] | None = None,
    ) -> BrokerHeartbeatRequest:
        return BrokerHeartbeatRequest(
            broker_id,
            self.image.brokers[broker_id].broker_epoch if epoch is None else epoch,
            self.image.offset if offset is None else offset,
            want_fence,
            want_shut_down,
            list(offline_log_dirs),
            cordoned_log_dirs=None if cordoned_log_dirs is None else list(cordoned_log_dirs),
        )

    def start_broker(self, broker_id: int, incarnation: int = 1, **more: Any) -> int:
        epoch = self.register(broker_id, incarnation, **more)
        assert not self.heartbeat(broker_id).is_fenced
        return epoch

    def kill_broker(self, broker_id: int) -> None:
        self.controller.fence(broker_id, self.image.brokers[broker_id].broker_epoch, "test")
        if self.auto_commit:
            self.commit()

    def epoch(self, broker_id: int) -> int:
        return self.image.brokers[broker_id].broker_epoch

    # -- topics --

    def create(self, name: str, assignments: Sequence[Sequence[int]] | None = None, **more: Any) -> bytes:
        """Create a topic; returns its id."""
        topic = CreatableTopic(name, **more)
        if assignments is not None:
            topic.assignments = [CreatableReplicaAssignment(i, list(r)) for i, r in enumerate(assignments)]
        (result,) = self.call(apis.CREATE_TOPICS, CreateTopicsRequest([topic])).topics
        if result.error_code:
            raise BrokerError(result.error_code, result.error_message)
        return bytes(result.topic_id)

    def partition(self, name: str, index: int = 0) -> PartitionRegistration:
        topic = self.image.topic(name)
        assert topic is not None
        return topic.partitions[index]

    def alter(self, name: str, isr: Sequence[int], index: int = 0, **overrides: Any) -> AlterPartitionPartitionResponse:
        """Build an AlterPartition request as the current leader would send it, except for `overrides`."""
        answers: list[AlterPartitionPartitionResponse]
        answers = self.call(apis.ALTER_PARTITION, self.alter_request(name, isr, index, **overrides)).partitions
        return answers[0]

    def alter_request(
        self,
        name: str,
        isr: Sequence[int],
        index: int = 0,
        *,
        broker_id: int | None = None,
        broker_epoch: int | None = None,
        leader_epoch: int | None = None,
        partition_epoch: int | None = None,
        epochs: dict[int, int] | None = None,
        recovery: int = 0,
        topic_id: bytes | None = None,
    ) -> AlterPartitionRequest:
        topic = self.image.topic(name)
        assert topic is not None
        partition = topic.partitions.get(index) or topic.partitions[0]
        sender = partition.leader if broker_id is None else broker_id
        members = [BrokerState(b, (epochs or {}).get(b, self.epoch(b) if b in self.image.brokers else 1)) for b in isr]
        item = AlterPartitionPartition(
            topic_id or topic.topic_id,
            index,
            partition.leader_epoch if leader_epoch is None else leader_epoch,
            members,
            recovery,
            partition.partition_epoch if partition_epoch is None else partition_epoch,
        )
        return AlterPartitionRequest(sender, self.epoch(sender) if broker_epoch is None else broker_epoch, [item])

    def replayed(self) -> MetadataImage:
        """The image of a node that replays the log batch by batch."""
        image = MetadataImage.EMPTY
        for base, last in self.quorum.batches:
            records = [decode_record(r) for _, r in self.quorum.log[base : last + 1]]
            image = image.apply(records, last, self.quorum.log[base][0]).image
        return image


def registration(broker_id: int, incarnation: int = 1, *, cluster: str = CLUSTER, **more: Any) -> BrokerRegistrationRequest:
    listeners = [Listener("PLAINTEXT", "127.0.0.1", 9091 + broker_id)]
    fields: dict[str, Any] = {"listeners": listeners, "features": list(SUPPORTED.features), **more}
    return BrokerRegistrationRequest(broker_id, cluster, bytes([incarnation]) * 16, **fields)
