"""A transaction coordinator for the scripted cluster: the brokers' own state machine behind real sockets, and switches for what
goes wrong.

cluster = ScriptedCluster()
transactions = ScriptedTransactions(ScriptedGroups(cluster))
async with cluster: ...
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from strandline.broker.transactions.config import TransactionConfig
from strandline.broker.transactions.records import TransactionRecord
from strandline.broker.transactions.shard import Decision, Markers, ProducerIdAndEpoch, TransactionShard
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages import data, groups, transactions
from strandline.protocol.messages.common import Message
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.records.batch import read_header
from strandline.protocol.records.reader import iter_records
from strandline.protocol.rpc.server import ServerRequest

from .scripted import ScriptedBroker, ScriptedCluster
from .scripted_groups import ScriptedGroups, Stored

C = ErrorCode
OFFSETS = "__consumer_offsets"


class ScriptedTransactions:
    def __init__(self, scripted_groups: ScriptedGroups) -> None:
        self.groups = scripted_groups
        self.cluster: ScriptedCluster = scripted_groups.cluster
        self.cluster.newest_produce_version = 4
        self.cluster.admit = self._admit
        self.cluster.more_handlers = self._handlers
        self.shard = TransactionShard(TransactionConfig())
        self.now_ms = 0
        self._fresh_ids = count(5000)
        self.fate: Callable[[Message], str] = lambda request: "ok"
        """The fate of a request, as in `ScriptedGroups.fate`."""
        self.holds_markers = False
        """Decided transactions stay prepared until `write_markers`."""
        self.held: list[Markers] = []
        self.requests: list[Message] = []
        self.open: dict[tuple[int, TopicIdPartition], list[bytes]] = {}
        """The values of open transactions, by producer id and partition."""
        self.visible: dict[TopicIdPartition, list[bytes]] = {}
        """The values that a `read_committed` consumer would get, by partition."""
        self.pending: dict[int, list[tuple[str, TopicIdPartition, Stored]]] = {}
        """The offsets of open transactions, by producer id."""

    # -- what a test looks at ------------------------------------------------------------------------------------------

    def committed(self, topic: str = "orders") -> list[bytes]:
        """The values that a `read_committed` consumer would get, partition by partition."""
        keys = sorted(key for key in self.visible if key[0] == self.cluster.topics[topic])
        return [value for key in keys for value in self.visible[key]]

    def ends(self) -> list[bool]:
        """The EndTxn requests in order: True for a commit, False for an abort."""
        return [request.committed for request in self.requests if isinstance(request, transactions.EndTxnRequest)]

    def epoch(self, transactional_id: str = "tx") -> int:
        return self.shard.transactions[transactional_id].producer_epoch

    def expire(self) -> None:
        """Abort the transactions that exceed their timeout."""
        for decision in list(self.shard.expire(self._fresh_ids, self.now_ms)):
            self._apply(decision)

    def write_markers(self) -> None:
        """Complete the transactions that are decided."""
        self.holds_markers = False
        held, self.held = self.held, []
        for markers in held:
            self._write(markers)

    # -- the coordinator ----------------------------------------------------------------------------------------------

    def _handlers(self, broker: ScriptedBroker) -> dict[int, Callable[[ServerRequest], None]]:
        served: dict[int, Callable[[Message], Message]] = {
            apis.INIT_PRODUCER_ID: self._init,
            apis.END_TXN: self._end,
            apis.TXN_OFFSET_COMMIT: self._offsets,
        }
        own = {key: self._as_coordinator(broker, serve) for key, serve in served.items()}
        return {**self.groups._handlers(broker), **own}

    def _as_coordinator(self, broker: ScriptedBroker, serve: Callable[[Message], Message]) -> Callable[[ServerRequest], None]:
        def handle(request: ServerRequest) -> None:
            if isinstance(request.body, data.InitProducerIdRequest) and request.body.transactional_id is None:
                broker.init_producer_id(request)
                return
            self.requests.append(request.body)
            fate = self.fate(request.body)
            if broker.broker_id != self.groups.coordinator:
                request.refuse(C.NOT_COORDINATOR)
            elif fate == "silence":
                broker.held.append(request)
            elif fate == "request lost":
                request.connection.close()
            elif fate == "response lost":
                serve(request.body)
                request.connection.close()
            elif fate != "ok":
                request.refuse(C[fate])
            else:
                request.reply(serve(request.body))

        return handle

    def _init(self, body: Message) -> Message:
        assert isinstance(body, data.InitProducerIdRequest)
        assert body.transactional_id is not None
        timeout_ms, fresh_id = body.transaction_timeout_ms, next(self._fresh_ids)
        try:
            decision = self.shard.init_producer(body.transactional_id, timeout_ms, None, fresh_id, self.now_ms)
        except BrokerError as e:
            return data.InitProducerIdResponse(e.code, error_message=e.message)
        answer = self._apply(decision)
        if isinstance(answer, BrokerError):
            return data.InitProducerIdResponse(answer.code, error_message=answer.message)
        return data.InitProducerIdResponse(0, *answer)

    def _end(self, body: Message) -> Message:
        assert isinstance(body, transactions.EndTxnRequest)
        asker = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
        fresh_id = next(self._fresh_ids)
        try:
            decision = self.shard.end(
                asker, body.transactional_id, commit=body.committed, version=2, fresh_id=fresh_id, now_ms=self.now_ms
            )
        except BrokerError as e:
            return transactions.EndTxnResponse(e.code, e.message)
        answer = self._apply(decision)
        assert isinstance(answer, ProducerIdAndEpoch)
        return transactions.EndTxnResponse(0, None, *answer)

    def _apply(self, decision: Decision) -> ProducerIdAndEpoch | BrokerError:
        if decision.record is not None:
            self.shard.replay(decision.record)
        if decision.markers is not None and self.holds_markers:
            self.held.append(decision.markers)
        elif decision.markers is not None:
            self._write(decision.markers)
        return decision.answer or ProducerIdAndEpoch(-1, -1)

    def _write(self, markers: Markers) -> None:
        for name, index in markers.partitions:
            if name == OFFSETS:
                self._end_offsets(markers)
                continue
            key = (self.cluster.topics[name], index)
            values = self.open.pop((markers.producer_id, key), [])
            self.cluster.partitions[key].log.end_transaction(markers.producer_id, markers.producer_epoch)
            if markers.is_commit:
                self.visible.setdefault(key, []).extend(values)
        completed = self.shard.complete(markers, self.now_ms)
        if isinstance(completed.record, TransactionRecord):
            self.shard.replay(completed.record)

    # -- the leaders --------------------------------------------------------------------------------------------------

    def _admit(self, transactional_id: str | None, key: TopicIdPartition, records: bytes) -> ErrorCode:
        """A leader is about to append: it adds its partition to the transaction."""
        header = read_header(records)
        assert header.is_transactional is (transactional_id is not None), "a batch and its request belong together"
        if transactional_id is None:
            return C.NONE
        name = next(name for name, topic_id in self.cluster.topics.items() if topic_id == key[0])
        asker, opened = ProducerIdAndEpoch(header.producer_id, header.producer_epoch), (header.producer_id, key)
        try:
            self._apply(self.shard.add_partitions(asker, transactional_id, [(name, key[1])], 2, self.now_ms))
        except BrokerError as e:
            return C.INVALID_PRODUCER_EPOCH if e.code == C.PRODUCER_FENCED else e.code
        if opened not in self.open:
            if header.base_sequence != 0:
                return C.OUT_OF_ORDER_SEQUENCE_NUMBER
            self.open[opened] = []
        if not self.cluster.partitions[key].log.has(records):
            self.open[opened] += [record.value or b"" for record in iter_records(records)]
        return C.NONE

    # -- offsets ------------------------------------------------------------------------------------------------------

    def _offsets(self, body: Message) -> Message:
        assert isinstance(body, transactions.TxnOffsetCommitRequest)
        asker = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
        code = C.NONE
        try:
            self._apply(self.shard.add_partitions(asker, body.transactional_id, [(OFFSETS, 0)], 2, self.now_ms))
        except BrokerError as e:
            code = C.INVALID_PRODUCER_EPOCH if e.code == C.PRODUCER_FENCED else e.code
        answers = []
        for p in body.partitions:
            key = (p.topic_id, p.partition)
            member = body.member_id, body.generation_id_or_member_epoch
            its_code = code or self.groups.commit_codes.get(key) or self._member_code(body, key)
            answers.append(transactions.TxnPartitionResult(*key, its_code))
            if not its_code:
                stored = Stored(p.committed_offset, p.committed_leader_epoch, p.committed_metadata, *member)
                self.pending.setdefault(body.producer_id, []).append((body.group_id, key, stored))
        return transactions.TxnOffsetCommitResponse(answers)

    def _member_code(self, body: transactions.TxnOffsetCommitRequest, key: TopicIdPartition) -> ErrorCode:
        if not body.member_id and body.generation_id_or_member_epoch < 0:
            return C.NONE
        as_commit = groups.OffsetCommitRequest(
            body.group_id, body.generation_id_or_member_epoch, body.member_id, body.group_instance_id, body.partitions
        )
        return self.groups._commit_code(as_commit, key)

    def _end_offsets(self, markers: Markers) -> None:
        for group_id, key, stored in self.pending.pop(markers.producer_id, []):
            if markers.is_commit:
                self.groups.committed.setdefault(group_id, {})[key] = stored
