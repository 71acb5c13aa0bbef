"""Serving DescribeProducers: what the log of a partition knows of its producers (KIP-664).

A new attempt of a named producer asks for the number of rows that the attempts before it have written. Some of these rows may not
be committed yet and may be lost with this leader. So the answer holds the high watermark of the same moment, and the client waits
until the high watermark has passed the offset that it found, in the same leader epoch.

A caller that needs exclusive use of the producer name passes its own epoch. Then a leader answers only if its metadata says that
no older epoch may write; from then on it appends nothing older (`produce_handler.py`). Nor does a later leader, because the
metadata that made it leader is newer.

Without an epoch, an answer may be out of date when it is read, because the previous attempt may still be writing. That is
harmless: batches based on such an answer are refused, as duplicates or for their epoch, and the client asks again.

For an operator, the answer has the open transactions: where they begin, and the fields of a marker that ends them by hand. A
request for all producers that names no leader epoch is answered by any replica, because Kafka's tools look for hanging
transactions on one broker.
"""

from __future__ import annotations

from strandline.broker.partition.directory import PartitionDirectory
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import (
    DescribeProducersPartition,
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
)
from strandline.protocol.partitions import refuse_repeated
from strandline.protocol.producer_names import is_named, number_of, work_epoch_of
from strandline.protocol.rpc.server import ServerRequest
from strandline.storage.log.producer_state import KnownProducer


class DescribeProducersHandler:
    """Answers DescribeProducers requests of a broker."""

    def __init__(self, directory: PartitionDirectory) -> None:
        self._directory = directory

    def handle(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, DescribeProducersRequest)
        refuse_repeated(body.partitions)
        request.reply(DescribeProducersResponse([self._describe(item, body) for item in body.partitions]))

    def _describe(self, item: DescribeProducersPartition, asked: DescribeProducersRequest) -> DescribeProducersPartitionResponse:
        answer = DescribeProducersPartitionResponse(item.topic_id, item.partition)
        try:
            partition = self._directory.partition((item.topic_id, item.partition))
            if asked.producer_ids is None and item.current_leader_epoch < 0:
                answer.leader_epoch = partition.leader_epoch
            else:
                answer.leader_epoch = partition.leading(item.current_leader_epoch).epoch
            self._check_exclusive(asked)
        except BrokerError as e:
            answer.error_code, answer.error_message = e.code, e.message
            return answer
        answer.high_watermark = partition.log.high_watermark
        answer.active_producers = [self._state(known) for known in partition.log.producers.describe(asked.producer_ids)]
        return answer

    def _check_exclusive(self, asked: DescribeProducersRequest) -> None:
        for producer_id in asked.producer_ids or () if asked.producer_epoch >= 0 else ():
            wanted = work_epoch_of(producer_id), asked.producer_epoch
            if is_named(producer_id) and self._directory.image.oldest_of(producer_id) < wanted:
                text = (
                    f"cannot yet confirm that no batch older than epoch {asked.producer_epoch} of producer {producer_id} "
                    "will be appended; retry"
                )
                raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, text)

    def _state(self, known: KnownProducer) -> ProducerState:
        named = is_named(known.producer_id)
        name = self._directory.image.producer_numbers.get(number_of(known.producer_id)) if named else None
        return ProducerState(*known[:5], name, known.coordinator_epoch, known.txn_first_offset)
