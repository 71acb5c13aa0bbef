"""Serving Produce: append to the partitions that this broker leads, and answer when the requested acknowledgement is reached.

    acks   min ISR is checked   answered
    0      no                   never (an error closes the connection, so that the producer notices it)
    1      no                   after the append
    -1     before the append    when the high watermark has passed the last record of every partition; if the ISR shrank
                                below the minimum meanwhile: NOT_ENOUGH_REPLICAS_AFTER_APPEND (the batch may still commit)

A retried batch that is in the log already is answered with its first offsets, and waits for the high watermark like a new batch:
it was appended before, but it may not be committed.

A conditional append names the offset that its first record must get. The leader compares it with the log end right before the
append, after it has looked for duplicates: a retry of an append that had succeeded is a success. If another record has the
offset, the response says where the log ends; with acks=-1 it waits until the records below that are committed. So consumers can
read the other record, and it stays. A leader that was deposed without knowing it cannot reject the append because of a record
that the cluster does not keep.

An append may also carry a fencing token. It is rejected if an earlier one has carried a higher token, and the response names that
token; with acks=-1 it waits until the fence that stores the token is committed (`protocol/records/fence.py`). An append that was
acknowledged with acks=-1 has committed the fence of its token, because that lies below it; so no leader after this one
acknowledges an append with a lower token. Appends without a token are not affected, as in S2.

A request on an older connection than the producer's newest one is refused (`producer_connections.py`).

A producer id counts only after its batch was checked: a batch with a wrong checksum may name any id.

A named producer is refused if the controllers have ended its work epoch, or have given a newer producer exclusive use of the
name, even on partitions to which the newer producer has not written.

Compressed batches are decompressed and checked on a thread if that takes long, and recompressed if their topic has another codec
(`preparation.py`). The connection is on hold meanwhile, as in Kafka, so a producer's batches keep their order.

In a transaction, the coordinator must know a partition before its first batch is appended (`transactional.py`); this may take the
request a round trip to the coordinator, with the connection on hold.

If records break a rule of their topic (no key on a compacted topic, a timestamp out of range), their batch is refused, and the
response names them (KIP-467; `storage/log/record_rules.py`).

Each partition of a request succeeds or fails on its own. A request that names a partition twice is refused as a whole, before
anything is appended.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from strandline.broker.disk_work import RunBlocking
from strandline.broker.metrics import TopicMetrics
from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.partition.log_failures import LogFailures
from strandline.broker.partition.partition import Partition
from strandline.broker.produce.preparation import PLAIN_UNNAMED, MayAppend, Preparation, PreparedParts, always
from strandline.broker.produce.producer_connections import ProducerConnections, is_whole
from strandline.broker.produce.transactional import TransactionalProduce
from strandline.broker.purgatory import DelayedOperation, Purgatory
from strandline.broker.transactions.admission import Adder, Admission
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    RecordError,
)
from strandline.protocol.partitions import TopicIdPartition, refuse_repeated
from strandline.protocol.producer_names import NAMED, NAMED_BITS, work_epoch_of
from strandline.protocol.records.batch import HEADER_SIZE, LENGTH_PREFIX, PRODUCER_ID_POS
from strandline.protocol.rpc.server import ServerRequest
from strandline.storage.files import DiskError
from strandline.storage.log.appending import ConditionFailed
from strandline.storage.log.conversion import Prepared
from strandline.storage.log.record_rules import InvalidRecords, bare
from strandline.storage.log.validation import NONE_CHECKED

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1

_IDENTITY = Struct(">qh")
"""Producer id and producer epoch, which are adjacent in a batch's header."""
_LENGTH, _LENGTH_POS = Struct(">i"), 8

_MALFORMED = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE})
"""Errors of the batch itself. Its sender is logged, at most once a minute."""


class DelayedProduce(DelayedOperation):
    """A produce request that waits for the high watermark of one or more partitions."""

    __slots__ = ("_directory", "_partitions", "_request", "responses")

    def __init__(self, request: ServerRequest, responses: list[ProducePartitionResponse], directory: PartitionDirectory) -> None:
        super().__init__()
        self._directory = directory
        self._request = request
        self.responses = responses
        """One for each partition; the list grows while the request is being handled."""
        self._partitions: dict[int, Partition] = {}
        """The partitions that it still waits for, by their index in the response."""

    def wait_for(self, partition: Partition, index: int, required_offset: int) -> None:
        self._partitions[index] = partition
        partition.waiters.add(required_offset, index, self, partition.leader_epoch)

    def on_reached(self, index: int) -> None:
        """The high watermark of one partition covers the records of this request."""
        del self._partitions[index]
        if not self._partitions:
            self.complete()

    def on_failed(self, index: int, error_code: int) -> None:
        partition, response = self._partitions[index], self.responses[index]
        _count_late_failure(partition, response)
        _fail(response, ErrorCode(error_code))
        if error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            response.current_leader = self._directory.current_leader(partition.key)
        self.on_reached(index)

    def on_complete(self) -> None:
        self._request.reply(ProduceResponse(self.responses))

    def on_expiration(self) -> None:
        self._directory.metrics.expired_produces += 1
        for index, partition in self._partitions.items():
            partition.waiters.discard(self)
            _count_late_failure(partition, self.responses[index])
            _fail(self.responses[index], ErrorCode.REQUEST_TIMED_OUT)
        self._request.reply(ProduceResponse(self.responses))


