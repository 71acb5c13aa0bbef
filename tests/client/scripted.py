"""A cluster for the client's tests: real servers and sockets, a model of the logs, and switches for what goes wrong.

Not a broker: no replication, no disk. It stores batches with base offsets, answers as a leader does, and can be made to
refuse, to lose answers, to move leaders, to hang, to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages import admin, data
from strandline.protocol.messages.common import CurrentLeader, EpochEndOffset
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.producer_names import named_producer_id
from strandline.protocol.records.batch import read_header, stamp
from strandline.protocol.rpc.server import Server, ServerRequest

from .model_log import ModelLog

C = ErrorCode


@dataclass
class Partition:
    log: ModelLog = field(default_factory=ModelLog)
    leader: int = 1
    epoch: int = 0
    start_offset: int = 0
    high_watermark: int | None = None
    """None: everything that was appended is committed."""
    epoch_starts: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    waiters: list[Callable[[], None]] = field(default_factory=list)
    nominees: dict[str, int] = field(default_factory=dict)
    """The broker that the leader sends consumers to, by rack."""
    followers: dict[int, ErrorCode] = field(default_factory=dict)
    """A follower's response to consumers, by broker: an error, or the records for NONE. These followers are in the ISR."""
    served_by: list[int] = field(default_factory=list)
    """The brokers that sent records, once for each response."""
    fencing_token: int = -1
    """The highest token that a batch has carried. Raising it takes no offset here."""

    @property
    def end_offset(self) -> int:
        return len(self.log.values)

    def append(self, records: memoryview) -> tuple[ErrorCode, int]:
        before = len(self.log.batches)
        code, base = self.log.append(bytes(records))
        if len(self.log.batches) > before:
            stamped = bytearray(records)
            stamp(stamped, 0, base, self.epoch)
            self.log.batches[-1] = (base, bytes(stamped))
            self.wake()
        return code, base

    def wake(self) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter()

    def read(self, offset: int, max_bytes: int) -> list[bytes]:
        found: list[bytes] = []
        for base, batch in self.log.batches:
            if base + read_header(batch).last_offset_delta >= offset and max_bytes > 0:
                found.append(batch)
                max_bytes -= len(batch)
        return found

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch <= `epoch` and its end offset."""
        at_most = [e for e, _ in self.epoch_starts if e <= epoch]
        if not at_most:
            return -1, -1
        later = [start for e, start in self.epoch_starts if e > epoch]
        return max(at_most), min(later, default=self.end_offset)


class ScriptedCluster:
    def __init__(self, brokers: int = 3) -> None:
        self.brokers = {i: ScriptedBroker(self, i) for i in range(1, brokers + 1)}
        self.topics: dict[str, bytes] = {}
        self.topics_made = 0
        self.partitions: dict[TopicIdPartition, Partition] = {}
        self.produce_fate: Callable[[int, TopicIdPartition], str] = lambda broker_id, key: "ok"
        """ "ok", "response lost" (appended, connection cut), "request lost" (cut), "silence", "deposed" (a former leader with an
        empty log rejects the batch), or an error code's name."""
        self.record_errors: list[data.RecordError] = []
        """Record errors that an error response lists; it reports `invalid_records` invalid records in the batch."""
        self.invalid_records = 0
        self.max_message_bytes = 1 << 30
        self.newest_produce_version = 2
        """1: brokers do not support fencing tokens; 0: nor do they support expected offsets."""
        self.advertised: dict[int, tuple[str, int]] = {}
        self.metadata_requests = 0
        self.produce_requests: list[list[tuple[TopicIdPartition, bytes]]] = []
        self.fetch_requests: list[data.FetchRequest] = []
        self.next_producer_id = 1000
        self.names: dict[str, tuple[int, int]] = {}
        """The newest work epoch and producer epoch of each producer name. The number of a name is its index in here."""
        self.name_fate = ErrorCode.NONE
        self.offsets_fate: ErrorCode | None = ErrorCode.NONE
        """The error of every ListOffsets and OffsetForLeaderEpoch; None: responses leave the partition out."""
        self.offsets_requests: list[data.ListOffsetsRequest | data.OffsetForLeaderEpochRequest] = []
        self.admit: Callable[[str | None, TopicIdPartition, bytes], ErrorCode] = lambda transactional_id, key, records: C.NONE
        """Called before a leader appends a batch; the leader rejects the batch unless this returns NONE."""
        self.more_handlers: Callable[[ScriptedBroker], dict[int, Callable[[ServerRequest], None]]] = lambda broker: {}
        """Further requests that brokers serve; set before they start."""

    async def __aenter__(self) -> ScriptedCluster:
        for broker in self.brokers.values():
            await broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            await broker.stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())

    def create(self, name: str, partitions: int = 1) -> None:
        if name not in self.topics:
            self.topics_made += 1
            self.topics[name] = self.topics_made.to_bytes(16, "big")
        topic_id = self.topics[name]
        for index in range(partitions):
            self.partitions.setdefault((topic_id, index), Partition(leader=1 + index % len(self.brokers)))

    def delete(self, name: str) -> None:
        topic_id = self.topics.pop(name)
        for key in [key for key in self.partitions if key[0] == topic_id]:
            self.partitions.pop(key).wake()

    def recreate(self, name: str, partitions: int = 1) -> None:
        self.delete(name)
        self.create(name, partitions)

    def partition(self, name: str, index: int = 0) -> Partition:
        return self.partitions[self.topics[name], index]

    def move_leader(self, name: str, index: int, leader: int) -> None:
        partition = self.partition(name, index)
        partition.leader = leader
        partition.epoch += 1
        partition.epoch_starts.append((partition.epoch, partition.end_offset))
        partition.wake()

    def values(self, name: str) -> list[bytes]:
        keys = sorted(key for key in self.partitions if key[0] == self.topics[name])
        return [value for key in keys for value in self.partitions[key].log.values]


