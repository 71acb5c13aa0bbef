"""What a produce request with a transactional id needs before its append: the coordinator must know the partition (KIP-890).

Otherwise the coordinator would send no marker to the partition, and the transaction would hang there: readers of committed
records would wait for its end for ever. So the first batch of a transaction in a partition waits for the coordinator. Later ones
do not: the log has the open transaction then, and only the coordinator's marker ends it.

    version 4, TV2    the coordinator adds the partition to the producer's transaction, or begins one with it
    version 3, TV1    the coordinator confirms that the producer has added the partition

Meanwhile the transaction may end. Its marker may be in the log before the answer arrives, and a batch behind it would belong to
no transaction of the coordinator. In TV2 the marker has a higher producer epoch, so the log refuses the batch. In TV1 it has the
same epoch, so the append is refused if the partition got a marker of the producer since the question was sent.

The epoch is compared before the coordinator is asked (KAFKA-19690): a producer that was fenced by a marker gets
INVALID_PRODUCER_EPOCH from the log, and aborts.

In TV2 every transaction has an epoch of its own, whose sequences begin at 0. So a first batch with another sequence is refused if
the log has no batch of the producer since its last marker: the batch before was refused, and is sent again (KAFKA-14402).

All partitions of a request are asked for at once. The connection is on hold meanwhile, so a producer's batches keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.produce.preparation import MayAppend, PreparedParts
from strandline.broker.transactions.admission import TV1, TV2, Adder, Admission
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import ProducePartition, ProduceRequest
from strandline.protocol.messages.groups import GroupTopicPartitions
from strandline.protocol.messages.transactions import AddPartitionsToTxnTransaction
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.records.batch import TRANSACTIONAL_MASK, BatchHeader, read_header
from strandline.protocol.rpc.server import ServerRequest
from strandline.protocol.rpc.server_connection import answer_error
from strandline.storage.log.record_rules import bare

VERSION_TV2 = 4
"""The version of Produce in which the leader adds the partitions itself."""


Then = Callable[[ServerRequest, PreparedParts, Admission], None]


class TransactionalProduce:
    """Asks the transaction coordinators to admit the produce requests of one broker."""

    def __init__(self, directory: PartitionDirectory, adder: Adder | None, may_append: MayAppend) -> None:
        """`adder`: None refuses requests with a transactional id."""
        self._directory = directory
        self._adder = adder
        self._may_append = may_append

    def check(self, body: ProduceRequest) -> None:
        """Refuse a request with a transactional id as a whole, before anything is done for it. Raises INVALID_REQUEST or
        INVALID_REQUIRED_ACKS."""
        if self._adder is None:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "transactions are not supported")
        if not body.transactional_id:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        if body.acks != -1:
            raise BrokerError(ErrorCode.INVALID_REQUIRED_ACKS, "in a transaction acks must be -1")
        if any(item.expected_offset >= 0 or item.fencing_token >= 0 for item in body.partitions):
            raise BrokerError(ErrorCode.INVALID_REQUEST, "a conditional append cannot be part of a transaction")

    def begin(self, request: ServerRequest, parts: PreparedParts, then: Then) -> None:
        """Call `then` when the coordinator has answered, or at once if it need not be asked. The parts have an error for each
        partition that must not be appended to."""
        body = request.body
        admission = Admission(*_producer_of(body), TV2 if request.api_version >= VERSION_TV2 else TV1)
        parts = dict(parts)
        for index, (item, records) in enumerate(zip(body.partitions, body.records, strict=True)):
            if not isinstance(parts.get(index), BrokerError):
                self._begin_partition(index, item, records, parts, admission)
        if admission.confirmed:
            self._ask(request, parts, admission, then)
        else:
            then(request, parts, admission)

    def _begin_partition(
        self, index: int, item: ProducePartition, records: memoryview, parts: PreparedParts, admission: Admission
    ) -> None:
        try:
            first_sequence = read_header(records).base_sequence
            leader_state = self._directory.partition((item.topic_id, item.partition)).leader_state
            if leader_state is None:
                raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if leader_state.is_under_min_isr:
                raise BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS)
            question = admission.question(leader_state, first_sequence)
        except BrokerError as e:
            parts[index] = bare(e)
            return
        if question is not None:
            admission.confirmed[index] = question

    def _ask(self, request: ServerRequest, parts: PreparedParts, admission: Admission, then: Then) -> None:
        assert self._adder is not None
        body: ProduceRequest = request.body
        keys = [(body.partitions[index].topic_id, body.partitions[index].partition) for index in admission.confirmed]
        transaction = AddPartitionsToTxnTransaction(
            body.transactional_id or "",
            admission.producer_id,
            admission.epoch,
            _by_topic(keys),
            verify_only=admission.transaction_version < TV2,
            transaction_version=admission.transaction_version,
        )
        request.connection.hold()
        self._adder.add(transaction, partial(self._on_answer, request, parts, admission, then))

    def _on_answer(
        self, request: ServerRequest, parts: PreparedParts, admission: Admission, then: Then, error: BrokerError | None
    ) -> None:
        """Append, before the next request of the connection. The append is also made if the connection is closed: then the
        producer's retry is a duplicate."""
        if error is not None:
            parts.update(dict.fromkeys(admission.confirmed, error))
        try:
            if self._may_append(request):
                then(request, parts, admission)
        except Exception as e:
            answer_error(request, e)
        finally:
            request.connection.release()


def _producer_of(body: ProduceRequest) -> tuple[int, int]:
    """The id and the epoch of the request's producer; (-1, -1) if no batch can be read, so that all are refused. Raises
    INVALID_REQUEST, INVALID_RECORD or INVALID_PRODUCER_ID_MAPPING."""
    producer = (-1, -1)
    for records in body.records:
        for header in _headers(records):
            if not header.attributes & TRANSACTIONAL_MASK:
                raise BrokerError(
                    ErrorCode.INVALID_REQUEST, "a request with a transactional id has a batch outside of transactions"
                )
            if header.producer_id < 0:
                raise BrokerError(ErrorCode.INVALID_RECORD, "a batch is marked as transactional and has no producer id")
            if producer not in ((-1, -1), (header.producer_id, header.producer_epoch)):
                raise BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "the request has batches of several producers or epochs")
            producer = (header.producer_id, header.producer_epoch)
    return producer


def _headers(records: memoryview) -> Iterator[BatchHeader]:
    """The headers of the batches, up to one that is malformed: the append refuses that one."""
    position = 0
    try:
        while position < len(records):
            header = read_header(records, position)
            yield header
            position += header.size
    except BrokerError:
        return


def _by_topic(keys: list[TopicIdPartition]) -> list[GroupTopicPartitions]:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, partition in keys:
        by_topic.setdefault(topic_id, []).append(partition)
    return [GroupTopicPartitions(topic_id, partitions) for topic_id, partitions in by_topic.items()]