def _fail(response: ProducePartitionResponse, code: ErrorCode, message: str | None = None) -> None:
    response.error_code = code
    response.error_message = message
    response.base_offset = response.log_append_time_ms = response.log_start_offset = response.log_end_offset = -1
    response.fencing_token = -1


def _count_late_failure(partition: Partition, response: ProducePartitionResponse) -> None:
    """Count an append that failed while it waited for its commit. (If its condition failed, it was counted when rejected.)"""
    if not response.error_code:
        partition.metrics.failed_produces += 1


class ProduceHandler:
    """Answers Produce requests of a broker."""

    def __init__(
        self,
        directory: PartitionDirectory,
        failures: LogFailures,
        purgatory: Purgatory,
        wall_clock_ms: Callable[[], int],
        run_blocking: RunBlocking | None = None,
        may_append: MayAppend = always,
        adder: Adder | None = None,
    ) -> None:
        """`may_append`: called before the append of a request that had to wait. If it returns False, it has refused the request.
        `adder`: adds partitions to transactions; None: transactions are not supported."""
        self._directory = directory
        self._failures = failures
        self._purgatory = purgatory
        self._wall_clock_ms = wall_clock_ms
        self._connections = ProducerConnections()
        self._preparation = Preparation(directory, wall_clock_ms, run_blocking, may_append)
        self._transactional = TransactionalProduce(directory, adder, may_append)

    def handle(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, ProduceRequest)
        _check(body)
        if body.transactional_id is not None:
            self._transactional.check(body)
        then = self._append_all if body.transactional_id is None else self._append_in_transaction
        parts = self._preparation.begin(request, then)
        if parts is not None:
            then(request, parts)

    def _append_in_transaction(self, request: ServerRequest, parts: PreparedParts) -> None:
        self._transactional.begin(request, parts, self._append_all)

    def _append_all(self, request: ServerRequest, parts: PreparedParts, admission: Admission | None = None) -> None:
        """Append to every partition of the request, and answer it or park it."""
        body, acks, may_be_named = request.body, request.body.acks, parts is not PLAIN_UNNAMED
        is_known = _is_first_whole(parts) if parts else None
        if body.records and self._connections.is_late(body.records[0], request.connection, is_known):
            request.no_reply()
            request.connection.close()
            return
        responses: list[ProducePartitionResponse] = []
        waiting: DelayedProduce | None = None
        ownership = request.ownership
        now_ms = self._wall_clock_ms()
        for item, records in zip(body.partitions, body.records, strict=True):
            response = ProducePartitionResponse(item.topic_id, item.partition)
            prepared = parts.get(len(responses)) if parts else None
            if admission is not None:
                prepared = self._admit(admission, len(responses), item, prepared)
            if ownership is not None:
                prepared = ownership.refusal((item.topic_id, item.partition)) or prepared
            responses.append(response)
            partition, required_offset = self.append(
                item, records, acks, response, now_ms, prepared, may_be_named, admission is not None
            )
            if ownership is not None and not response.error_code:
                ownership.on_appended((item.topic_id, item.partition))
            if partition is None and response.error_code in _MALFORMED:
                request.connection.on_malformed(f"produce: {response.error_message}", request.client_id)
            if acks == ACKS_ALL and partition is not None and partition.log.high_watermark < required_offset:
                if waiting is None:
                    waiting = DelayedProduce(request, responses, self._directory)
                waiting.wait_for(partition, len(responses) - 1, required_offset)
        if waiting is not None:
            self._purgatory.park(waiting, body.timeout_ms)
        elif acks == ACKS_NONE:
            _finish_without_acks(request, responses)
        else:
            request.reply(ProduceResponse(responses))

    def _admit(
        self, admission: Admission, index: int, item: ProducePartition, prepared: Prepared | BrokerError | None
    ) -> Prepared | BrokerError | None:
        """`prepared`, or the error if the coordinator will not end a transaction of these batches here (`Admission.check`)."""
        partition = self._directory.partitions.get((item.topic_id, item.partition))
        if isinstance(prepared, BrokerError) or partition is None or partition.leader_state is None:
            return prepared
        try:
            admission.check(index, partition.leader_state)
        except BrokerError as e:
            return bare(e)
        return prepared

    def _check_not_fenced(self, records: memoryview, is_checked: bool) -> None:
        """Refuse the batches of a named producer whose epoch is over. A malformed batch is ignored here: the append refuses
        it."""
        position = 0
        while position + HEADER_SIZE <= len(records):
            if records[position + PRODUCER_ID_POS] & NAMED_BITS == NAMED:
                self._check_named(records, position, is_checked)
            (length,) = _LENGTH.unpack_from(records, position + _LENGTH_POS)
            position += max(length + LENGTH_PREFIX, HEADER_SIZE)

    def _check_named(self, records: memoryview, position: int, is_checked: bool) -> None:
        producer_id, producer_epoch = _IDENTITY.unpack_from(records, position + PRODUCER_ID_POS)
        is_over = (work_epoch_of(producer_id), producer_epoch) < self._directory.image.oldest_of(producer_id)
        if is_over and (is_checked or is_whole(records[position:])):
            text = f"producer {producer_id}: epoch {producer_epoch} is fenced: a newer producer has the name"
            raise BrokerError(ErrorCode.INVALID_PRODUCER_EPOCH, text)

    def append(
        self,
        item: ProducePartition,
        records: memoryview,
        acks: int,
        response: ProducePartitionResponse,
        now_ms: int,
        prepared: Prepared | BrokerError | None,
        may_be_named: bool,
        is_transactional: bool,
    ) -> tuple[Partition | None, int]:
        """Append to one partition, and fill in its response. Returns the partition and the high watermark that commits its
        records, or (None, 0) on failure. If a condition of the append does not hold, it is the high watermark that commits the
        records or the fence because of which it does not hold."""
        key = (item.topic_id, item.partition)
        metrics = self._directory.metrics.departed
        try:
            partition = self._directory.partitions.get(key) or self._directory.partition(key)
            metrics = partition.metrics
            leader_state = partition.leader_state
            if leader_state is None:
                raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if acks == ACKS_ALL and leader_state.is_under_min_isr:
                raise BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS)
            if prepared is None:
                if may_be_named:
                    self._check_not_fenced(records, False)
                info = leader_state.append(
                    records, now_ms, NONE_CHECKED, item.expected_offset, item.fencing_token, is_transactional
                )
            elif isinstance(prepared, BrokerError):
                raise bare(prepared)  # not `prepared`, which would be in a cycle with this frame
            else:
                self._check_not_fenced(records, True)
                info = leader_state.append(
                    prepared.records, now_ms, prepared.times, item.expected_offset, item.fencing_token, is_transactional
                )
        except ConditionFailed as e:
            _fail(response, e.code, e.message)
            response.log_end_offset, response.fencing_token = e.log_end_offset, e.fencing_token
            _count_failure(metrics)
            return partition, e.reason_end
        except BrokerError as e:
            self.refuse(key, response, e)
            _count_failure(metrics)
            return None, 0
        except DiskError as e:
            self._failures.on_disk_error(e)
            _fail(response, ErrorCode.KAFKA_STORAGE_ERROR, str(e))
            _count_failure(metrics)
            return None, 0
        metrics.produces += 1
        response.base_offset = info.first_offset
        response.log_append_time_ms = info.log_append_time_ms
        response.log_start_offset = partition.log.log_start_offset
        return partition, info.last_offset + 1

    def refuse(self, key: TopicIdPartition, response: ProducePartitionResponse, error: BrokerError) -> None:
        """Fill in the response of one partition with an error, and with the present leader if this broker does not lead."""
        if error.code == ErrorCode.KAFKA_STORAGE_ERROR:
            # If all followers are caught up and there is no consumer, no read would ever find the damage.
            self._failures.on_damage(key)
        _fail(response, error.code, error.message)
        if isinstance(error, InvalidRecords):
            response.record_errors = [RecordError(index, message) for index, message in error.record_errors.items()]
            response.invalid_records = error.count
        if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            response.current_leader = self._directory.current_leader(key)


def _is_first_whole(parts: PreparedParts) -> bool | None:
    """Whether the records of the first partition are valid; None if they were not prepared. Decompressing them again would block
    the event loop."""
    return isinstance(parts[0], Prepared) if 0 in parts else None


def _count_failure(metrics: TopicMetrics) -> None:
    metrics.produces += 1
    metrics.failed_produces += 1


def _check(body: ProduceRequest) -> None:
    """Refuse the request as a whole, before anything is appended."""
    partitions = body.partitions
    if body.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        raise BrokerError(ErrorCode.INVALID_REQUIRED_ACKS)
    if len(partitions) != len(body.records):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{len(partitions)} partitions, but {len(body.records)} sets of records")
    if len(partitions) > 1:
        refuse_repeated(partitions)


def _finish_without_acks(request: ServerRequest, responses: list[ProducePartitionResponse]) -> None:
    failed = [response for response in responses if response.error_code]
    request.no_reply()
    if failed:
        code = ErrorCode(failed[0].error_code).name
        request.connection.close_because(f"a produce with acks=0 failed: {code}", request.client_id)