class ScriptedBroker:
    def __init__(self, cluster: ScriptedCluster, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.port = 0
        self.hanging = False
        """The broker takes requests and answers none but the handshake: a broker that is stuck behind its protocol."""
        self.mute = False
        """Connections are accepted, and nothing at all is answered: a process that is paused, a host that is cut off."""
        self.controller_id = 101
        """-1: it knows no controller, like a broker that is cut off from them; its metadata may be old."""
        self.picture: tuple[dict[str, bytes], dict[TopicIdPartition, Partition]] | None = None
        """The topics and partitions that it knows; None: all of them. A broker with older metadata answers metadata requests from
        that, and still names a controller."""
        self.metadata_requests = 0
        self.held: list[ServerRequest] = []
        self.handshakes = 0
        self.server: Server | None = None
        self.sessions: dict[int, dict[TopicIdPartition, data.FetchPartition]] = {}
        self.last_session = 0
        self.throttle_ms = 0
        """The throttle time in the broker's responses to fetches. The broker itself does not wait."""

    async def start(self) -> None:
        handlers = {
            apis.METADATA: self.metadata,
            apis.PRODUCE: self.produce,
            apis.INIT_PRODUCER_ID: self.init_producer_id,
            apis.DESCRIBE_PRODUCERS: self.describe_producers,
            apis.DELETE_RECORDS: self.delete_records,
            apis.FETCH: self.fetch,
            apis.LIST_OFFSETS: self.list_offsets,
            apis.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch,
            apis.CREATE_TOPICS: self.create_topics,
            apis.DELETE_TOPICS: self.delete_topics,
            apis.DESCRIBE_CLUSTER: self.describe_cluster,
            **self.cluster.more_handlers(self),
        }
        self.server = Server(
            {key: self._unless_hanging(handler) for key, handler in handlers.items()},
            role="broker",
            node_id=self.broker_id,
            cluster_id="scripted",
            incarnation_id=bytes(16),
        )
        handshake = self.server.handlers[apis.API_VERSIONS]

        def handle_handshake(request: ServerRequest) -> None:
            self.handshakes += 1
            if self.mute:
                self.held.append(request)
            else:
                handshake(request)

        self.server.handlers[apis.API_VERSIONS] = handle_handshake
        self.port = await self.server.start("127.0.0.1", self.port)

    async def stop(self) -> None:
        """Stop as after a kill: connections are cut, and the port refuses new ones."""
        if self.server is not None:
            server, self.server = self.server, None
            await server.stop()

    def cut_connections(self) -> None:
        assert self.server is not None
        for connection in list(self.server.connections.values()):
            connection.close()

    def resume(self) -> None:
        self.hanging = self.mute = False

    def answer_late(self) -> None:
        """Answer the requests that were held back."""
        self.resume()
        held, self.held = self.held, []
        for request in held:
            if request.is_open:
                self.server.handlers[request.api_key](request)  # type: ignore[union-attr]

    def fall_silent(self) -> None:
        self.hanging = self.mute = True

    def fall_behind(self) -> None:
        """Learn no new topic, partition or deletion until `picture` is None."""
        self.picture = dict(self.cluster.topics), dict(self.cluster.partitions)

    def _unless_hanging(self, handler: Callable[[ServerRequest], None]) -> Callable[[ServerRequest], None]:
        def handle(request: ServerRequest) -> None:
            if self.hanging:
                self.held.append(request)
            else:
                handler(request)

        return handle

    # -- admin --------------------------------------------------------------------------------------------------------

    def metadata(self, request: ServerRequest) -> None:
        cluster = self.cluster
        cluster.metadata_requests += 1
        self.metadata_requests += 1
        body = request.body
        assert isinstance(body, admin.MetadataRequest)
        names = list(cluster.topics) if body.topics is None else [topic.name or self._name(topic) for topic in body.topics]
        live = [broker for broker in cluster.brokers.values() if broker.port]
        brokers = [admin.MetadataBroker(b.broker_id, *cluster.advertised.get(b.broker_id, ("127.0.0.1", b.port))) for b in live]
        request.reply(admin.MetadataResponse(brokers, "scripted", self.controller_id, [self._topic(name) for name in names]))

    def _name(self, asked: admin.MetadataTopicRequest) -> str:
        topics, _ = self.picture or (self.cluster.topics, self.cluster.partitions)
        return next((name for name, topic_id in topics.items() if topic_id == asked.topic_id), "")

    def _topic(self, name: str) -> admin.MetadataTopic:
        topics, known = self.picture or (self.cluster.topics, self.cluster.partitions)
        topic_id = topics.get(name)
        if topic_id is None:
            return admin.MetadataTopic(C.UNKNOWN_TOPIC_OR_PARTITION, name, bytes(16), [])
        partitions = [
            admin.MetadataPartition(0, index, p.leader, p.epoch, 0, [p.leader], [p.leader, *p.followers], [])
            for (owner, index), p in sorted(known.items())
            if owner == topic_id
        ]
        return admin.MetadataTopic(0, name, topic_id, partitions)

    def init_producer_id(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, data.InitProducerIdRequest)
        if body.name is not None:
            request.reply(self._init_name(body.name, body.work_epoch))
            return
        self.cluster.next_producer_id += 1
        request.reply(data.InitProducerIdResponse(0, self.cluster.next_producer_id, 0))

    def _init_name(self, name: str, work_epoch: int) -> data.InitProducerIdResponse:
        names, fate = self.cluster.names, self.cluster.name_fate
        if fate != C.NONE:
            return data.InitProducerIdResponse(fate)
        newest, epoch = names.get(name, (work_epoch, -1))
        if work_epoch < newest:
            return data.InitProducerIdResponse(C.PRODUCER_FENCED, error_message=f"there is work epoch {newest}")
        names[name] = work_epoch, epoch + 1 if work_epoch == newest else 0
        producer_id = named_producer_id(list(names).index(name), work_epoch)
        return data.InitProducerIdResponse(0, producer_id, names[name][1])

    def describe_producers(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, data.DescribeProducersRequest)
        request.reply(
            data.DescribeProducersResponse(
                [self._producers_of((p.topic_id, p.partition), body.producer_ids) for p in body.partitions]
            )
        )

    def _producers_of(self, key: TopicIdPartition, producer_ids: list[int] | None) -> data.DescribeProducersPartitionResponse:
        partition = self.cluster.partitions.get(key)
        if partition is None or partition.leader != self.broker_id:
            return data.DescribeProducersPartitionResponse(*key, C.NOT_LEADER_OR_FOLLOWER)
        known = [data.ProducerState(*producer[:5]) for producer in partition.log.named.describe(producer_ids)]
        watermark = partition.end_offset if partition.high_watermark is None else partition.high_watermark
        return data.DescribeProducersPartitionResponse(*key, 0, None, partition.epoch, watermark, known)

    def delete_records(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, data.DeleteRecordsRequest)
        request.reply(data.DeleteRecordsResponse([self._delete(p) for p in body.partitions]))

    def _delete(self, asked: data.DeleteRecordsPartition) -> data.DeleteRecordsPartitionResponse:
        key = (asked.topic_id, asked.partition)
        partition = self.cluster.partitions.get(key)
        if partition is None:
            return data.DeleteRecordsPartitionResponse(*key, C.UNKNOWN_TOPIC_ID)
        if partition.leader != self.broker_id:
            return data.DeleteRecordsPartitionResponse(*key, C.NOT_LEADER_OR_FOLLOWER)
        if asked.before_offset > partition.end_offset:
            return data.DeleteRecordsPartitionResponse(*key, C.OFFSET_OUT_OF_RANGE, "above the high watermark")
        partition.start_offset = max(partition.start_offset, asked.before_offset)
        return data.DeleteRecordsPartitionResponse(*key, 0, None, partition.start_offset)

    def create_topics(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, admin.CreateTopicsRequest)
        results = []
        for topic in body.topics:
            if topic.name in self.cluster.topics:
                results.append(admin.CreatableTopicResult(topic.name, error_code=C.TOPIC_ALREADY_EXISTS))
                continue
            self.cluster.create(topic.name, max(1, topic.num_partitions))
            results.append(admin.CreatableTopicResult(topic.name, self.cluster.topics[topic.name], num_partitions=1))
        request.reply(admin.CreateTopicsResponse(results))

    def delete_topics(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, admin.DeleteTopicsRequest)
        results = []
        for topic in body.topics:
            known = topic.name in self.cluster.topics
            if known and topic.name is not None:
                self.cluster.delete(topic.name)
            results.append(admin.DeletableTopicResult(topic.name, error_code=0 if known else C.UNKNOWN_TOPIC_OR_PARTITION))
        request.reply(admin.DeleteTopicsResponse(results))

    def describe_cluster(self, request: ServerRequest) -> None:
        brokers = [admin.DescribeClusterBroker(b.broker_id, "127.0.0.1", b.port) for b in self.cluster.brokers.values()]
        request.reply(admin.DescribeClusterResponse(0, None, "scripted", self.controller_id, brokers))

    # -- produce ------------------------------------------------------------------------------------------------------

    def produce(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, data.ProduceRequest)
        sent = [((p.topic_id, p.partition), bytes(r)) for p, r in zip(body.partitions, body.records, strict=True)]
        items = {(p.topic_id, p.partition): p for p in body.partitions}
        self.cluster.produce_requests.append(sent)
        if body.version() > self.cluster.newest_produce_version:
            request.refuse(C.UNSUPPORTED_VERSION)
            request.connection.close()
            return
        answers = []
        silent = False
        for key, records in sent:
            fate = self.cluster.produce_fate(self.broker_id, key)
            if fate == "request lost":
                request.connection.close()
                return
            answer = self._produce_one(key, records, fate, items[key], body.transactional_id)
            if fate == "response lost":
                request.connection.close()
                return
            silent = silent or fate == "silence"
            answers.append(answer)
        if body.acks == 0:
            request.no_reply()
        elif silent:
            self.held.append(request)
        else:
            request.reply(data.ProduceResponse(answers))

    def _produce_one(
        self, key: TopicIdPartition, records: bytes, fate: str, item: data.ProducePartition, transactional_id: str | None
    ) -> data.ProducePartitionResponse:
        partition = self.cluster.partitions.get(key)
        if partition is None:
            return data.ProducePartitionResponse(*key, C.UNKNOWN_TOPIC_ID)
        if fate == "deposed":
            return data.ProducePartitionResponse(*key, C.UNEXPECTED_LOG_END, log_end_offset=0)
        if partition.leader != self.broker_id:
            return data.ProducePartitionResponse(*key, C.NOT_LEADER_OR_FOLLOWER)
        if fate not in ("ok", "response lost", "silence"):
            hint = CurrentLeader(partition.leader, partition.epoch)
            answer = data.ProducePartitionResponse(*key, C[fate], current_leader=hint)
            answer.record_errors, answer.invalid_records = self.cluster.record_errors, self.cluster.invalid_records
            answer.error_message = "record 1 of the batch has no key" if answer.record_errors else None
            return answer
        if len(records) > self.cluster.max_message_bytes:
            return data.ProducePartitionResponse(*key, C.MESSAGE_TOO_LARGE)
        if not partition.log.has(records):
            if -1 < item.fencing_token < partition.fencing_token:
                return data.ProducePartitionResponse(*key, C.FENCED_TOKEN, fencing_token=partition.fencing_token)
            if item.expected_offset not in (-1, partition.end_offset):
                return data.ProducePartitionResponse(*key, C.UNEXPECTED_LOG_END, log_end_offset=partition.end_offset)
        if refused := self.cluster.admit(transactional_id, key, records):
            return data.ProducePartitionResponse(*key, refused)
        partition.fencing_token = max(partition.fencing_token, item.fencing_token)
        code, base = partition.append(memoryview(bytearray(records)))
        return data.ProducePartitionResponse(*key, code, base)

    # -- fetch --------------------------------------------------------------------------------------------------------

    def fetch(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, data.FetchRequest)
        self.cluster.fetch_requests.append(body)
        asked = {(p.topic_id, p.partition): p for p in body.partitions}
        session_id = 0
        if body.session_epoch == 0:
            self.last_session += 1
            session_id = self.last_session
            self.sessions[session_id] = asked
        elif body.session_epoch > 0:
            if body.session_id not in self.sessions:
                request.reply(data.FetchResponse(0, C.FETCH_SESSION_ID_NOT_FOUND, 0, [], []))
                return
            session_id = body.session_id
            session = self.sessions[session_id]
            session.update(asked)
            for gone in body.forgotten:
                session.pop((gone.topic_id, gone.partition), None)
            asked = session
        self._answer_fetch(request, body, session_id, dict(asked), asyncio.get_running_loop().time() + body.max_wait_ms / 1000)

    def _answer_fetch(
        self,
        request: ServerRequest,
        body: data.FetchRequest,
        session_id: int,
        asked: dict[TopicIdPartition, data.FetchPartition],
        until: float,
    ) -> None:
        if self.hanging:
            self.held.append(request)
            return
        answers, records = [], []
        for key, wanted in asked.items():
            answer, batches = self._fetch_one(key, wanted, body.rack_id)
            if batches or _is_news(answer) or body.session_epoch <= 0:
                answers.append(answer)
                records.append(batches)
        loop = asyncio.get_running_loop()
        useful = any(records) or any(map(_is_news, answers))
        if useful or loop.time() >= until or not asked:
            request.reply(data.FetchResponse(self.throttle_ms, 0, session_id, answers, []), records)
            return
        done = False

        def again() -> None:
            nonlocal done
            if not done:
                done = True
                timer.cancel()
                self._answer_fetch(request, body, session_id, asked, until)

        timer = loop.call_at(until, again)
        for key in asked:
            if key in self.cluster.partitions:
                self.cluster.partitions[key].waiters.append(again)

    def _fetch_one(
        self, key: TopicIdPartition, wanted: data.FetchPartition, rack: str
    ) -> tuple[data.FetchPartitionResponse, list[bytes]]:
        partition = self.cluster.partitions.get(key)
        if partition is None:
            return data.FetchPartitionResponse(*key, C.UNKNOWN_TOPIC_ID), []
        if rack and self.broker_id in partition.followers and self.broker_id != partition.leader:
            if code := partition.followers[self.broker_id]:
                return data.FetchPartitionResponse(*key, code), []
        elif (code_ := self._fence(partition, wanted.current_leader_epoch)) is not None:
            return data.FetchPartitionResponse(*key, code_), []
        offsets = (partition.end_offset, partition.end_offset, partition.start_offset)
        if wanted.last_fetched_epoch >= 0:
            epoch, end = partition.end_of_epoch(wanted.last_fetched_epoch)
            if epoch < wanted.last_fetched_epoch or end < wanted.fetch_offset:
                return data.FetchPartitionResponse(*key, 0, *offsets, diverging_epoch=EpochEndOffset(epoch, end)), []
        if not partition.start_offset <= wanted.fetch_offset <= partition.end_offset:
            return data.FetchPartitionResponse(*key, C.OFFSET_OUT_OF_RANGE, *offsets), []
        if partition.leader == self.broker_id and rack in partition.nominees:
            return data.FetchPartitionResponse(*key, 0, *offsets, preferred_read_replica=partition.nominees[rack]), []
        batches = partition.read(wanted.fetch_offset, wanted.partition_max_bytes)
        if batches:
            partition.served_by.append(self.broker_id)
        return data.FetchPartitionResponse(*key, 0, *offsets), batches

    def _fence(self, partition: Partition, epoch: int) -> ErrorCode | None:
        if partition.leader != self.broker_id:
            return C.NOT_LEADER_OR_FOLLOWER
        if 0 <= epoch < partition.epoch:
            return C.FENCED_LEADER_EPOCH
        return C.UNKNOWN_LEADER_EPOCH if epoch > partition.epoch else None

    # -- offsets ------------------------------------------------------------------------------------------------------

    def list_offsets(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, data.ListOffsetsRequest)
        self.cluster.offsets_requests.append(body)
        asked = [] if self.cluster.offsets_fate is None else body.partitions
        request.reply(data.ListOffsetsResponse([self._list_one(partition) for partition in asked]))

    def _list_one(self, asked: data.ListOffsetsPartition) -> data.ListOffsetsPartitionResponse:
        key = (asked.topic_id, asked.partition)
        partition = self.cluster.partitions.get(key)
        if partition is None:
            return data.ListOffsetsPartitionResponse(*key, C.UNKNOWN_TOPIC_ID)
        if (code := self._fence(partition, asked.current_leader_epoch)) is not None:
            return data.ListOffsetsPartitionResponse(*key, code)
        if self.cluster.offsets_fate:
            return data.ListOffsetsPartitionResponse(*key, self.cluster.offsets_fate)
        if asked.timestamp == data.LATEST_TIMESTAMP:
            return data.ListOffsetsPartitionResponse(*key, 0, -1, partition.end_offset, partition.epoch)
        if asked.timestamp == data.EARLIEST_TIMESTAMP:
            return data.ListOffsetsPartitionResponse(*key, 0, -1, partition.start_offset, 0)
        for base, batch in partition.log.batches:
            header = read_header(batch)
            if header.max_timestamp >= asked.timestamp:
                return data.ListOffsetsPartitionResponse(*key, 0, header.base_timestamp, base, header.leader_epoch)
        return data.ListOffsetsPartitionResponse(*key)

    def offset_for_leader_epoch(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, data.OffsetForLeaderEpochRequest)
        self.cluster.offsets_requests.append(body)
        fate = self.cluster.offsets_fate
        answers = []
        for asked in [] if fate is None else body.partitions:
            key = (asked.topic_id, asked.partition)
            partition = self.cluster.partitions[key]
            if fate:
                answers.append(data.EpochEndOffsetPartition(*key, fate))
            elif (code := self._fence(partition, asked.current_leader_epoch)) is not None:
                answers.append(data.EpochEndOffsetPartition(*key, code))
            else:
                answers.append(data.EpochEndOffsetPartition(*key, 0, *partition.end_of_epoch(asked.leader_epoch)))
        request.reply(data.OffsetForLeaderEpochResponse(answers))


def _is_news(answer: data.FetchPartitionResponse) -> bool:
    return bool(answer.error_code or answer.diverging_epoch.epoch >= 0 or answer.preferred_read_replica >= 0)
